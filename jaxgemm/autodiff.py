"""`gemm_call`: the custom_vjp around `gemm_p` that saves what the backward pass needs, and no more.

With z the pre-activation and z̄ = act'(z) · d̄ its cotangent:

    ā = alpha · z̄·bᵀ    b̄ = alpha · aᵀ·z̄    c̄ = beta · z̄    bias¯ = Σ z̄
    alphā = Σ z̄ ⊙ (a·b)    betā = Σ z̄ ⊙ c

A gated spec has two of them, z̄ = act'(z) · z_up · d̄ and z_up¯ = act(z) · d̄, and ā adds the second
product to the first before the one rounding. The matrix products are `gemm_p` again.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_derivatives import SymbolicZero
from jax.interpreters import ad

from jaxgemm import dtypes, epilogue, reference
from jaxgemm.policy import Policy
from jaxgemm.primitive import Autodiff, bind, bind_named, gemm_p
from jaxgemm.rules.derivative import aligned_product, jvp, operand_gradient
from jaxgemm.spec import GemmSpec


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def gemm_call(spec: GemmSpec, policy: Policy, *operands: Any) -> tuple[jax.Array, ...]:
    """The outputs of a spec that saves nothing, with a hand-written backward pass."""
    return bind(spec, policy, operands)


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class Wanted:
    """The (name, dtype) of every operand that is differentiated."""

    operands: tuple[tuple[str, Any], ...]

    @classmethod
    def of(cls, primals: dict[str, Any]) -> "Wanted":
        """Of what a custom_vjp with symbolic zeros is given."""
        return cls(
            tuple(
                (name, p.value.dtype)
                for name, p in primals.items()
                if p.perturbed and jnp.issubdtype(p.value.dtype, jnp.floating)
            )
        )


def _forward(spec: GemmSpec, policy: Policy, *primals: Any) -> tuple[tuple[jax.Array, ...], Any]:
    operands = {n: p.value for n, p in zip(spec.operands, primals, strict=True)}
    wanted = Wanted.of(dict(zip(spec.operands, primals, strict=True)))
    saves_z = spec.function is not None or spec.gated
    d, *saved = bind_named(spec.replace(save_preactivation=saves_z), policy, operands)
    needed = _needed(spec, {name for name, _ in wanted.operands})
    kept = {name: x for name, x in operands.items() if name in needed}
    return (d,), (wanted, kept, saved)


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


def _backward(spec: GemmSpec, policy: Policy, residuals: Any, bars: Any) -> tuple[Any, ...]:
    wanted, kept, saved = residuals
    (d_bar,) = bars
    if type(d_bar) is SymbolicZero:
        return (None,) * len(spec.operands)
    cotangents = _preactivation_cotangents(spec, saved, d_bar)
    if cotangents[0] is not d_bar and not {"a", "b", "b_up"}.issuperset(dict(wanted.operands)):
        # For the sum of z̄ that is a bias's gradient, XLA (JAX 0.11.2, for an H200) would otherwise
        # write z̄ in the accumulator dtype and read it again to round it: nearly twice the bytes.
        cotangents = list(lax.optimization_barrier(cotangents))
    gradients = {
        name: _gradient(spec, policy, kept, name, dtype, cotangents)
        for name, dtype in wanted.operands
    }
    return tuple(gradients.get(name) for name in spec.operands)


def _preactivation_cotangents(
    spec: GemmSpec, saved: list[jax.Array], d_bar: jax.Array
) -> list[jax.Array]:
    """z̄ (and z_up¯), each rounded once to the dtype of saved pre-activations."""
    if spec.function is None and not spec.gated:
        return [d_bar]
    acc = accumulator(spec.residual_dtype)
    z, ct = saved[0].astype(acc), d_bar.astype(acc)
    bars = [ct * saved[1].astype(acc) if spec.gated else ct]
    if spec.function:
        bars = [spec.function.pullback(z, bars[0])]
    if spec.gated:
        bars.append(ct * (spec.function.apply(z) if spec.function else z))
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
    acc = accumulator(z_bar.dtype)
    if name == "bias":
        return _bias_gradient(spec, policy, kept, z_bar).astype(dtype)
    if name == "c":
        bar = z_bar.astype(acc)
        if "beta" in kept:
            beta = reference.align(kept["beta"].astype(acc), spec.labels("beta"), spec.labels("d"))
            bar = epilogue.scale(beta, bar)
        return sum_to(spec, bar, "c").astype(dtype)
    if name == "beta":
        c = reference.align(kept["c"].astype(acc), spec.labels("c"), spec.labels("d"))
        return sum_to(spec, z_bar.astype(acc) * c, "beta").astype(dtype)
    if name == "alpha":
        product = aligned_product(spec.product(acc), policy, kept)
        return sum_to(spec, z_bar.astype(acc) * product, "alpha").astype(dtype)
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

    def gradient(weight: str, wrt: str, bar: jax.Array, dtype: Any, plus: Any = None) -> jax.Array:
        operands = {**kept, "b": kept[weight]} if weight in kept else kept
        inner = spec.for_weight(weight)
        return operand_gradient(inner, policy, operands, wrt, bar, dtype, scaled=scaled, plus=plus)

    if name == "b_up":
        return gradient("b_up", "b", cotangents[1], dtype)
    if name == "a" and spec.gated:
        acc = dtypes.accumulator(cotangents[0].dtype, kept["b"].dtype)
        up = gradient("b_up", "a", cotangents[1], acc)
        return gradient("b", "a", cotangents[0], dtype, plus=up)
    return gradient("b", name, cotangents[0], dtype)


def _times_alpha(spec: GemmSpec, alpha: jax.Array, bar: jax.Array) -> jax.Array:
    factor = reference.align(alpha, spec.labels("alpha"), spec.labels("d"))
    return (factor * bar.astype(alpha.dtype)).astype(bar.dtype)


def _bias_gradient(
    spec: GemmSpec, policy: Policy, kept: dict[str, Any], z_bar: jax.Array
) -> jax.Array:
    acc = accumulator(z_bar.dtype)
    if spec.ragged is None:
        return sum_to(spec, z_bar.astype(acc), "bias")
    ones = jnp.ones((kept["a"].shape[-2], 1), z_bar.dtype)
    product = spec.bias_product(acc)
    bar = operand_gradient(product, policy, {**kept, "a": ones}, "b", z_bar, acc)
    return bar[..., 0, :]


def accumulator(dtype: Any) -> Any:
    """The dtype in which cotangents of this dtype are combined."""
    return dtypes.accumulator(jnp.dtype(dtype), jnp.dtype(dtype))


def sum_to(spec: GemmSpec, x: jax.Array, name: str) -> jax.Array:
    """x, which has the dimensions of d, summed over those that an operand lacks."""
    return reference.sum_out(x, spec.labels("d"), spec.labels(name))


gemm_call.defvjp(_forward, _backward, symbolic_zeros=True)


def _jvp(
    primals: tuple[Any, ...],
    tangents: tuple[Any, ...],
    *,
    spec: GemmSpec,
    policy: Policy,
    autodiff: Autodiff,
) -> tuple[Any, list[Any]]:
    """How `gemm_p` is differentiated: as the custom_vjp says, or by its own rules.

    The custom_vjp is entered here, by differentiation, and not by the call. Under a vmap it would
    be too late: JAX's rule for a mapped custom_vjp computes every example's gradient for shared
    weights and sums them. Here the spec already has its batch axes, and one product sums.
    """
    if autodiff == "jvp" or all(type(t) is ad.Zero for t in tangents):
        return jvp(primals, tangents, spec=spec, policy=policy)
    return differentiate(functools.partial(gemm_call, spec, policy), primals, tangents)


def differentiate(
    call: Callable[..., Any], primals: tuple[Any, ...], tangents: tuple[Any, ...]
) -> tuple[Any, list[Any]]:
    """The outputs of a custom_vjp and their tangents, for the operands whose tangents are not 0."""
    perturbed = [i for i, t in enumerate(tangents) if type(t) is not ad.Zero]

    def moved(*moving: Any) -> tuple[jax.Array, ...]:
        known = dict(zip(perturbed, moving, strict=True))
        return call(*(known.get(i, x) for i, x in enumerate(primals)))

    outputs, dots = jax.jvp(
        moved, tuple(primals[i] for i in perturbed), tuple(tangents[i] for i in perturbed)
    )
    return outputs, list(dots)


ad.primitive_jvps[gemm_p] = _jvp
