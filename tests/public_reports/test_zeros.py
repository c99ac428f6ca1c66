"""Faults where something is zero: a size, alpha, or beta."""

import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgemm import gemm
from tests import oracle
from tests.public_reports.helpers import INF, NAN, integers, labels, normal, same, sum_of

# --- empty-dim: a size of 0 is refused, or an early exit forgets part of the epilogue.


def test_empty_contraction_scales_c() -> None:
    """ED03."""
    a, b, c = jnp.ones((2, 0)), jnp.ones((0, 2)), jnp.ones((2, 2))
    same(gemm(a, b, c, alpha=0, beta=2), np.full((2, 2), 2.0))
    same(gemm(a, b, c, beta=-0.5), np.full((2, 2), -0.5))
    same(gemm(a, b, c, beta=-0.5, activation="relu"), np.zeros((2, 2)))


def test_gradients_of_an_empty_contraction() -> None:
    """ED04."""
    c = normal(3, 3)
    operands = {"a": jnp.ones((3, 0)), "b": jnp.ones((0, 3)), "c": c}
    operands |= {"beta": jnp.float32(1), "bias": jnp.zeros(3)}
    out, pullback = jax.vjp(lambda named: gemm(**named), operands)
    same(out, c)
    (bars,) = pullback(jnp.ones((3, 3)))
    assert (bars["a"].shape, bars["b"].shape) == ((3, 0), (0, 3))
    same(bars["c"], np.ones((3, 3)))
    same(bars["bias"], np.full(3, 3.0))
    np.testing.assert_allclose(bars["beta"], np.asarray(c, np.float64).sum(), rtol=1e-5)


def test_empty_contraction_does_not_read_c_where_beta_is_zero() -> None:
    """ED05."""
    a, b, c = jnp.ones((2, 0)), jnp.ones((0, 2)), jnp.full((2, 2), NAN)
    for beta in (0, jnp.float32(0)):
        out, pullback = jax.vjp(lambda c, beta=beta: gemm(a, b, c, beta=beta), c)
        same(out, np.zeros((2, 2)))
        same(pullback(jnp.ones((2, 2)))[0], np.zeros((2, 2)))


def test_batch_of_empty_contractions_is_zero() -> None:
    """ED01."""
    for n in (1, 16, 70000):
        a, b = jnp.ones((10, 1, 0)), jnp.ones((10, 0, n))
        same(jax.vmap(gemm)(a, b), np.zeros((10, 1, n)))


def test_gradient_of_no_rows_or_no_columns_is_zero_of_the_right_shape() -> None:
    """ED07."""
    run = functools.partial(gemm, activation="gelu")
    for m, n in ((0, 32), (8, 0)):
        a, b, bias = (jnp.ones(s, "bfloat16") for s in ((m, 64), (64, n), (n,)))
        out, pullback = jax.vjp(lambda a, b, v: run(a, b, bias=v), a, b, bias)
        assert out.shape == (m, n)
        for bar, operand in zip(pullback(out), (a, b, bias), strict=True):
            same(bar, jnp.zeros_like(operand))


EMPTY = [
    sizes
    for sizes in itertools.product((0, 1, 5), (0, 1, 5), (0, 1, 5), (None, 0, 3))
    if 0 in sizes
]


@functools.partial(jax.jit, static_argnames="activation")
def _everything(operands: Any, cotangent: Any, activation: str | None) -> Any:
    """The result and every gradient, mapped over a batch if there is one."""

    def run(named: Any) -> jax.Array:
        call = functools.partial(gemm, activation=activation)
        single = lambda a, b, c: call(  # noqa: E731
            a, b, c, alpha=named["alpha"], beta=named["beta"], bias=named["bias"]
        )
        mapped = jax.vmap(single) if cotangent.ndim == 3 else single
        return mapped(named["a"], named["b"], named["c"])

    out, pullback = jax.vjp(run, operands)
    return out, pullback(cotangent)[0]


# Of the cross product every third by default.
@pytest.mark.parametrize(
    "index", [pytest.param(i, marks=[pytest.mark.slow] * bool(i % 3)) for i in range(len(EMPTY))]
)
def test_every_empty_size_has_its_epilogue_and_gradients(index: int) -> None:
    m, n, k, batch = EMPTY[index]
    activation = (None, "relu", "sigmoid")[index // 3 % 3]
    lead = () if batch is None else (batch,)
    shapes = {"a": (*lead, m, k), "b": (*lead, k, n), "c": (*lead, m, n), "bias": (n,)}
    operands = {name: integers(*shape) for name, shape in shapes.items()}
    operands |= {"alpha": jnp.float32(2), "beta": jnp.float32(-3)}
    cotangent = jnp.ones((*lead, m, n))
    out, bars = _everything(operands, cotangent, activation)
    meaning = {"alpha": 2, "beta": -3, "bias": operands["bias"], "activation": activation}
    answer = oracle.gemm(operands["a"], operands["b"], operands["c"], **meaning)
    oracle.check(out, answer)
    z_bar = oracle.ACTIVATIONS[activation][1](answer.z)
    a, b, c = (oracle.f64(operands[name]) for name in "abc")
    want = {
        "a": 2 * z_bar @ b.swapaxes(-1, -2),
        "b": 2 * a.swapaxes(-1, -2) @ z_bar,
        "c": -3 * z_bar,
        "bias": z_bar.sum(tuple(range(z_bar.ndim - 1))),
        "alpha": (z_bar * (a @ b)).sum(),
        "beta": (z_bar * c).sum(),
    }
    for name, bar in bars.items():
        assert bar.dtype == operands[name].dtype
        np.testing.assert_allclose(bar, want[name], rtol=1e-5, atol=1e-5, err_msg=name)


# --- beta-alpha-zero: beta = 0 must mean that c is not read. alpha is ordinary multiplication.


@pytest.mark.parametrize(("m", "n"), [(1, 1), (64, 64), (65, 63)], ids=labels("BZ01", 3))
def test_beta_zero_hides_nan_in_c(m: int, n: int) -> None:
    a, b = jnp.ones((m, 7)), jnp.ones((7, n))
    same(gemm(a, b, jnp.full((m, n), NAN), beta=0), np.full((m, n), 7.0))


@pytest.mark.parametrize("size", [(1, 1), (2, 2), (3, 9), (9, 1), (8, 8)], ids="BZ02 {0}".format)
def test_beta_zero_hides_nan_of_one_example_of_a_batch(size: tuple[int, int]) -> None:
    m, n = size
    a, b = normal(3, m, 4), normal(3, 4, n)
    c = normal(3, m, n).at[2].set(NAN)
    plain = jax.vmap(gemm)(a, b)
    for beta in (0, jnp.float32(0)):
        got = jax.vmap(lambda a, b, c, beta=beta: gemm(a, b, c, beta=beta))(a, b, c)
        same(got, plain)


def test_beta_zero_for_some_examples_of_a_batch_only() -> None:
    a, b, c = normal(2, 3), normal(3, 4), normal(2, 4)
    cs = jnp.stack([jnp.full_like(c, NAN), c])
    got = jax.vmap(lambda c, beta: gemm(a, b, c, beta=beta))(cs, jnp.array([0.0, 2.0]))
    oracle.check(got[0], oracle.gemm(a, b))
    oracle.check(got[1], oracle.gemm(a, b, c, beta=2))


# To the bit. Operands are arguments: XLA would multiply constants itself, and round differently.
@pytest.mark.parametrize("beta", [0, 0.0, -0.0, np.float32(0), "array", "traced"], ids=repr)
def test_beta_zero_is_the_call_without_c(beta: Any) -> None:
    wrap = jax.jit if beta == "traced" else lambda f: f
    a, b = normal(5, 7), normal(7, 6)
    plain = wrap(lambda a, b: gemm(a, b, activation="relu"))(a, b)
    value = jnp.zeros(()) if beta in ("array", "traced") else beta

    def run(c: jax.Array, a: jax.Array, b: jax.Array, beta: Any) -> jax.Array:
        return gemm(a, b, c, beta=beta, activation="relu")

    for hidden in (NAN, INF, -INF, 1e-40):
        c = jnp.full((5, 6), hidden, jnp.float32)
        assert np.asarray(wrap(run)(c, a, b, value)).tobytes() == np.asarray(plain).tobytes()
        same(wrap(jax.grad(sum_of(run)))(c, a, b, value), jnp.zeros_like(c))


def test_uninitialised_c_reaches_no_gradient() -> None:
    """BZ06."""
    a, b, c = normal(6, 6), normal(6, 6, seed=1), jnp.full((6, 6), NAN)
    loss = sum_of(lambda a, b, c: gemm(a, b, c, beta=0))
    value, bars = jax.value_and_grad(loss, (0, 1, 2))(a, b, c)
    want_value, want = jax.value_and_grad(sum_of(gemm), (0, 1))(a, b)
    same(value, want_value)
    same(bars[0], want[0])
    same(bars[1], want[1])
    same(bars[2], np.zeros((6, 6)))


# BZ04: the rule is that of arithmetic, not of BLAS: 0 · NaN is NaN, static or traced.
@pytest.mark.parametrize("alpha", [0, 0.0, np.float32(0), "array", "traced"], ids="BZ04 {0}".format)
def test_alpha_zero_multiplies(alpha: Any) -> None:
    a = jnp.ones((3, 3)).at[1, 2].set(NAN).at[2, 0].set(INF)
    b, c = jnp.ones((3, 2)), jnp.full((3, 2), 5.0)

    def run(alpha: Any) -> jax.Array:
        return gemm(a, b, c, alpha=alpha, beta=1)

    out = (
        jax.jit(run)(0.0)
        if alpha == "traced"
        else run(jnp.zeros(()) if alpha == "array" else alpha)
    )
    same(out, np.array([[5, 5], [NAN, NAN], [NAN, NAN]]))
