"""From the arguments of a public operation to a spec and its operands.

All checks and the spec depend on shapes and dtypes alone and are cached, so a repeated call costs
a dictionary look-up.
"""

import dataclasses
import functools
from typing import Any, Literal

import jax
import numpy as np
from jax import core, lax

from jaxgemm import checks, dispatch, dtypes, mlp, policy
from jaxgemm.device import CPU, current
from jaxgemm.epilogue import Clamp
from jaxgemm.policy import Policy
from jaxgemm.primitive import Autodiff, bind
from jaxgemm.problem import Problem, Shaped
from jaxgemm.spec import OPERAND_ORDER, GemmSpec

_GEMM_NAMES = {name: name for name in OPERAND_ORDER}


@dataclasses.dataclass(frozen=True)
class Call:
    """What a call means, from shapes and dtypes alone.

    Attributes:
      spec: its meaning.
      shape: the result's shape.
      squeezed: operand → its leading axes of size 1, which the spec does not have.
    """

    spec: GemmSpec
    shape: tuple[int, ...]
    squeezed: tuple[tuple[str, tuple[int, ...]], ...] = ()


@dataclasses.dataclass(frozen=True)
class Options:
    """The arguments that are neither operands nor layouts; x64 mode decides what they may be."""

    activation: str | None
    clamp: Clamp | None
    out_dtype: np.dtype | None
    precision: str
    batch_invariant: bool
    x64: bool


def options_of(
    activation: Any, out_dtype: Any, precision: Any, batch_invariant: Any, clamp: Any = None
) -> Options:
    checks.check_activation(activation)
    return Options(
        activation,
        checks.check_clamp(clamp),
        checks.check_dtype("out_dtype", out_dtype),
        dtypes.resolve_precision(precision),
        checks.check_flag("batch_invariant", batch_invariant),
        jax.config.jax_enable_x64,  # pyright: ignore[reportAttributeAccessIssue]
    )


@functools.lru_cache(maxsize=4096)
def of_gemm(
    shaped: checks.ShapedOperands, a_contract: int, b_contract: int, options: Options
) -> Call:
    operands = dict(shaped)
    a, b = operands["a"], operands["b"]
    checks.check_operands(operands, _GEMM_NAMES)
    checks.check_rank("a", a, "m, k" if a_contract else "k, m")
    checks.check_rank("b", b, "n, k" if b_contract else "k, n")
    a_axis, b_axis = len(a.shape) - 2 + a_contract, len(b.shape) - 2 + b_contract
    checks.check_contraction(a, a_axis, b, b_axis, _GEMM_NAMES)
    batch = checks.check_batch(a, b, _GEMM_NAMES)
    shape = (*batch, a.shape[-1 - a_contract], b.shape[-1 - b_contract])
    integer = dtypes.is_integer(a.dtype)
    if "c" in operands:
        checks.check_addend("c", operands["c"], shape, "..., m, n", integer)
    if "bias" in operands:
        checks.check_addend("bias", operands["bias"], shape[-1:], "n", integer)
    return _with_leading_axes(_spec(operands, a_contract, b_contract, options), operands, shape)


@functools.lru_cache(maxsize=4096)
def of_gated(shaped: checks.ShapedOperands, b_contract: int, options: Options) -> Call:
    operands, names = dict(shaped), {"a": "x", "b": "w_gate", "b_up": "w_up"}
    x, w = operands["a"], operands["b"]
    checks.check_operands(operands, names)
    checks.check_rank("x", x, "m, k")
    checks.check_rank("w_gate", w, "n, k" if b_contract else "k, n")
    checks.check_contraction(x, len(x.shape) - 1, w, len(w.shape) - 2 + b_contract, names)
    checks.check_same("w_up", operands["b_up"], "w_gate", w)
    batch = checks.check_batch(x, w, names)
    shape = (*batch, x.shape[-2], w.shape[-1 - b_contract])
    return _with_leading_axes(_spec(operands, 1, b_contract, options), operands, shape)


@functools.lru_cache(maxsize=4096)
def of_grouped(shaped: checks.ShapedOperands, b_contract: int, options: Options) -> Call:
    operands, names = dict(shaped), {"a": "lhs", "b": "rhs"}
    lhs, rhs = operands["a"], operands["b"]
    checks.check_operands(operands, names)
    checks.check_rank("lhs", lhs, "m, k", exact=True)
    checks.check_rank("rhs", rhs, "g, n, k" if b_contract else "g, k, n", exact=True)
    checks.check_contraction(lhs, 1, rhs, 1 + b_contract, names)
    checks.check_group_sizes(operands["group_sizes"], rhs.shape[0], "rhs")
    num_groups, n = rhs.shape[0], rhs.shape[-1 - b_contract]
    if "bias" in operands:
        integer = dtypes.is_integer(lhs.dtype)
        checks.check_addend("bias", operands["bias"], (num_groups, n), "g, n", integer)
    return Call(_spec(operands, 1, b_contract, options, ragged="m"), (lhs.shape[0], n))


@functools.lru_cache(maxsize=4096)
def of_mlp(shaped: checks.ShapedOperands, up: Options, down: Options) -> tuple[Call, Call]:
    operands = dict(shaped)
    x, w_up, w_down = (operands[name] for name in ("x", "w_up", "w_down"))
    checks.check_operands({"a": x, "b": w_up}, {"a": "x", "b": "w_up"})
    checks.check_rank("x", x, "m, k")
    for name, dims in (("w_up", "k, hidden"), ("w_down", "hidden, n")):
        checks.check_rank(name, operands[name], dims, exact=True)
    checks.check_contraction(x, len(x.shape) - 1, w_up, 0, {"a": "x", "b": "w_up"})
    checks.check_contraction(w_up, 1, w_down, 0, {"a": "w_up", "b": "w_down"})
    h_shape = (*x.shape[:-1], w_up.shape[1])
    h = Shaped(h_shape, dtypes.default_out(x.dtype, w_up.dtype))
    # That of integers is no operand.
    names = {"a": "the product of x and w_up", "b": "w_down"}
    checks.check_operands({"a": h, "b": w_down}, names)
    calls = []
    for name, dim, options, a, b in (("up", "hidden", up, x, w_up), ("down", "n", down, h, w_down)):
        chosen = {"a": a, "b": b}
        if bias := operands.get(f"bias_{name}"):
            checks.check_addend(f"bias_{name}", bias, b.shape[1:], dim, integer=False)
            chosen["bias"] = bias
        shape = (*a.shape[:-1], b.shape[1])
        calls.append(_with_leading_axes(_spec(chosen, 1, 0, options), chosen, shape))
    return calls[0], calls[1]


def add_scalars(operands: dict[str, Any], alpha: Any, beta: Any) -> None:
    """Adds alpha and beta in the accumulator dtype; static ones that change nothing are dropped."""
    if type(alpha) is int and alpha == 1 and beta is None:
        return
    a, b = operands["a"].dtype, operands["b"].dtype
    checks.check_operand_dtypes({"a": operands["a"], "b": operands["b"]}, _GEMM_NAMES)
    acc, integer = dtypes.accumulator(a, b), dtypes.is_integer(a)
    checks.check_scalar("alpha", alpha, integer)
    if not (_is_static(alpha) and alpha == 1):
        operands["alpha"] = lax.convert_element_type(alpha, acc)
    if beta is None:
        return
    checks.check_scalar("beta", beta, integer)
    if _is_static(beta) and beta == 0:
        operands.pop("c", None)
    elif "c" not in operands:
        raise ValueError("beta: is given, but c is not; pass c or leave beta out")
    elif not (_is_static(beta) and beta == 1):
        operands["beta"] = lax.convert_element_type(beta, acc)


def _is_static(x: Any) -> bool:
    """Whether x is a scalar whose value is known without waiting for a device."""
    return isinstance(x, bool | int | float | np.generic | np.ndarray)


def _spec(
    operands: dict[str, Shaped],
    a_contract: int,
    b_contract: int,
    options: Options,
    *,
    ragged: Literal["m"] | None = None,
) -> GemmSpec:
    a, b = operands["a"].dtype, operands["b"].dtype
    out = checks.check_out_dtype(options.out_dtype, operands["a"], operands["b"])
    if dtypes.is_integer(a):
        checks.check_integer_activation(options.activation)
        checks.check_integer_clamp(options.clamp)
    return GemmSpec(
        operands=tuple(name for name in OPERAND_ORDER if name in operands),
        a_contract=a_contract,
        b_contract=b_contract,
        out_dtype=out,
        residual_dtype=dtypes.residual(a, b, out),
        precision=options.precision,
        ragged=ragged,
        activation=options.activation,
        clamp=options.clamp,
        batch_invariant=options.batch_invariant,
    )


def _with_leading_axes(spec: GemmSpec, operands: dict[str, Shaped], shape: tuple[int, ...]) -> Call:
    """Leading axes become batch axes that only the operands which really have them carry."""
    num_axes = len(shape) - 2
    axes: list[list[str]] = [[] for _ in range(num_axes)]
    squeezed = []
    for name, x in operands.items():
        lead = x.shape[: len(x.shape) - len(spec.core_labels(name))]
        for i, size in enumerate(lead, num_axes - len(lead)):
            if size != 1:
                axes[i].append(name)
        if ones := tuple(i for i, size in enumerate(lead) if size == 1):
            squeezed.append((name, ones))
    batch = tuple(tuple(sorted({*names, "d"})) for names in axes if names)
    return Call(spec.replace(batch=batch), shape, tuple(squeezed))


def evaluate(call: Call, operands: dict[str, Any], backend: str, autodiff: Autodiff) -> jax.Array:
    spec, rules = call.spec, _rules(backend)
    if autodiff not in ("vjp", "jvp"):
        raise ValueError(f"autodiff: {autodiff!r} is unknown; it should be 'vjp' or 'jvp'")
    for name, ones in call.squeezed:
        operands[name] = lax.squeeze(operands[name], ones)
    ordered = tuple(operands[name] for name in spec.operands)
    _refuse_on_cpu(spec, ordered, rules)
    result = _compute(spec, rules, autodiff, *_vary_alike(ordered))
    return result if result.shape == call.shape else result.reshape(call.shape)


def evaluate_mlp(up: Call, down: Call, operands: dict[str, Any], backend: str) -> jax.Array:
    rules = _rules(backend)
    for _, ones in up.squeezed:
        operands["x"] = lax.squeeze(operands["x"], ones)
    ordered = tuple(operands[name] for name in mlp.operand_names(up.spec, down.spec))
    _refuse_on_cpu(up.spec, ordered[: len(up.spec.operands)], rules)
    result = _compute_mlp(up.spec, down.spec, rules, *_vary_alike(ordered))
    return result if result.shape == down.shape else result.reshape(down.shape)


def _rules(backend: str) -> Policy:
    checks.check_backend(backend)
    rules = policy.current()
    return rules if backend == "auto" else Policy(backend, rules.strict, rules.device)


def _refuse_on_cpu(spec: GemmSpec, operands: tuple[Any, ...], rules: Policy) -> None:
    """A CPU can only run the reference, so a named kernel is refused here, at trace time."""
    if rules.backend != "auto" and rules.device is None and current() is CPU:
        dispatch.plan(Problem.of(spec, operands), CPU, rules)


def _vary_alike(operands: tuple[Any, ...]) -> tuple[Any, ...]:
    """Inside shard_map, marks operands that every device shares as differing where others do.

    Its transpose sums their gradients over the devices.
    """
    if not any(isinstance(x, core.Tracer) for x in operands):
        return operands
    axes = [jax.typeof(x).manual_axis_type.varying for x in operands]
    union = frozenset().union(*axes)
    if not union:
        return operands
    return tuple(
        lax.pcast(x, tuple(sorted(union - own)), to="varying") if union - own else x
        for x, own in zip(operands, axes, strict=True)
    )


@functools.partial(jax.jit, static_argnums=(0, 1, 2), inline=True)
def _compute(spec: GemmSpec, rules: Policy, autodiff: Autodiff, *operands: Any) -> jax.Array:
    return bind(spec, rules, operands, autodiff)[0]


@functools.partial(jax.jit, static_argnums=(0, 1, 2), inline=True)
def _compute_mlp(up: GemmSpec, down: GemmSpec, rules: Policy, *operands: Any) -> jax.Array:
    return mlp.bind_mlp(up, down, rules, operands)[0]
