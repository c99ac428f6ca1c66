"""Every row of `epilogue.ACTIVATIONS`: values, Mosaic form, derivative, and the two constants."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgemm import checks, epilogue
from jaxgemm.epilogue import ACTIVATIONS, INTEGER_ACTIVATIONS, Activation, Clamp
from tests import oracle

ROWS = list(ACTIVATIONS.values())
MOSAIC = [row for row in ROWS if row.mosaic is not None]
# What users know these functions as.
JAX: dict[str, Callable[[jax.Array], jax.Array]] = {
    "relu": jax.nn.relu,
    "gelu": jax.nn.gelu,
    "gelu_exact": lambda x: jax.nn.gelu(x, approximate=False),
    "silu": jax.nn.silu,
    "sigmoid": jax.nn.sigmoid,
    "tanh": jnp.tanh,
    "relu2": lambda x: jax.nn.relu(x) ** 2,
}
GRID = np.linspace(-20, 20, 4001)
SPECIAL = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0])
F32_ROUNDOFF = 2.0**-24


def _name(row: Activation) -> str:
    return row.name


def _in_f64(function: Callable[[jax.Array], jax.Array], x: np.ndarray) -> np.ndarray:
    with jax.enable_x64(True):
        return np.asarray(jax.jit(function)(jnp.asarray(x, jnp.float64)))


def _in_f32(function: Callable[[jax.Array], jax.Array], x: np.ndarray) -> np.ndarray:
    return np.asarray(jax.jit(function)(jnp.asarray(x, jnp.float32)))


def _rounding(x: np.ndarray, value: np.ndarray) -> np.ndarray:
    """Eight roundings of the largest term: a negative x cancels to a tail that is far smaller."""
    return 8 * F32_ROUNDOFF * np.maximum(np.maximum(np.abs(x), np.abs(value)), 1)


def test_rows_are_those_that_jax_and_the_oracle_know() -> None:
    assert {row.name for row in ROWS} == JAX.keys() == oracle.ACTIVATIONS.keys() - {None}
    assert all(ACTIVATIONS[name].name == name for name in ACTIVATIONS)


@pytest.mark.parametrize("row", ROWS, ids=_name)
def test_value_and_derivative_are_the_oracles_in_float64(row: Activation) -> None:
    value, slope = oracle.ACTIVATIONS[row.name]
    grid = GRID[GRID != 0]
    np.testing.assert_allclose(_in_f64(row.apply, grid), value(grid), rtol=1e-12, atol=1e-14)
    derivative = _in_f64(lambda x: row.pullback(x, jnp.ones_like(x)), grid)
    np.testing.assert_allclose(derivative, slope(grid), rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("row", ROWS, ids=_name)
def test_value_is_accurate_in_float32(row: Activation) -> None:
    x = GRID.astype(np.float32).astype(np.float64)
    want = oracle.ACTIVATIONS[row.name][0](x)
    assert (np.abs(_in_f32(row.apply, x) - want) <= _rounding(x, want)).all()


@pytest.mark.parametrize("row", MOSAIC, ids=_name)
def test_mosaic_form_is_as_accurate_as_float32_allows(row: Activation) -> None:
    assert row.mosaic is not None
    x = GRID.astype(np.float32).astype(np.float64)
    want = oracle.ACTIVATIONS[row.name][0](x)
    assert (np.abs(_in_f32(row.mosaic, x) - want) <= _rounding(x, want)).all()


@pytest.mark.parametrize("row", MOSAIC, ids=_name)
def test_mosaic_form_agrees_at_nan_infinities_and_zeros(row: Activation) -> None:
    assert row.mosaic is not None
    np.testing.assert_array_equal(_in_f32(row.mosaic, SPECIAL), _in_f32(row.apply, SPECIAL))


@pytest.mark.parametrize("row", ROWS, ids=_name)
def test_mosaic_form_of_the_pullback_is_accurate_and_agrees_where_z_is_not_finite(
    row: Activation,
) -> None:
    form = row.mosaic_pullback
    assert form is not None
    x = np.concatenate([GRID, [-1e3, -1e10, 1e3, 1e10, -1e-30, 1e-30]])
    x = x[x != 0].astype(np.float32).astype(np.float64)
    value = _in_f32(lambda z: form(z, jnp.full_like(z, -3.0)), x)
    with np.errstate(over="ignore"):
        want = -3.0 * oracle.ACTIVATIONS[row.name][1](x)
    # As much as the bounds of `oracle_gradients` allow act' to be off.
    bound = 3 * 16 * F32_ROUNDOFF * np.maximum(row.slope, np.abs(want))
    np.testing.assert_array_less(np.abs(value - want), bound)
    got, same = (
        _in_f32(lambda z, f=f: f(z, jnp.full_like(z, 2.0)), SPECIAL) for f in (form, row.pullback)
    )
    np.testing.assert_allclose(got, same, rtol=4 * F32_ROUNDOFF)


def test_every_row_has_mosaic_forms() -> None:
    # Where there is none, kernels decline; a new row must have both or be named here knowingly.
    assert [row.name for row in ROWS if None in (row.mosaic, row.mosaic_pullback)] == []


@pytest.mark.parametrize("row", ROWS, ids=_name)
def test_nan_and_infinities_pass_as_in_jax(row: Activation) -> None:
    got = _in_f32(row.apply, SPECIAL)
    np.testing.assert_array_equal(got, _in_f32(JAX[row.name], SPECIAL))
    assert np.isnan(got[0]), "NaN in, NaN out"
    assert got[1] == (1 if row.name in ("sigmoid", "tanh") else np.inf)


@pytest.mark.parametrize("row", ROWS, ids=_name)
def test_slope_and_curvature_are_tight_upper_bounds(row: Activation) -> None:
    # relu2 grows without bound; its constants hold for |x| <= 1, up to the ends.
    x = np.linspace(-1, 1, 20001) if row.name == "relu2" else np.linspace(-20, 20, 200001)
    # A kink has no derivative.
    x = x[x != 0] if row.name.startswith("relu") else x

    def derivative(z: jax.Array) -> jax.Array:
        return row.pushforward(z, jnp.ones_like(z))

    def second(z: jax.Array) -> jax.Array:
        return jax.jvp(derivative, (z,), (jnp.ones_like(z),))[1]

    for bound, function in ((row.slope, derivative), (row.curvature, second)):
        largest = np.abs(_in_f64(function, x)).max()
        assert largest <= bound * (1 + 1e-12), f"{bound} is no bound: |.| reaches {largest}"
        assert bound <= 1.05 * largest, f"{bound} is loose: |.| reaches only {largest}"


@pytest.mark.parametrize("row", ROWS, ids=_name)
def test_pullback_is_the_gradient_of_the_jax_function(row: Activation) -> None:
    rng = np.random.default_rng(0)
    z = np.concatenate([rng.normal(size=500) * 4, [-3.0, -1.0, -0.5, 0.0, 0.5, 2.0]])
    z = jnp.asarray(z, jnp.float32)
    cotangent = jnp.asarray(rng.normal(size=z.shape), jnp.float32)
    want = jax.jit(jax.grad(lambda x: (cotangent * JAX[row.name](x)).sum()))(z)
    # z, the factors of a derivative, and the result are each rounded a few times.
    scale = np.abs(cotangent) * np.maximum(1, np.abs(z))
    for got in (jax.jit(row.pullback)(z, cotangent), jax.jit(row.pushforward)(z, cotangent)):
        assert (np.abs(np.asarray(got) - np.asarray(want)) <= 16 * F32_ROUNDOFF * scale).all()


def test_slope_of_relu_at_zero_is_zero() -> None:
    zero = jnp.zeros(1)
    assert ACTIVATIONS["relu"].pullback(zero, jnp.ones(1))[0] == 0
    assert ACTIVATIONS["relu"].pullback(zero + 1e-30, jnp.ones(1))[0] == 1


@pytest.mark.parametrize("name", INTEGER_ACTIVATIONS)
def test_integer_activations_are_exact_and_stay_integers(name: str) -> None:
    x = jnp.asarray([-(2**31), -7, -1, 0, 1, 7, 46340], jnp.int32)
    want = [0, 0, 0, 0, *((1, 7, 46340) if name == "relu" else (1, 49, 46340**2))]
    result = ACTIVATIONS[name].apply(x)
    assert result.dtype == jnp.int32
    np.testing.assert_array_equal(np.asarray(result), want)


@pytest.mark.parametrize("factor", [0.0, -0.0])
@pytest.mark.parametrize("hidden", [math.nan, math.inf, -math.inf, 1e-40, 3.0])
def test_scale_by_zero_hides_everything(factor: float, hidden: float) -> None:
    x = jnp.asarray([hidden, 1.0], jnp.float32)
    result = np.asarray(jax.jit(epilogue.scale)(jnp.float32(factor), x))
    np.testing.assert_array_equal(result, [0.0, 0.0])
    assert not np.signbit(result).any(), "exactly +0, so that adding it changes no bit"


def test_scale_by_anything_else_multiplies() -> None:
    x = jnp.asarray([2.0, math.nan, math.inf, -1.0])
    result = np.asarray(epilogue.scale(jnp.float32(-0.5), x))
    np.testing.assert_array_equal(result, [-1.0, math.nan, -math.inf, 0.5])
    factors = np.asarray(epilogue.scale(jnp.asarray([0.0, 2.0, math.nan, 0.0]), x))
    np.testing.assert_array_equal(factors, [0.0, math.nan, math.nan, 0.0])


# One term at a time and all of them, with numbers that are exact in float32.
@pytest.mark.parametrize("has_alpha", [False, True])
@pytest.mark.parametrize("c_and_beta", ["neither", "c", "c and beta", "c and beta = 0"])
@pytest.mark.parametrize("has_bias", [False, True])
def test_preactivation_adds_the_terms_that_there_are(
    has_alpha: bool, c_and_beta: str, has_bias: bool
) -> None:
    product = np.arange(6.0, dtype=np.float32).reshape(2, 3)
    c = np.full((2, 3), np.nan if c_and_beta.endswith("0") else 5.0, np.float32)
    bias = np.asarray([10.0, 20.0, 40.0], np.float32)
    beta = {"c and beta": -3.0, "c and beta = 0": 0.0}.get(c_and_beta)
    result = epilogue.preactivation(
        jnp.asarray(product),
        jnp.float32(2) if has_alpha else None,
        None if c_and_beta == "neither" else jnp.asarray(c),
        None if beta is None else jnp.float32(beta),
        jnp.asarray(bias) if has_bias else None,
    )
    want = product * (2 if has_alpha else 1)
    want = want + {"neither": 0, "c": 5, "c and beta": -15, "c and beta = 0": 0}[c_and_beta]
    np.testing.assert_array_equal(np.asarray(result), want + (bias if has_bias else 0))


@pytest.mark.parametrize("clamp", [(-1.0, 2.0), (None, 0.5), (0.5, None), (1.0, 1.0)])
@pytest.mark.parametrize("name", [None, "relu", "silu"])
def test_a_clamp_ends_every_form_of_the_function(name: str | None, clamp: Clamp) -> None:
    row = epilogue.function(name, clamp)
    assert row is not None
    assert row.mosaic is not None
    x = np.concatenate([GRID, [np.nan, 0.0]]).astype(np.float32)
    inner = oracle.ACTIVATIONS[name][0](x.astype(np.float64))
    want = oracle.clip(inner, clamp)
    for form in (row.apply, row.mosaic):
        got = _in_f32(form, x)
        near = np.abs(got - want)[: GRID.size] <= _rounding(x, want)[: GRID.size]
        assert near.all()
        np.testing.assert_array_equal(got[GRID.size :], want[GRID.size :])
    # Away from kinks the derivative is that of the function inside, and 0 outside.
    slopes = _in_f32(lambda x: row.pullback(x, jnp.ones_like(x)), x[: GRID.size])
    inside = (want == inner)[: GRID.size]
    assert not slopes[~inside].any()
    wanted = oracle.ACTIVATIONS[name][1](GRID)[inside & (GRID != 0)]
    np.testing.assert_allclose(slopes[inside & (GRID != 0)], wanted, rtol=1e-4, atol=1e-5)


def test_a_clamp_passes_gradients_at_its_bounds_and_keeps_integers() -> None:
    row = epilogue.function(None, (-1.0, 2.0))
    assert row is not None
    x = jnp.array([-1.5, -1.0, 0.0, 2.0, 2.5])
    assert row.pullback(x, jnp.ones(5)).tolist() == [0, 1, 1, 1, 0]
    clamped = row.apply(jnp.array([-(2**31), -1, 2, 2**31 - 1], jnp.int32))
    assert clamped.dtype == jnp.int32
    assert clamped.tolist() == [-1, -1, 2, 2]


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ((None, None), None),
        ((-math.inf, math.inf), None),
        ((-math.inf, 2), (None, 2.0)),
        ((np.float32(0.5), math.inf), (0.5, None)),
        ((math.inf, None), (math.inf, None)),
    ],
)
def test_bounds_that_bound_nothing_are_none(given: Any, kept: Clamp | None) -> None:
    assert checks.check_clamp(given) == kept


def test_without_activation_and_clamp_nothing_is_applied() -> None:
    assert epilogue.function(None, None) is None
    assert epilogue.function("relu", None) is ACTIVATIONS["relu"]
