"""Right answers in float64, and how far a result may lie from them.

Written with numpy and Python loops only: jnp and lax fail some of the cases themselves.

The bound on D = act(alpha · A·B + beta · C + bias) is, element by element,

    |D − R| ≤ 1.01 u_out |R| + L (4 √K u_acc + 2 u_mul) S + smallest subnormal of out

with R the float64 answer, S = |alpha| |A|·|B| + |beta C| + |bias|, L the largest slope of act, and
unit roundoffs of the output, the accumulator, and the multiplied operands (u_mul is 0 when they
are multiplied as stored). It follows from the dtypes and K, never from what made a test pass.
A curved activation adds 4 u_acc |R|: exp and tanh are good to two units in the last place.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxgemm import dtypes, epilogue
from jaxgemm.epilogue import Clamp


def _erf(x: np.ndarray) -> np.ndarray:
    return np.vectorize(math.erf, otypes=[np.float64])(x) if x.size else x


def _sigmoid(x: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        return 1 / (1 + np.exp(-x))


def _gelu_inner(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    scale = math.sqrt(2 / math.pi)
    return np.tanh(scale * (x + 0.044715 * x**3)), scale * (1 + 3 * 0.044715 * x**2)


def _gelu(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + _gelu_inner(x)[0])


def _gelu_slope(x: np.ndarray) -> np.ndarray:
    t, inner = _gelu_inner(x)
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * inner


def _normal(x: np.ndarray) -> np.ndarray:
    return np.exp(-x * x / 2) / math.sqrt(2 * math.pi)


# name → (function, derivative), in float64. np.where keeps NaN where np.maximum would too.
ACTIVATIONS: dict[str | None, tuple[Callable[..., Any], Callable[..., Any]]] = {
    None: (lambda x: x, np.ones_like),
    "relu": (lambda x: np.maximum(x, 0), lambda x: (x > 0).astype(float)),
    "gelu": (_gelu, _gelu_slope),
    "gelu_exact": (
        lambda x: 0.5 * x * (1 + _erf(x / math.sqrt(2))),
        lambda x: 0.5 * (1 + _erf(x / math.sqrt(2))) + x * _normal(x),
    ),
    "silu": (
        lambda x: x * _sigmoid(x),
        lambda x: _sigmoid(x) * (1 + x * (1 - _sigmoid(x))),
    ),
    "sigmoid": (_sigmoid, lambda x: _sigmoid(x) * (1 - _sigmoid(x))),
    "tanh": (np.tanh, lambda x: 1 - np.tanh(x) ** 2),
    "relu2": (lambda x: np.maximum(x, 0) ** 2, lambda x: 2 * np.maximum(x, 0)),
}


def slope(activation: str | None, z: np.ndarray) -> float:
    """The largest |act'| near the values z."""
    if activation is None:
        return 1.0
    if activation == "relu2":
        return 2 * max(1.0, float(np.abs(z).max(initial=0)))
    return epilogue.ACTIVATIONS[activation].slope


def f64(x: Any) -> np.ndarray:
    """Any array as float64, exactly."""
    return np.asarray(jnp.asarray(x), np.float64)


def roundoff(dtype: Any) -> float:
    """The unit roundoff of an output dtype; 0 for integers."""
    name = jnp.dtype(dtype).name
    return dtypes.OPERANDS[name].unit_roundoff if name in dtypes.OPERANDS else 0.0


@dataclasses.dataclass
class Answer:
    """The float64 answer R, its allowance beside the final rounding, and what it came from.

    Attributes:
      value: R.
      slack: the terms of the bound that do not depend on the output dtype.
      z: the pre-activation.
      z_slack: the bound on an unrounded pre-activation.
    """

    value: np.ndarray
    slack: np.ndarray
    z: np.ndarray
    z_slack: np.ndarray

    def bound(self, out_dtype: Any) -> np.ndarray:
        """How far a result of this dtype may lie from `value`, element by element."""
        dtype = jnp.dtype(out_dtype)
        if not jnp.issubdtype(dtype, jnp.floating):
            return np.zeros_like(self.value)
        tiny = float(jnp.finfo(dtype).smallest_subnormal)
        return 1.01 * roundoff(dtype) * np.abs(self.value) + self.slack + tiny


def accumulator_roundoff(*operands: Any) -> float:
    """The unit roundoff in which products of these operands are summed."""
    kinds = {jnp.asarray(x).dtype.name for x in operands}
    if all(kind.startswith("int") for kind in kinds):
        return 0.0
    return 2.0**-53 if "float64" in kinds else 2.0**-24


def gemm(
    a: Any,
    b: Any,
    c: Any = None,
    *,
    alpha: Any = 1,
    beta: Any = None,
    bias: Any = None,
    activation: str | None = None,
    clamp: Clamp | None = None,
    transpose_a: bool = False,
    transpose_b: bool = False,
    u_mul: float = 0.0,
) -> Answer:
    """The answer of `jaxgemm.gemm` for operands as they are stored."""
    unit = accumulator_roundoff(a, b)
    left, right = (
        x.swapaxes(-1, -2) if t else x for x, t in ((f64(a), transpose_a), (f64(b), transpose_b))
    )
    k = left.shape[-1]
    with np.errstate(invalid="ignore", over="ignore"):
        alpha = float(alpha)
        z = alpha * np.matmul(left, right)
        size = abs(alpha) * np.matmul(np.abs(left), np.abs(right))
        beta = float(1 if beta is None else beta)
        if c is not None and beta != 0:
            z, size = z + beta * f64(c), size + np.abs(beta * f64(c))
        if bias is not None:
            z, size = z + f64(bias), size + np.abs(f64(bias))
        z_slack = (4 * math.sqrt(max(k, 1)) * unit + 2 * u_mul) * size
    value, slack = activated(activation, z, z_slack, unit)
    return Answer(*clamped(value, slack, clamp), z, z_slack)


def activated(
    activation: str | None, z: np.ndarray, z_slack: np.ndarray, unit: float
) -> tuple[np.ndarray, np.ndarray]:
    """act(z) for z with this bound on its error, and the bound on that of act(z)."""
    with np.errstate(invalid="ignore", over="ignore"):
        value = ACTIVATIONS[activation][0](z)
        slack = slope(activation, z[np.isfinite(z)]) * z_slack
        if activation not in (None, "relu", "relu2"):
            slack = slack + 4 * unit * np.abs(value)
    return value, slack


def clamped(
    value: np.ndarray, slack: np.ndarray, clamp: Clamp | None
) -> tuple[np.ndarray, np.ndarray]:
    """A value with this bound on its error, clamped: far outside the bounds there is none."""
    inside = clip(value, clamp)
    with np.errstate(invalid="ignore"):
        return inside, np.where(np.abs(inside - value) > slack, 0, slack)


def clip(x: np.ndarray, clamp: Clamp | None) -> np.ndarray:
    """x between two bounds, either of which may be None; NaN stay."""
    low, high = clamp or (None, None)
    x = x if low is None else np.where(x < low, low, x)
    return x if high is None else np.where(x > high, high, x)


def gated(x: Any, w_gate: Any, w_up: Any, *, activation: str | None = "silu") -> Answer:
    """The answer of `jaxgemm.gated_gemm`: a product of two terms that each have their bound."""
    gate = gemm(x, w_gate, activation=activation)
    up = gemm(x, w_up)
    value = gate.value * up.value
    slack = np.abs(gate.value) * up.slack + gate.slack * (np.abs(up.value) + up.slack)
    # The product of the two is rounded in the accumulator once more.
    return Answer(value, slack + 4 * accumulator_roundoff(x, w_gate) * np.abs(value), value, slack)


def grouped(
    lhs: Any,
    rhs: Any,
    group_sizes: Any,
    *,
    bias: Any = None,
    activation: str | None = None,
    clamp: Clamp | None = None,
    transpose_rhs: bool = False,
) -> Answer:
    """The answer of `jaxgemm.grouped_gemm`, group by group."""
    m, n = lhs.shape[0], rhs.shape[1 if transpose_rhs else 2]
    result = Answer(*(np.zeros((m, n)) for _ in range(4)))
    for g, rows in enumerate(group_rows(group_sizes, m)):
        part = gemm(
            lhs[rows],
            rhs[g],
            bias=None if bias is None else bias[g],
            activation=activation,
            clamp=clamp,
            transpose_b=transpose_rhs,
        )
        for field in dataclasses.fields(Answer):
            getattr(result, field.name)[rows] = getattr(part, field.name)
    return result


def group_rows(group_sizes: Any, m: int) -> list[slice]:
    """The rows of each group, clipped to m."""
    first, rows = 0, []
    for size in np.asarray(group_sizes).tolist():
        rows.append(slice(min(first, m), min(first + size, m)))
        first += size
    return rows


def check(result: Any, answer: Answer, out_dtype: Any = None) -> float:
    """Asserts that a result is right; returns the largest error over its bound.

    Positions of NaN and of infinities must agree. An infinity in place of a value that its dtype
    cannot hold is right.
    """
    dtype = jnp.dtype(out_dtype or result.dtype)
    assert jnp.dtype(result.dtype) == dtype, (result.dtype, dtype)
    assert result.shape == answer.value.shape, (result.shape, answer.value.shape)
    got = f64(result)
    with np.errstate(over="ignore", invalid="ignore"):
        # astype decides what overflows: to infinity, or to NaN in a dtype without infinities.
        rounded = (
            f64(jnp.asarray(answer.value, jnp.float32).astype(dtype))
            if (dtype.itemsize < 4 and jnp.issubdtype(dtype, jnp.floating))
            else answer.value
        )
    want = np.where(np.isfinite(rounded), answer.value, rounded)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want), "positions of NaN")
    infinite = np.isinf(got) | np.isinf(want)
    np.testing.assert_array_equal(got[infinite], want[infinite], "positions of infinities")
    finite = np.isfinite(want)
    error = np.abs(got[finite] - want[finite])
    bound = answer.bound(dtype)[finite]
    ratio = float((error / np.where(bound > 0, bound, 1)).max(initial=0))
    assert (error <= bound).all(), f"error is {ratio:.3g} times its bound"
    return ratio
