"""Gradients of every case against float64, with the derived bound; and what they cost."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxgemm
from tests import oracle, oracle_gradients
from tests.cases import CASES, GROUPED, Case, GroupedCase

_DIFFERENTIABLE = [case for case in CASES if case.differentiable]


def _cotangent(shape: tuple[int, ...], dtype: Any) -> jax.Array:
    return jnp.asarray(np.random.default_rng(1).normal(size=shape), dtype)


@pytest.mark.parametrize("case", _DIFFERENTIABLE, ids=str)
def test_gradients_are_within_their_bounds(case: Case) -> None:
    operands = case.operands()
    scalars = {"alpha": jnp.float32(case.alpha)}
    if case.c:
        scalars["beta"] = jnp.float32(1 if case.beta is None else case.beta)

    def run(named: dict[str, jax.Array]) -> jax.Array:
        changed = {name: named[name] for name in scalars}
        return case.run({n: x for n, x in named.items() if n not in scalars}, **changed)

    named = {**operands, **scalars}
    d, pull = jax.vjp(run, named)
    cotangent = _cotangent(d.shape, d.dtype)
    (gradients,) = jax.jit(pull)(cotangent)
    residual = oracle_gradients.residual_of(operands["a"], operands["b"], d.dtype)
    expected = oracle_gradients.gemm(operands, cotangent, case.options, residual)
    assert gradients.keys() == named.keys()
    for name, gradient in gradients.items():
        oracle.check(gradient, expected[name], named[name].dtype)


@pytest.mark.parametrize("case", [c for c in GROUPED if c.a != "int8"], ids=str)
def test_grouped_gradients_are_within_their_bounds(case: GroupedCase) -> None:
    operands = case.operands()
    sizes = operands.pop("group_sizes")
    d, pull = jax.vjp(lambda named: case.run({**named, "group_sizes": sizes}), operands)
    cotangent = _cotangent(d.shape, d.dtype)
    (gradients,) = jax.jit(pull)(cotangent)
    residual = oracle_gradients.residual_of(operands["lhs"], operands["rhs"], d.dtype)
    expected = oracle_gradients.grouped(
        {**operands, "group_sizes": sizes}, oracle.f64(cotangent), case.options, residual
    )
    for name, gradient in gradients.items():
        oracle.check(gradient, expected[name], operands[name].dtype)
    for g, size in enumerate(case.sizes):
        if size == 0:
            assert not np.asarray(gradients["rhs"][g]).any(), "an empty group's gradient is 0"


@pytest.mark.parametrize("activation", ["silu", "gelu", None])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_gated_gradients_agree_with_float64(activation: str, dtype: str) -> None:
    rng = np.random.default_rng(0)
    x, gate, up = (
        jnp.asarray(rng.normal(size=s) / 3, dtype) for s in ((9, 20), (20, 11), (20, 11))
    )
    d, pull = jax.vjp(lambda *xs: jaxgemm.gated_gemm(*xs, activation=activation), x, gate, up)
    cotangent = _cotangent(d.shape, d.dtype)
    dx, dgate, dup = pull(cotangent)
    ct, x64, g64, u64 = (oracle.f64(v) for v in (cotangent, x, gate, up))
    f, slope = oracle.ACTIVATIONS[activation]
    bars = ct * (x64 @ u64) * slope(x64 @ g64), ct * f(x64 @ g64)
    expected = (
        bars[0] @ g64.T + bars[1] @ u64.T,
        x64.T @ bars[0],
        x64.T @ bars[1],
    )
    sizes = (
        np.abs(bars[0]) @ np.abs(g64.T) + np.abs(bars[1]) @ np.abs(u64.T),
        np.abs(x64.T) @ np.abs(bars[0]),
        np.abs(x64.T) @ np.abs(bars[1]),
    )
    # Both pre-activations and both cotangents are rounded once each to the residual dtype, and
    # these roundings enter as at most four relative errors of a product's terms, times the
    # largest slope and curvature (below 2).
    u = oracle.roundoff(dtype)
    for got, want, size in zip((dx, dgate, dup), expected, sizes, strict=True):
        assert got.dtype == dtype
        bound = u * np.abs(want) + 2 * 4 * (u + 4 * np.sqrt(20) * 2.0**-24) * size.max()
        assert (np.abs(oracle.f64(got) - want) <= bound).all()


def _num_gemms(f: Any, *args: Any) -> int:
    return sum(row.count for row in jaxgemm.explain(f, *args).rows)


def test_unneeded_gradients_cost_nothing() -> None:
    a, b, c, v = jnp.ones((4, 5)), jnp.ones((5, 6)), jnp.ones((4, 6)), jnp.ones(6)

    def loss(a: Any, b: Any, c: Any, v: Any, alpha: Any, beta: Any) -> jax.Array:
        return jaxgemm.gemm(a, b, c, bias=v, alpha=alpha, beta=beta, activation="gelu").sum()

    args = (a, b, c, v, 2.0, 0.5)
    counts = {argnum: _num_gemms(jax.grad(loss, argnum), *args) for argnum in range(6)}
    # The forward product, and one more for a, for b, and for alpha; the rest are sums.
    assert counts == {0: 2, 1: 2, 2: 1, 3: 1, 4: 2, 5: 1}
    assert _num_gemms(jax.grad(loss, (0, 1, 2, 3, 4, 5)), *args) == 4
    assert _num_gemms(loss, *args) == 1


def test_cotangents_that_a_sum_reads_too_are_rounded_before_it() -> None:
    a, b, v = (jnp.ones(shape, jnp.bfloat16) for shape in ((4, 5), (5, 6), (6,)))

    def barred(argnums: Any) -> list[str]:
        loss = lambda a, b, v: jaxgemm.gemm(a, b, bias=v, activation="gelu").sum()  # noqa: E731
        text = jax.jit(jax.grad(loss, argnums)).lower(a, b, v).as_text()
        return [x.split()[-1] for x in text.splitlines() if "optimization_barrier" in x]

    # Without a sum, XLA may fuse it as it likes.
    assert barred((0, 1, 2)) == ["tensor<4x6xbf16>"]
    assert barred((0, 1)) == []


def test_residuals_hold_only_what_the_wanted_gradients_read() -> None:
    a, b = jnp.ones((64, 32)), jnp.ones((32, 16))

    def saved(argnums: Any) -> set[tuple[int, ...]]:
        names = ("a", "b")
        fixed = {n: x for n, x in zip(names, (a, b), strict=True) if n not in argnums}
        _, pull = jax.vjp(
            lambda named: jaxgemm.gemm(**{**fixed, **named}),
            {n: x for n, x in zip(names, (a, b), strict=True) if n in argnums},
        )
        return {x.shape for x in jax.tree.leaves(pull) if x.size}

    assert saved({"a"}) == {(32, 16)}
    assert saved({"b"}) == {(64, 32)}


def test_one_jitted_layer_is_differentiated_in_several_ways() -> None:
    layer = jax.jit(lambda x, w: jaxgemm.gemm(x, w, activation="silu"))
    plain = jax.jit(lambda x, w: jax.nn.silu(x @ w))
    x, w = jnp.ones((3, 4)), jnp.eye(4) * 0.5 + 0.1

    def deep(layer: Any, w: jax.Array, v: jax.Array) -> jax.Array:
        # The first layer's input is data, the second's depends on w, the third's weights are data.
        return layer(layer(layer(x, w), v), jnp.eye(4)).sum()

    for argnums in (0, 1, (0, 1)):
        got, want = (jax.grad(lambda *ws, f=f: deep(f, *ws), argnums)(w, w) for f in (layer, plain))
        jax.tree.map(lambda p, q: np.testing.assert_allclose(p, q, rtol=1e-5), got, want)


@pytest.mark.parametrize("autodiff", ["vjp", "jvp"])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_gradient_of_a_beta_of_zero_is_ordinary_arithmetic_of_c(bad: float, autodiff: Any) -> None:
    x = jnp.ones((2, 3))
    c = jnp.ones((2, 2)).at[0, 1].set(bad)
    d_bar = jnp.asarray([[2.0, 0.5], [1.0, 1.0]])

    def run(x: jax.Array, beta: jax.Array) -> jax.Array:
        return jaxgemm.gemm(x, x, c, beta=beta, transpose_b=True, autodiff=autodiff)

    d, pull = jax.vjp(run, x, jnp.float32(0))
    x_bar, beta_bar = pull(d_bar)
    np.testing.assert_array_equal(np.asarray(d), 3)
    np.testing.assert_array_equal(np.asarray(x_bar), (d_bar + d_bar.T) @ x)
    np.testing.assert_array_equal(np.asarray(beta_bar), (np.asarray(c) * d_bar).sum())
