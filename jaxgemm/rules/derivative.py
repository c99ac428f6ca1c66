"""Forward mode and transposition of `gemm_p`, written once for every spec.

With P the bilinear part, z = alpha · P(a, b) + beta · c + bias and d = act(z):

    ż = alpha · (P(ȧ, b) + P(a, ḃ)) + alphȧ · P(a, b) + beta · ċ + betȧ · c + biaṡ
    ḋ = act'(z) · ż

and for a gated spec, where d = act(z) · z_up, ḋ = act'(z) · ż · z_up + act(z) · ż_up.
Tangents are kept in the accumulator dtype until the one rounding at the end. Where the spec steps
back through an activation or sums rows, JAX differentiates all that follows the product. Each
P(·, ·) is a `gemm_p` again and is linear in one operand, so only such products are ever transposed:

    ā = the product of (d̄, b) whose rows and columns are those of a   (`spec.gradient_product`)
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.interpreters import ad

from jaxgemm import dtypes, epilogue, reference
from jaxgemm.policy import Policy
from jaxgemm.primitive import Autodiff, bind, bind_named, gemm_p
from jaxgemm.problem import Problem
from jaxgemm.spec import GemmSpec


def jvp(
    primals: tuple[Any, ...], tangents: tuple[Any, ...], *, spec: GemmSpec, policy: Policy
) -> tuple[list[jax.Array], list[Any]]:
    """Outputs and their tangents; a tangent that is zero is an `ad.Zero`."""
    operands = dict(zip(spec.operands, primals, strict=True))
    dots = {n: t for n, t in zip(spec.operands, tangents, strict=True) if type(t) is not ad.Zero}
    if not dots or dtypes.is_integer(operands["a"].dtype):
        out = list(bind(spec, policy, primals))
        return out, [ad.Zero.from_primal_value(x) for x in out]  # pyright: ignore
    if spec.pullback or spec.sum_dtype is not None:
        return _jvp_of_gradient(spec, policy, operands, dots)
    needs_z = spec.function is not None or spec.gated or spec.save_preactivation
    outputs = bind(spec.replace(save_preactivation=needs_z), policy, primals)
    out = list(outputs[: len(spec.outputs)])
    z_dot = preactivation_tangent(spec, policy, operands, dots, "b")
    acc = z_dot.dtype
    d_dot, z_dots = z_dot, [z_dot]
    if spec.function is not None:
        z = outputs[1].astype(acc)
        d_dot = spec.function.pushforward(z, z_dot)
    if spec.gated:
        z_up_dot = preactivation_tangent(spec, policy, operands, dots, "b_up")
        gate = outputs[1].astype(acc)
        if spec.function is not None:
            gate = spec.function.apply(gate)
        d_dot = d_dot * outputs[2].astype(acc) + gate * z_up_dot
        z_dots.append(z_up_dot)
    tangents_out = [d_dot, *(z_dots if spec.save_preactivation else ())]
    return out, [t.astype(x.dtype) for t, x in zip(tangents_out, out, strict=True)]


def _jvp_of_gradient(
    spec: GemmSpec, policy: Policy, operands: dict[str, Any], dots: dict[str, Any]
) -> tuple[list[jax.Array], list[Any]]:
    acc = dtypes.accumulator(operands["a"].dtype, operands["b"].dtype)

    def outputs(moving: dict[str, jax.Array]) -> list[jax.Array]:
        named = {**operands, **moving}
        product = aligned_product(spec.product(acc), policy, named)
        return list(reference.finish(spec, [product], named))

    return jax.jvp(outputs, ({name: operands[name] for name in dots},), (dots,))


def preactivation_tangent(
    spec: GemmSpec,
    policy: Policy,
    operands: dict[str, Any],
    dots: dict[str, Any],
    weight: str,
) -> jax.Array:
    """ż of a·weight, in the accumulator dtype and with all dimensions of d."""
    acc = dtypes.accumulator(operands["a"].dtype, operands["b"].dtype)
    target = spec.labels("d")
    shape = Problem.of(spec, [operands[n] for n in spec.operands]).shape("d")
    operands = {**operands, "b": operands[weight]}
    terms = []

    def align(name: str, x: jax.Array) -> jax.Array:
        return reference.align(x.astype(acc), spec.labels(name), target)

    def product(**changed: jax.Array) -> jax.Array:
        inner = spec.for_weight(weight).product(acc)
        return aligned_product(inner, policy, {**operands, **changed})

    for name, dot in (("a", dots.get("a")), ("b", dots.get(weight))):
        if dot is not None:
            term = product(**{name: dot})
            scaled = "alpha" in spec.operands
            terms.append(align("alpha", operands["alpha"]) * term if scaled else term)
    if "alpha" in dots:
        terms.append(align("alpha", dots["alpha"]) * product())
    if "c" in dots:
        dot = align("c", dots["c"])
        scaled = "beta" in spec.operands
        terms.append(epilogue.scale(align("beta", operands["beta"]), dot) if scaled else dot)
    if "beta" in dots:
        terms.append(align("beta", dots["beta"]) * align("c", operands["c"]))
    if "bias" in dots:
        terms.append(_bias_tangent(spec, policy, operands, dots["bias"]))
    return jnp.broadcast_to(sum(terms, jnp.zeros((), acc)), shape)


def _bias_tangent(
    spec: GemmSpec, policy: Policy, operands: dict[str, Any], dot: jax.Array
) -> jax.Array:
    """What bias adds to each element of d; for grouped specs, of each row its group's."""
    acc = dtypes.accumulator(operands["a"].dtype, operands["b"].dtype)
    if spec.ragged is None:
        return reference.align(dot.astype(acc), spec.labels("bias"), spec.labels("d"))
    ones = jnp.ones((operands["a"].shape[-2], 1), dot.dtype)
    changed = {**operands, "a": ones, "b": dot[..., None, :]}
    return aligned_product(spec.bias_product(acc), policy, changed)


def aligned_product(spec: GemmSpec, policy: Policy, operands: dict[str, Any]) -> jax.Array:
    """d of a spec, with size 1 along the batch axes that nothing in it but d has."""
    inner, labels = spec.without_lone_axes()
    (product,) = bind_named(inner, policy, operands)
    return reference.align(product, labels, spec.labels("d"))


def _transpose(
    cotangents: list[Any], *operands: Any, spec: GemmSpec, policy: Policy, autodiff: Autodiff
) -> list[Any]:
    del autodiff
    (ct,) = cotangents
    linear = [n for n, x in zip(spec.operands, operands, strict=True) if ad.is_undefined_primal(x)]
    assert linear in (["a"], ["b"]), (linear, spec)
    assert spec == spec.product(spec.out_dtype), spec
    (wrt,) = linear
    named = dict(zip(spec.operands, operands, strict=True))
    aval = named[wrt].aval
    if type(ct) is ad.Zero:
        return [ad.Zero(aval) if n == wrt else None for n in spec.operands]
    gradient = operand_gradient(spec, policy, named, wrt, ct, aval.dtype)
    # Along an axis that is summed and that only this operand has, every entry's gradient is alike.
    gradient = jnp.broadcast_to(gradient, aval.shape)
    return [gradient if n == wrt else None for n in spec.operands]


def operand_gradient(
    spec: GemmSpec,
    policy: Policy,
    operands: dict[str, Any],
    wrt: str,
    cotangent: jax.Array,
    dtype: Any,
    *,
    scaled: bool = False,
    plus: jax.Array | None = None,
) -> jax.Array:
    """The gradient for operand a or b: a product of the cotangent of z with the other one.

    Args:
      scaled: multiply by the operand alpha.
      plus: what to add, before the one rounding, of the gradient's shape.
    """
    product, roles = spec.gradient_product(wrt, jnp.dtype(dtype), scaled=scaled)
    sources = {**operands, "d": cotangent}
    changed = {"a": sources[roles[0]], "b": sources[roles[1]]}
    if plus is not None:
        product, changed["c"] = product.plus("c"), plus
    return aligned_product(product, policy, {**operands, **changed})


ad.primitive_transposes[gemm_p] = _transpose
