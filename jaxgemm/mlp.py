"""`mlp_p`: two GEMMs with an activation between them, differentiated as one.

    z = x·w_up + bias_up    h = act(z)    y = h·w_down + bias_down

Each for itself, the backward pass of the second writes h̄ = ȳ·w_downᵀ, that of the first reads it
for z̄ = act'(z) · h̄, and z̄ once more for its sum. Together, one product has both in its epilogue:

    z̄, bias_up¯ = act'(z) · (ȳ·w_downᵀ), Σ z̄      x̄ = z̄·w_upᵀ      w_up¯ = xᵀ·z̄
    w_down¯ = hᵀ·ȳ      bias_down¯ = Σ ȳ

The custom_vjp is entered by differentiation, as that of `gemm_p` is: by then the specs have their
batch axes. The primitive holds the two GEMMs as a jaxpr, where all that walks through jaxprs finds
them.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero
from jax.extend import core
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from jaxgemm.autodiff import Wanted, accumulator, differentiate, sum_to
from jaxgemm.policy import Policy
from jaxgemm.primitive import bind, bind_named
from jaxgemm.rules.batching import mapped, mapped_axis
from jaxgemm.rules.derivative import operand_gradient
from jaxgemm.spec import GemmSpec

mlp_p = Primitive("mlp")
mlp_p.multiple_results = True

# What the operands of the two specs are called here; the a of the second is h.
_UP = {"a": "x", "b": "w_up", "bias": "bias_up"}
_DOWN = {"b": "w_down", "bias": "bias_down"}


def operand_names(up: GemmSpec, down: GemmSpec) -> tuple[str, ...]:
    """What the operands of the primitive are called, in their order."""
    return (*(_UP[x] for x in up.operands), *(_DOWN[x] for x in down.operands if x in _DOWN))


def bind_mlp(
    up: GemmSpec, down: GemmSpec, policy: Policy, operands: tuple[Any, ...]
) -> tuple[jax.Array, ...]:
    """(y,), from the operands that `operand_names` lists."""

    def run(*operands: Any) -> jax.Array:
        return _run(up, down, policy, operands)[0]

    jaxpr = jax.make_jaxpr(run)(*operands)
    return tuple(mlp_p.bind(*operands, jaxpr=jaxpr, up=up, down=down, policy=policy))


def _run(
    up: GemmSpec, down: GemmSpec, policy: Policy, operands: tuple[Any, ...]
) -> tuple[jax.Array, ...]:
    """y and h, and z where `up` saves it."""
    count = len(up.operands)
    h, *saved = bind(up, policy, operands[:count])
    (y,) = bind(down, policy, (h, *operands[count:]))
    return y, h, *saved


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def mlp_call(up: GemmSpec, down: GemmSpec, policy: Policy, *operands: Any) -> tuple[jax.Array, ...]:
    """(y,), with a hand-written backward pass."""
    return bind_mlp(up, down, policy, operands)


def _forward(
    up: GemmSpec, down: GemmSpec, policy: Policy, *primals: Any
) -> tuple[tuple[jax.Array, ...], Any]:
    named = dict(zip(operand_names(up, down), primals, strict=True))
    wanted = Wanted.of(named)
    names = {name for name, _ in wanted.operands}
    steps_back = not names.isdisjoint(_UP.values())
    saves_z = steps_back and up.activation is not None
    values = tuple(p.value for p in primals)
    y, h, *saved = _run(up.replace(save_preactivation=saves_z), down, policy, values)
    needed = {"w_down"} if steps_back else set()
    needed |= {"w_up"} if "x" in names else set()
    needed |= {"x"} if "w_up" in names else set()
    kept = {name: named[name].value for name in needed}
    kept |= {"h": h} if "w_down" in names else {}
    kept |= {"z": saved[0]} if saves_z else {}
    return (y,), (wanted, kept)


def _backward(
    up: GemmSpec, down: GemmSpec, policy: Policy, residuals: Any, bars: Any
) -> tuple[Any, ...]:
    wanted, kept = residuals
    (y_bar,) = bars
    names, kinds = operand_names(up, down), dict(wanted.operands)
    if type(y_bar) is SymbolicZero:
        return (None,) * len(names)
    found = {}
    if (dtype := kinds.get("bias_down")) is not None:
        wide = y_bar.astype(accumulator(y_bar.dtype))
        found["bias_down"] = sum_to(down, wide, "bias").astype(dtype)
    if (dtype := kinds.get("w_down")) is not None:
        found["w_down"] = operand_gradient(down, policy, {"a": kept["h"]}, "b", y_bar, dtype)
    if not kinds.keys().isdisjoint(_UP.values()):
        z_bar, *total = _step_back(up, down, policy, kept, y_bar, kinds.get("bias_up"))
        found["bias_up"] = total[0] if total else None
        for name, wrt, other, role in (("x", "a", "w_up", "b"), ("w_up", "b", "x", "a")):
            if (dtype := kinds.get(name)) is not None:
                operands = {role: kept[other]}
                found[name] = operand_gradient(up, policy, operands, wrt, z_bar, dtype)
    return tuple(found.get(name) for name in names)


def _step_back(
    up: GemmSpec,
    down: GemmSpec,
    policy: Policy,
    kept: dict[str, Any],
    y_bar: jax.Array,
    sum_dtype: Any,
) -> tuple[jax.Array, ...]:
    """z̄ and, unless `sum_dtype` is None, its sum over all that shares bias_up."""
    product, roles = down.gradient_product("a", up.residual_dtype)
    sources = {"d": y_bar, "b": kept["w_down"]}
    operands = {"a": sources[roles[0]], "b": sources[roles[1]]}
    if up.activation is not None:
        product = product.plus("z").replace(activation=up.activation)
        operands["z"] = kept["z"]
    if sum_dtype is not None:
        # The axes that h has are those of `up`, in the same order.
        own = iter(up.batch)
        batch = tuple(
            tuple(sorted({*axis, "d_sum"})) if "d" in axis and "bias" in next(own) else axis
            for axis in product.batch
        )
        product = product.replace(batch=batch, sum_dtype=jnp.dtype(sum_dtype))
    return bind_named(product, policy, operands)


mlp_call.defvjp(_forward, _backward, symbolic_zeros=True)


@mlp_p.def_impl
def _impl(*operands: jax.Array, jaxpr: Any, **params: Any) -> list[jax.Array]:
    del params
    return core.jaxpr_as_fun(jaxpr)(*operands)


@mlp_p.def_abstract_eval
def _abstract_eval(*avals: Any, jaxpr: Any, **params: Any) -> list[Any]:
    del avals, params
    return jaxpr.out_avals


def _jvp(
    primals: tuple[Any, ...],
    tangents: tuple[Any, ...],
    *,
    jaxpr: Any,
    up: GemmSpec,
    down: GemmSpec,
    policy: Policy,
) -> tuple[Any, list[Any]]:
    del jaxpr
    return differentiate(functools.partial(mlp_call, up, down, policy), primals, tangents)


def _batch(
    operands: tuple[Any, ...],
    axes: tuple[Any, ...],
    *,
    jaxpr: Any,
    up: GemmSpec,
    down: GemmSpec,
    policy: Policy,
) -> tuple[tuple[jax.Array, ...], list[int]]:
    """As `gemm_p` is mapped: h has the axis if an operand of `up` has it, and y always."""
    del jaxpr
    known = zip(operand_names(up, down), axes, strict=True)
    named = {name: axis for name, axis in known if axis is not None}
    in_up = {role: named[name] for role, name in _UP.items() if name in named}
    in_down = {role: named[name] for role, name in _DOWN.items() if name in named}
    places = {}
    if in_up:
        up = mapped(up, in_up)
        places = {_UP[role]: mapped_axis(up, role) for role in in_up}
        in_down["a"] = mapped_axis(up, "d")
    down = mapped(down, in_down)
    places |= {_DOWN[role]: mapped_axis(down, role) for role in in_down if role in _DOWN}
    moved = tuple(
        jnp.moveaxis(x, named[name], places[name]) if name in named else x
        for name, x in zip(operand_names(up, down), operands, strict=True)
    )
    return bind_mlp(up, down, policy, moved), [mapped_axis(down, "d")]


ad.primitive_jvps[mlp_p] = _jvp
batching.primitive_batchers[mlp_p] = _batch
mlir.register_lowering(mlp_p, mlir.lower_fun(_impl, multiple_results=True))
