"""`gemm_call`: the custom_vjp around `gemm_p` that saves what the backward pass needs, and no more.

With z the pre-activation and z̄ = act'(z) · d̄ its cotangent:

    ā = alpha · z̄·bᵀ    b̄ = alpha · aᵀ·z̄    c̄ = beta · z̄    bias¯ = Σ z̄
    alphā = Σ z̄ ⊙ (a·b)    betā = Σ z̄ ⊙ c

A gated spec has two of them, z̄ = act'(z) · z_up · d̄ and z_up¯ = act(z) · d̄, and ā adds the second
product to the first before the one rounding. The matrix products are `gemm_p` again.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero

from jaxgemm import dtypes, epilogue, reference
from jaxgemm.policy import Policy
from jaxgemm.primitive import bind, bind_named
from jaxgemm.rules.derivative import operand_gradient
from jaxgemm.spec import GemmSpec


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def gemm_call(spec: GemmSpec, policy: Policy, *operands: Any) -> jax.Array:
    """d of a spec that saves nothing, with a hand-written backward pass."""
    return bind(spec, policy, operands)[0]


def _forward(spec: GemmSpec, policy: Policy, *primals: Any) -> tuple[jax.Array, Any]:
    operands = {n: p.value for n, p in zip(spec.operands, primals, strict=True)}
    wanted = {
        n
        for n, p in zip(spec.operands, primals, strict=True)
        if p.perturbed and jnp.issubdtype(p.value.dtype, jnp.floating)
    }
    saves_z = bool(wanted) and (spec.activation is not None or spec.gated)
    d, *saved = bind_named(spec.replace(save_preactivation=saves_z), policy, operands)
    # JAX keeps one tree of residuals for a call that is differentiated in several ways (a jitted
    # layer whose first input is data), so its structure must not depend on what is wanted: an
    # operand that is not needed is there, but empty, and so is a marker of one not wanted.
    markers = [jnp.zeros((n in wanted, 0), x.dtype) for n, x in operands.items()]
    needed = _needed(spec, wanted)
    kept = [x if n in needed else _empty(x) for n, x in operands.items()]
    num_saved = (2 if spec.gated else 1) if (spec.activation or spec.gated) else 0
    return d, (markers, kept, saved or [_empty(d)] * num_saved)


def _empty(x: jax.Array) -> jax.Array:
    return jnp.zeros((0,), x.dtype)


def _needed(spec: GemmSpec, wanted: set[str]) -> set[str]:
    """The operands whose values the backward pass reads."""
    needed = {"group_sizes", "row_start", "alpha"}
    needed |= {"beta"} if "c" in wanted else set()
    needed |= {"c"} if "beta" in wanted else set()
    needed |= {"b", "b_up"} if wanted & {"a", "alpha"} else set()
    needed |= {"a"} if wanted & {"b", "b_up", "alpha"} else set()
    # A row of ones has to know how many rows there are.
    needed |= {"a"} if "bias" in wanted and spec.ragged else set()
    return needed & set(spec.operands)


def _backward(spec: GemmSpec, policy: Policy, residuals: Any, d_bar: Any) -> tuple[Any, ...]:
    markers, kept, saved = residuals
    wanted = {n: x.dtype for n, x in zip(spec.operands, markers, strict=True) if x.shape[0]}
    if type(d_bar) is SymbolicZero or not wanted:
        return (None,) * len(spec.operands)
    needed = _needed(spec, set(wanted))
    operands = {n: x for n, x in zip(spec.operands, kept, strict=True) if n in needed}
    cotangents = _preactivation_cotangents(spec, saved, d_bar)
    gradients = {
        name: _gradient(spec, policy, operands, name, dtype, cotangents)
        for name, dtype in wanted.items()
    }
    return tuple(gradients.get(name) for name in spec.operands)


def _preactivation_cotangents(
    spec: GemmSpec, saved: list[jax.Array], d_bar: jax.Array
) -> list[jax.Array]:
    """z̄ (and z_up¯), each rounded once to the dtype of saved pre-activations."""
    if spec.activation is None and not spec.gated:
        return [d_bar]
    acc = jnp.promote_types(spec.residual_dtype, jnp.float32)
    z, ct = saved[0].astype(acc), d_bar.astype(acc)
    activation = epilogue.ACTIVATIONS[spec.activation] if spec.activation else None
    bars = [ct * saved[1].astype(acc) if spec.gated else ct]
    if activation:
        bars = [activation.pullback(z, bars[0])]
    if spec.gated:
        bars.append(ct * (activation.apply(z) if activation else z))
    return [bar.astype(spec.residual_dtype) for bar in bars]


def _gradient(
    spec: GemmSpec,
    policy: Policy,
    kept: dict[str, Any],
    name: str,
    dtype: Any,
    cotangents: list[jax.Array],
) -> jax.Array:
    z_bar = cotangents[0]
    acc = jnp.promote_types(z_bar.dtype, jnp.float32)
    if name == "bias":
        return _bias_gradient(spec, policy, kept, z_bar).astype(dtype)
    if name == "c":
        bar = z_bar.astype(acc)
        if "beta" in kept:
            beta = reference.align(kept["beta"].astype(acc), spec.labels("beta"), spec.labels("d"))
            bar = epilogue.scale(beta, bar)
        return _sum_to(spec, bar, "c").astype(dtype)
    if name == "beta":
        c = reference.align(kept["c"].astype(acc), spec.labels("c"), spec.labels("d"))
        return _sum_to(spec, z_bar.astype(acc) * c, "beta").astype(dtype)
    if name == "alpha":
        (product,) = bind_named(spec.product(jnp.dtype(acc)), policy, kept)
        return _sum_to(spec, z_bar.astype(acc) * product, "alpha").astype(dtype)
    return _matrix_gradient(spec, policy, kept, name, dtype, cotangents)


def _matrix_gradient(
    spec: GemmSpec,
    policy: Policy,
    kept: dict[str, Any],
    name: str,
    dtype: Any,
    cotangents: list[jax.Array],
) -> jax.Array:
    """The gradient for a, b or b_up."""
    scaled = "alpha" in kept and not spec.batch_labels("alpha")
    if "alpha" in kept and not scaled:
        # alpha differs between examples that may be summed over: it goes in before the sum.
        cotangents = [_times_alpha(spec, kept["alpha"], bar) for bar in cotangents]
    plain = spec.product(spec.out_dtype, scaled=scaled)
    gradient = functools.partial(operand_gradient, plain, policy, kept, scaled=scaled)
    if name == "b_up":
        return gradient("b", cotangents[1], dtype)[0]
    if name == "a" and spec.gated:
        acc = dtypes.accumulator(cotangents[0].dtype, kept["b"].dtype)
        up = operand_gradient(
            plain, policy, {**kept, "b": kept["b_up"]}, "a", cotangents[1], acc, scaled=scaled
        )
        return gradient("a", cotangents[0], dtype, plus=up[0])[0]
    return gradient(name, cotangents[0], dtype)[0]


def _times_alpha(spec: GemmSpec, alpha: jax.Array, bar: jax.Array) -> jax.Array:
    return (reference.align(alpha, spec.labels("alpha"), spec.labels("d")) * bar).astype(bar.dtype)


def _bias_gradient(
    spec: GemmSpec, policy: Policy, kept: dict[str, Any], z_bar: jax.Array
) -> jax.Array:
    acc = jnp.promote_types(z_bar.dtype, jnp.float32)
    if spec.ragged is None:
        return _sum_to(spec, z_bar.astype(acc), "bias")
    ones = jnp.ones((kept["a"].shape[-2], 1), z_bar.dtype)
    product = spec.bias_product(jnp.dtype(acc))
    (bar,) = operand_gradient(product, policy, {**kept, "a": ones}, "b", z_bar, acc)
    return bar[..., 0, :]


def _sum_to(spec: GemmSpec, x: jax.Array, name: str) -> jax.Array:
    """x, which has the dimensions of d, summed over those that an operand lacks."""
    kept = spec.labels(name)
    return x.sum([i for i, label in enumerate(spec.labels("d")) if label not in kept])


gemm_call.defvjp(_forward, _backward, symbolic_zeros=True)
