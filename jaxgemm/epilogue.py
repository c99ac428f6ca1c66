"""What happens between the accumulator and the store: alpha, beta·C, bias, activation, clamp.

Every formula is written once, on arrays in the accumulator dtype, and is used by the reference,
by the gradients and by the Pallas kernels. A new activation is a new row of `ACTIVATIONS`.
"""

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp

# The lowest and the highest value that a result may have; None where it has no such bound.
Clamp = tuple[float | None, float | None]


@dataclasses.dataclass(frozen=True)
class Activation:
    """An elementwise function that ends a GEMM.

    Attributes:
      name: what users write.
      apply: the function; NaN in, NaN out.
      slope: the largest |apply'|, which scales the error bound of a result.
      curvature: the largest |apply''|, which scales the error bound of a gradient.
      mosaic: the same function in operations that Mosaic GPU can compile, None where there is none.
      mosaic_pullback: the same as `pullback`, likewise.
    """

    name: str
    apply: Callable[[jax.Array], jax.Array]
    slope: float
    curvature: float
    mosaic: Callable[[jax.Array], jax.Array] | None
    mosaic_pullback: Callable[[jax.Array, jax.Array], jax.Array] | None

    def pullback(self, z: jax.Array, cotangent: jax.Array) -> jax.Array:
        """cotangent · apply'(z)."""
        return jax.vjp(self.apply, z)[1](cotangent)[0]

    def pushforward(self, z: jax.Array, tangent: jax.Array) -> jax.Array:
        """apply'(z) · tangent."""
        return jax.jvp(self.apply, (z,), (tangent,))[1]


def _relu2(x: jax.Array) -> jax.Array:
    return jnp.square(jax.nn.relu(x))


def _gelu_exact(x: jax.Array) -> jax.Array:
    return jax.nn.gelu(x, approximate=False)


def _mosaic_relu(x: jax.Array) -> jax.Array:
    # jnp.maximum passes NaN on; jax.nn.relu is a custom_jvp call, which Mosaic does not lower.
    return jnp.maximum(x, 0.0)


def _mosaic_relu2(x: jax.Array) -> jax.Array:
    return _mosaic_relu(x) * _mosaic_relu(x)


# With exp2, whose argument takes the factor of log2(e), as few instructions as there can be.
_LOG2_E = 1.4426950408889634
_GELU_LINEAR = -2 * _LOG2_E * 0.7978845608028654
_GELU_CUBIC = 0.044715 * _GELU_LINEAR


def _inverse(y: jax.Array) -> jax.Array:
    """1 / y for y >= 1, and 0 beyond 2^64: one instruction, where a division takes a dozen."""
    return jax.lax.rsqrt(y * y)


def _mosaic_gelu(x: jax.Array) -> jax.Array:
    # The tanh form of jax.nn.gelu, by (1 + tanh(u)) / 2 = 1 / (1 + exp(-2 u)).
    return x * _inverse(1.0 + jnp.exp2(x * (_GELU_LINEAR + _GELU_CUBIC * (x * x))))


# erfc(y) = t · q(t) · exp(-y²) with t = 1 / (1 + y · 0.4375), y >= 0: a minimax fit for y <= 14.2,
# beyond which float32 has only zeros, with a relative error below 2e-7. Constants of t⁰, t¹, …
_ERFC_SCALE = 0.4375 * 0.7071067811865476
_ERFC = (
    0.24679751694202423,
    0.24769562482833862,
    0.21456390619277954,
    0.22249305248260498,
    -0.03459201008081436,
    0.31673380732536316,
    -0.2854117751121521,
    0.0717199370265007,
)


def _lower_tail(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Φ(-|x|) = erfc(|x| / √2) / 2, computed without cancellation, and exp(-x² / 2)."""
    t = _inverse(1.0 + _ERFC_SCALE * jnp.abs(x))
    q = functools.reduce(lambda sum_, constant: sum_ * t + constant, reversed(_ERFC))
    density = jnp.exp2(x * x * (-0.5 * _LOG2_E))
    return 0.5 * t * q * density, density


def _mosaic_gelu_exact(x: jax.Array) -> jax.Array:
    lower, _ = _lower_tail(x)
    # Without a select, for which ptxas runs out of registers.
    return jnp.maximum(x, 0.0) * (1.0 - lower) + jnp.minimum(x, 0.0) * lower


def _mosaic_sigmoid(x: jax.Array) -> jax.Array:
    return _inverse(1.0 + jnp.exp2(-_LOG2_E * x))


def _mosaic_silu(x: jax.Array) -> jax.Array:
    return x * _mosaic_sigmoid(x)


# Where a sigmoid is 1, its own tail is exp2(exponent) times it, without cancellation. With larger
# exponents `_inverse` is 0 already, and what it is multiplied by must not be infinite.
_LARGEST_EXPONENT = 100.0


def _sigmoid_and_tail(exponent: jax.Array) -> tuple[jax.Array, jax.Array]:
    """s = 1 / (1 + exp2(exponent)), and 1 - s."""
    power = jnp.exp2(jnp.minimum(exponent, _LARGEST_EXPONENT))
    s = _inverse(1.0 + power)
    return s, power * s


def _pullback_relu(z: jax.Array, cotangent: jax.Array) -> jax.Array:
    return jnp.where(z > 0.0, cotangent, 0.0)


def _pullback_gelu(z: jax.Array, cotangent: jax.Array) -> jax.Array:
    # (z · s(u))' = s + z · s · (1 - s) · u', where `_GELU_…` are those of -log2(e) · u.
    square = z * z
    s, tail = _sigmoid_and_tail(z * (_GELU_LINEAR + _GELU_CUBIC * square))
    inner = (-1 / _LOG2_E) * (_GELU_LINEAR + 3.0 * _GELU_CUBIC * square)
    return cotangent * (s * (1.0 + tail * (z * inner)))


def _pullback_gelu_exact(z: jax.Array, cotangent: jax.Array) -> jax.Array:
    lower, density = _lower_tail(z)
    cdf = jnp.where(z > 0.0, 1.0 - lower, lower)
    return cotangent * (cdf + 0.3989422804014327 * (z * density))


def _pullback_silu(z: jax.Array, cotangent: jax.Array) -> jax.Array:
    s, tail = _sigmoid_and_tail(-_LOG2_E * z)
    return cotangent * (s * (1.0 + z * tail))


def _pullback_sigmoid(z: jax.Array, cotangent: jax.Array) -> jax.Array:
    s, tail = _sigmoid_and_tail(-_LOG2_E * z)
    return cotangent * (s * tail)


def _pullback_tanh(z: jax.Array, cotangent: jax.Array) -> jax.Array:
    t = jnp.tanh(z)
    return cotangent * (1.0 - t * t)


def _pullback_relu2(z: jax.Array, cotangent: jax.Array) -> jax.Array:
    return jnp.where(z > 0.0, 2.0 * z * cotangent, 0.0)


# slope and curvature: maxima over x ∈ [-20, 20], rounded up; `tests/test_epilogue.py` recomputes
# them. relu2 grows without bound: its slope and curvature hold for |x| <= 1 and scale with |x|.
_ROWS = (
    Activation("relu", jax.nn.relu, 1.0, 0.0, _mosaic_relu, _pullback_relu),
    Activation("gelu", jax.nn.gelu, 1.13, 0.8, _mosaic_gelu, _pullback_gelu),
    Activation("gelu_exact", _gelu_exact, 1.13, 0.8, _mosaic_gelu_exact, _pullback_gelu_exact),
    Activation("silu", jax.nn.silu, 1.1, 0.5, _mosaic_silu, _pullback_silu),
    Activation("sigmoid", jax.nn.sigmoid, 0.25, 0.1, _mosaic_sigmoid, _pullback_sigmoid),
    Activation("tanh", jnp.tanh, 1.0, 0.78, jnp.tanh, _pullback_tanh),
    Activation("relu2", _relu2, 2.0, 2.0, _mosaic_relu2, _pullback_relu2),
)
ACTIVATIONS = {row.name: row for row in _ROWS}
# The activations that map int32 to int32 exactly.
INTEGER_ACTIVATIONS = ("relu", "relu2")
_IDENTITY = Activation("identity", lambda x: x, 1.0, 0.0, lambda x: x, None)


@functools.cache
def function(activation: str | None, clamp: Clamp | None) -> Activation | None:
    """What ends a GEMM: the activation, and then the clamp; None where there is neither.

    The derivative of a clamp is 1 within its bounds, at them too, and 0 outside. NaN passes.
    """
    row = ACTIVATIONS[activation] if activation else None
    if clamp is None:
        return row
    inner = row or _IDENTITY
    low, high = clamp

    def apply(x: jax.Array) -> jax.Array:
        y = inner.apply(x)
        y = y if low is None else jnp.where(y < low, jnp.asarray(low, y.dtype), y)
        return y if high is None else jnp.where(y > high, jnp.asarray(high, y.dtype), y)

    def mosaic(x: jax.Array) -> jax.Array:
        assert inner.mosaic is not None
        y = inner.mosaic(x)
        y = y if low is None else jnp.maximum(y, low)
        return y if high is None else jnp.minimum(y, high)

    return dataclasses.replace(
        inner,
        name=f"{inner.name} in [{low}, {high}]",
        apply=apply,
        mosaic=None if inner.mosaic is None else mosaic,
        mosaic_pullback=None,
    )


def scale(factor: jax.Array, x: jax.Array) -> jax.Array:
    """factor · x, and exactly 0 where factor is 0, whatever x holds (the rule for beta)."""
    return jnp.where(factor == 0, jnp.zeros_like(x), factor * x)


def preactivation(
    product: jax.Array,
    alpha: jax.Array | None,
    c: jax.Array | None,
    beta: jax.Array | None,
    bias: jax.Array | None,
) -> jax.Array:
    """alpha · product + beta · c + bias, all in the accumulator dtype and broadcastable.

    Absent operands are None. beta = 0 means that c is not read: NaN in c never shows.
    """
    z = product if alpha is None else alpha * product
    if c is not None:
        z = z + (c if beta is None else scale(beta, c))
    return z if bias is None else z + bias
