"""The public operations: what a user writes becomes a spec and its operands here, and only here."""

import functools
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike, DTypeLike

from jaxgemm import dispatch, dtypes, policy, problem
from jaxgemm.autodiff import gemm_call
from jaxgemm.device import CPU, current
from jaxgemm.policy import Policy
from jaxgemm.primitive import bind
from jaxgemm.spec import OPERAND_ORDER, GemmSpec

Scalar = ArrayLike
Precision = lax.Precision | str | None
_GEMM_NAMES = {name: name for name in OPERAND_ORDER}


def gemm(
    a: ArrayLike,
    b: ArrayLike,
    c: ArrayLike | None = None,
    *,
    alpha: Scalar = 1,
    beta: Scalar | None = None,
    bias: ArrayLike | None = None,
    activation: str | None = None,
    transpose_a: bool = False,
    transpose_b: bool = False,
    out_dtype: DTypeLike | None = None,
    precision: Precision = None,
    backend: str = "auto",
    batch_invariant: bool = False,
    autodiff: Literal["vjp", "jvp"] = "vjp",
) -> jax.Array:
    """act(alpha · op(a)·op(b) + beta · c + bias), rounded once.

    Everything after the product is in the accumulator dtype: float32, float64 if an operand is
    float64, int32 for int8 operands.

    Args:
      a: (..., m, k), or (..., k, m) with `transpose_a`; float64, float32, bfloat16, float16,
        float8_e4m3fn, float8_e5m2, or int8. Leading axes broadcast as in `jnp.matmul`; an
        operand that lacks one, or has size 1 there, is shared and not copied.
      b: (..., k, n), or (..., n, k) with `transpose_b`. Floats may be mixed.
      c: broadcastable to (..., m, n).
      alpha: scalar. A new value never recompiles and never changes the result dtype.
      beta: scalar; by default 1 with c. At 0, static or traced, c is not read: its NaN never show.
      bias: (n,), added along n.
      activation: "relu", "gelu" (the tanh form), "gelu_exact", "silu", "sigmoid", "tanh",
        "relu2", or None. NaN passes through all of them.
      transpose_a: a is stored as (..., k, m). Nothing is moved.
      transpose_b: b is stored as (..., n, k). Nothing is moved.
      out_dtype: by default what a and b promote to; int32 for int8, bfloat16 for 8-bit floats.
        A wider one is exact; a narrower one is rounded to once, as `astype` does.
      precision: for float32 operands; None follows `jax.default_matmul_precision`. "default" and
        "high" let a GPU use TF32, "highest" is true float32. The same in the backward pass.
      backend: "auto", or a kernel's name or its beginning, such as "pallas" or "xla".
      batch_invariant: the bits of a row do not depend on how many rows there are.
      autodiff: "vjp" has a hand-written backward pass (and no direct `jax.jvp`); "jvp" leaves
        differentiation to JAX's rules, in both modes.

    Returns:
      (..., m, n) of `out_dtype`.

    Raises:
      ValueError: shapes that do not fit, unknown names.
      TypeError: dtypes that do not fit.
      UnsupportedProblem: a named backend cannot run it; the message has each kernel's reason.

    Example:
      >>> import jax.numpy as jnp, jaxgemm
      >>> x, w, v = jnp.ones((4, 8)), jnp.ones((8, 16)), jnp.zeros(16)
      >>> jaxgemm.gemm(x, w, bias=v, activation="gelu").shape
      (4, 16)
    """
    operands = {"a": problem.check_array("a", a), "b": problem.check_array("b", b)}
    a_contract = 0 if problem.check_flag("transpose_a", transpose_a) else 1
    b_contract = 1 if problem.check_flag("transpose_b", transpose_b) else 0
    problem.check_operands(operands, _GEMM_NAMES)
    problem.check_rank("a", operands["a"], "k, m" if transpose_a else "m, k")
    problem.check_rank("b", operands["b"], "n, k" if transpose_b else "k, n")
    problem.check_contraction(
        operands["a"], a_contract, operands["b"], b_contract, _GEMM_NAMES
    )
    batch = problem.check_batch(operands["a"], operands["b"], _GEMM_NAMES)
    m, n = operands["a"].shape[-1 - a_contract], operands["b"].shape[-1 - b_contract]
    integer = dtypes.is_integer(operands["a"].dtype)
    if c is not None:
        operands["c"] = problem.check_array("c", c)
        problem.check_addend("c", operands["c"], (*batch, m, n), "..., m, n", integer)
        core = jnp.broadcast_shapes(operands["c"].shape[-2:], (m, n))
        operands["c"] = jnp.broadcast_to(operands["c"], (*operands["c"].shape[:-2], *core))
    _add_bias(operands, bias, (n,), "n", integer)
    _add_scalars(operands, alpha, beta)
    spec = _spec(operands, a_contract, b_contract, activation, out_dtype, precision)
    spec = spec.replace(batch_invariant=problem.check_flag("batch_invariant", batch_invariant))
    spec, operands = _with_leading_axes(spec, operands, len(batch))
    return _call(spec, operands, backend, autodiff).reshape(*batch, m, n)


def gated_gemm(
    x: ArrayLike,
    w_gate: ArrayLike,
    w_up: ArrayLike,
    *,
    activation: str | None = "silu",
    transpose_w: bool = False,
    out_dtype: DTypeLike | None = None,
    precision: Precision = None,
    backend: str = "auto",
    batch_invariant: bool = False,
    autodiff: Literal["vjp", "jvp"] = "vjp",
) -> jax.Array:
    """act(x·w_gate) · (x·w_up), rounded once; the weights are never concatenated.

    Args:
      x: (..., m, k).
      w_gate: (..., k, n), or (..., n, k) with `transpose_w`.
      w_up: the shape and dtype of w_gate.
      activation: as in `gemm`; "silu" makes it SwiGLU, "gelu" GeGLU, "sigmoid" GLU.
      transpose_w: both weights are stored as (..., n, k).
      out_dtype: as in `gemm`.
      precision: as in `gemm`.
      backend: as in `gemm`.
      batch_invariant: as in `gemm`.
      autodiff: as in `gemm`.

    Returns:
      (..., m, n) of `out_dtype`.

    Raises:
      ValueError: shapes that do not fit, unknown names.
      TypeError: dtypes that do not fit.
      UnsupportedProblem: a named backend cannot run it.

    Example:
      >>> import jax.numpy as jnp, jaxgemm
      >>> jaxgemm.gated_gemm(jnp.ones((4, 8)), jnp.ones((8, 16)), jnp.ones((8, 16))).shape
      (4, 16)
    """
    names = {"a": "x", "b": "w_gate", "b_up": "w_up"}
    arrays = {"a": x, "b": w_gate, "b_up": w_up}
    operands = {role: problem.check_array(names[role], v) for role, v in arrays.items()}
    b_contract = 1 if problem.check_flag("transpose_w", transpose_w) else 0
    problem.check_operands(operands, names)
    problem.check_rank("x", operands["a"], "m, k")
    problem.check_rank("w_gate", operands["b"], "n, k" if transpose_w else "k, n")
    problem.check_contraction(operands["a"], 1, operands["b"], b_contract, names)
    problem.check_same("w_up", operands["b_up"], "w_gate", operands["b"])
    batch = problem.check_batch(operands["a"], operands["b"], names)
    m, n = operands["a"].shape[-2], operands["b"].shape[-1 - b_contract]
    spec = _spec(operands, 1, b_contract, activation, out_dtype, precision)
    spec = spec.replace(batch_invariant=problem.check_flag("batch_invariant", batch_invariant))
    spec, operands = _with_leading_axes(spec, operands, len(batch))
    return _call(spec, operands, backend, autodiff).reshape(*batch, m, n)


def grouped_gemm(
    lhs: ArrayLike,
    rhs: ArrayLike,
    group_sizes: ArrayLike,
    *,
    bias: ArrayLike | None = None,
    activation: str | None = None,
    transpose_rhs: bool = False,
    out_dtype: DTypeLike | None = None,
    precision: Precision = None,
    backend: str = "auto",
    batch_invariant: bool = False,
    autodiff: Literal["vjp", "jvp"] = "vjp",
) -> jax.Array:
    """act(lhs[rows of group g] · rhs[g] + bias[g]) for every group, rounded once.

    Rows of lhs are divided, in order, among the groups. Rows past the last group are exactly zero
    in the result and in the gradient for lhs, and what they hold influences nothing. An empty
    group's weights are not read and their gradient is exactly zero. Sizes that add up to more
    than m are clipped. Sizes stay on the device and a new distribution never recompiles.

    Args:
      lhs: (m, k).
      rhs: (g, k, n), or (g, n, k) with `transpose_rhs`.
      group_sizes: (g,) of any integer dtype: rows of each group.
      bias: (g, n).
      activation: as in `gemm`.
      transpose_rhs: rhs is stored as (g, n, k).
      out_dtype: as in `gemm`.
      precision: as in `gemm`.
      backend: as in `gemm`.
      batch_invariant: as in `gemm`.
      autodiff: as in `gemm`.

    Returns:
      (m, n) of `out_dtype`.

    Raises:
      ValueError: shapes that do not fit, unknown names.
      TypeError: dtypes that do not fit.
      UnsupportedProblem: a named backend cannot run it.

    Example:
      >>> import jax.numpy as jnp, jaxgemm
      >>> x, w = jnp.ones((10, 8)), jnp.ones((3, 8, 16))
      >>> jaxgemm.grouped_gemm(x, w, jnp.array([4, 0, 5])).shape
      (10, 16)
    """
    names = {"a": "lhs", "b": "rhs"}
    operands = {"a": problem.check_array("lhs", lhs), "b": problem.check_array("rhs", rhs)}
    b_contract = 1 if problem.check_flag("transpose_rhs", transpose_rhs) else 0
    problem.check_operands(operands, names)
    problem.check_rank("lhs", operands["a"], "m, k", exact=True)
    problem.check_rank("rhs", operands["b"], "g, n, k" if transpose_rhs else "g, k, n", exact=True)
    problem.check_contraction(operands["a"], 1, operands["b"], b_contract, names)
    num_groups, n = operands["b"].shape[0], operands["b"].shape[-1 - b_contract]
    sizes = problem.check_array("group_sizes", group_sizes)
    problem.check_group_sizes(sizes, num_groups, "rhs")
    integer = dtypes.is_integer(operands["a"].dtype)
    _add_bias(operands, bias, (num_groups, n), "g, n", integer)
    # Clipped before the cast: a size of 2^32 in a wide dtype must not come out as 0.
    sizes = jnp.clip(sizes, 0, min(operands["a"].shape[0], jnp.iinfo(sizes.dtype).max))
    operands["group_sizes"] = sizes.astype(jnp.int32)
    spec = _spec(operands, 1, b_contract, activation, out_dtype, precision, ragged="m")
    spec = spec.replace(batch_invariant=problem.check_flag("batch_invariant", batch_invariant))
    return _call(spec, operands, backend, autodiff)


def _add_bias(
    operands: dict[str, Any], bias: Any, shape: tuple[int, ...], dims: str, integer: bool
) -> None:
    if bias is not None:
        operands["bias"] = problem.check_array("bias", bias)
        problem.check_addend("bias", operands["bias"], shape, dims, integer)


def _add_scalars(operands: dict[str, Any], alpha: Any, beta: Any) -> None:
    """Adds alpha and beta in the accumulator dtype; static ones that change nothing are dropped."""
    acc = dtypes.accumulator(operands["a"].dtype, operands["b"].dtype)
    integer = dtypes.is_integer(acc)
    problem.check_scalar("alpha", alpha, integer)
    if not (_is_static(alpha) and alpha == 1):
        operands["alpha"] = lax.convert_element_type(alpha, acc)
    if beta is None:
        return
    problem.check_scalar("beta", beta, integer)
    if _is_static(beta) and beta == 0:
        operands.pop("c", None)
    elif "c" not in operands:
        raise ValueError("beta: is given, but c is not; pass c or leave beta out")
    elif not (_is_static(beta) and beta == 1):
        operands["beta"] = lax.convert_element_type(beta, acc)


def _is_static(x: Any) -> bool:
    """Whether x is a number whose value is known without waiting for a device."""
    return isinstance(x, bool | int | float | np.generic | np.ndarray)


def _spec(
    operands: dict[str, Any],
    a_contract: int,
    b_contract: int,
    activation: str | None,
    out_dtype: Any,
    precision: Any,
    *,
    ragged: Literal["m"] | None = None,
) -> GemmSpec:
    a, b = operands["a"].dtype, operands["b"].dtype
    out = problem.check_out_dtype(out_dtype, operands["a"], operands["b"])
    problem.check_activation(activation, dtypes.accumulator(a, b))
    return GemmSpec(
        operands=tuple(name for name in OPERAND_ORDER if name in operands),
        a_contract=a_contract,
        b_contract=b_contract,
        out_dtype=out,
        residual_dtype=dtypes.residual(a, b, out),
        precision=dtypes.resolve_precision(precision),
        ragged=ragged,
        activation=activation,
    )


def _with_leading_axes(
    spec: GemmSpec, operands: dict[str, Any], num_axes: int
) -> tuple[GemmSpec, dict[str, Any]]:
    """Leading axes become batch axes that only operands which really have them carry."""
    axes: list[list[str]] = [[] for _ in range(num_axes)]
    squeezed = {}
    for name, x in operands.items():
        lead = x.shape[: x.ndim - len(spec.core_labels(name))]
        first = num_axes - len(lead)
        for i, size in enumerate(lead):
            if size != 1:
                axes[first + i].append(name)
        squeezed[name] = lax.squeeze(x, [i for i, size in enumerate(lead) if size == 1])
    batch = tuple(tuple(sorted({*names, "d"})) for names in axes if names)
    return spec.replace(batch=batch), squeezed


def _call(spec: GemmSpec, operands: dict[str, Any], backend: str, autodiff: str) -> jax.Array:
    rules = policy.current()
    if backend != "auto":
        rules = policy.Policy(backend, rules.strict, rules.device)
    if rules.backend != "auto" and rules.device is None and current() is CPU:
        # A CPU can only run the reference, so a named kernel is refused here, at trace time.
        ordered = tuple(operands[name] for name in spec.operands)
        dispatch.plan(problem.Problem.of(spec, ordered), CPU, rules)
    if autodiff not in ("vjp", "jvp"):
        raise ValueError(f"autodiff: {autodiff!r} is unknown; it should be 'vjp' or 'jvp'")
    varying = _vary_alike(tuple(operands[name] for name in spec.operands))
    return _compute(spec, rules, autodiff, *varying)


def _vary_alike(operands: tuple[Any, ...]) -> tuple[Any, ...]:
    """Inside shard_map, marks operands that every device shares as differing where others do.

    Its transpose sums their gradients over the devices.
    """
    axes = [getattr(jax.typeof(x).manual_axis_type, "varying", frozenset()) for x in operands]
    union = frozenset().union(*axes)
    return tuple(
        lax.pcast(x, tuple(sorted(union - own)), to="varying") if union - own else x
        for x, own in zip(operands, axes, strict=True)
    )


@functools.partial(jax.jit, static_argnums=(0, 1, 2), inline=True)
def _compute(spec: GemmSpec, rules: Policy, autodiff: str, *operands: Any) -> jax.Array:
    if autodiff == "jvp":
        return bind(spec, rules, operands)[0]
    return gemm_call(spec, rules, *operands)
