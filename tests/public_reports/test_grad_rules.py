"""Faults of derivative rules: modes, orders, and operands."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.test_util import check_grads

from jaxgemm import gemm
from tests import oracle
from tests.public_reports.helpers import integers, labels, normal, plain_gemm, same, sum_of

# --- grad-rule: holes in a custom rule.


def test_hessian_by_both_orders_of_modes() -> None:
    """GR01."""
    b = normal(3, 4)
    want = 2 * np.einsum("ik,jn,ln->ijkl", np.eye(2), b, b)
    loss = lambda x: (gemm(x, b) ** 2).sum()  # noqa: E731
    for hessian in (jax.hessian, lambda f: jax.jacrev(jax.jacrev(f))):
        np.testing.assert_allclose(hessian(loss)(jnp.ones((2, 3))), want, rtol=1e-5, atol=1e-5)


# GR02: direct forward mode is refused with JAX's own error, and `autodiff="jvp"` is the way out.
def test_forward_mode_is_refused_or_right() -> None:
    """GR02."""
    a, b, c, bias = normal(2, 3), normal(3, 4), normal(2, 4), normal(4)
    dots = normal(2, 3, seed=1), normal(3, 4, seed=1)
    options = {"alpha": 2.0, "beta": 0.5, "bias": bias}

    def run(a: jax.Array, b: jax.Array, autodiff: Any) -> jax.Array:
        return gemm(a, b, c, **options, activation="gelu", autodiff=autodiff)

    refused = functools.partial(run, autodiff="vjp")
    with pytest.raises(TypeError, match="forward-mode autodiff"):
        jax.jvp(refused, (a, b), dots)
    _, push = jax.linearize(refused, a, b)
    with pytest.raises(TypeError, match="forward-mode autodiff"):
        push(*dots)
    allowed = functools.partial(run, autodiff="jvp")
    want = jax.jvp(lambda a, b: plain_gemm(a, b, c, **options), (a, b), dots)
    out, push = jax.linearize(allowed, a, b)
    for got in (jax.jvp(allowed, (a, b), dots), (out, push(*dots))):
        for x, y in zip(got, want, strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5)
    for got, y in zip(
        jax.grad(sum_of(allowed), (0, 1))(a, b),
        jax.grad(sum_of(refused), (0, 1))(a, b),
        strict=True,
    ):
        np.testing.assert_allclose(got, y, rtol=1e-5, atol=1e-5)


def test_traced_scalars_leak_no_tracers() -> None:
    """GR03."""
    a, b = integers(3, 4), integers(4, 5, seed=1)
    total = oracle.f64(a) @ oracle.f64(b)
    loss = lambda a, s: gemm(a, b, alpha=s).sum()  # noqa: E731
    d_a, d_s = jax.jit(jax.grad(loss, (0, 1)))(a, 0.5)
    same(d_a, np.broadcast_to(0.5 * oracle.f64(b).sum(1), (3, 4)))
    same(d_s, total.sum())

    def scanned(s: jax.Array) -> jax.Array:
        step = lambda s, _: (s * 2, gemm(a, b, alpha=s).sum())  # noqa: E731
        return lax.scan(step, s, None, length=3)[1].sum()

    same(jax.jit(jax.grad(scanned))(0.5), (1 + 2 + 4) * total.sum())
    scales = jnp.array([0.0, 1.0, -2.0])
    same(jax.vmap(lambda s: gemm(a, b, alpha=s))(scales), np.asarray(scales)[:, None, None] * total)
    same(jax.vmap(jax.grad(loss, 1), (None, 0))(a, scales), np.full(3, total.sum()))


@pytest.mark.parametrize(
    ("has_c", "has_bias", "activation"),
    [(True, True, None), *((c, bias, "gelu") for c in (False, True) for bias in (False, True))],
    ids=labels("GR05", 5),
)
def test_each_operand_is_differentiated_alone_and_with_others(
    has_c: bool, has_bias: bool, activation: str | None
) -> None:
    operands = {"a": normal(2, 3), "b": normal(3, 4), "alpha": jnp.float32(1.5)}
    operands |= {"c": normal(2, 4, seed=1), "beta": jnp.float32(-0.5)} if has_c else {}
    operands |= {"bias": normal(4)} if has_bias else {}
    weights = normal(2, 4, seed=2)
    plain = oracle.gemm(**operands, activation=activation)
    z_bar = oracle.f64(weights) * oracle.ACTIVATIONS[activation][1](plain.z)
    a, b = oracle.f64(operands["a"]), oracle.f64(operands["b"])
    want = {"a": 1.5 * z_bar @ b.T, "b": 1.5 * a.T @ z_bar, "alpha": (z_bar * (a @ b)).sum()}
    want |= {"bias": z_bar.sum(0), "c": -0.5 * z_bar}
    want |= {"beta": (z_bar * oracle.f64(operands["c"])).sum()} if has_c else {}

    def loss(moving: dict[str, Any], fixed: dict[str, Any]) -> jax.Array:
        return (weights * gemm(**moving, **fixed, activation=activation)).sum()

    @jax.jit
    def gradients(operands: dict[str, Any]) -> list[dict[str, Any]]:
        chosen = [*({name} for name in operands), operands.keys(), operands.keys() - {"b"}]
        moving = [{name: operands[name] for name in names} for names in chosen]
        return [jax.grad(loss)(x, {n: operands[n] for n in operands.keys() - x}) for x in moving]

    results = gradients(operands)
    assert len(results) == len(operands) + 2
    for name, bar in ((name, bar) for bars in results for name, bar in bars.items()):
        assert (bar.shape, bar.dtype) == (operands[name].shape, operands[name].dtype)
        np.testing.assert_allclose(bar, want[name], rtol=1e-5, atol=1e-5, err_msg=name)


def test_one_operand_at_a_time_inside_a_scan() -> None:
    """GR06."""
    operands = {"x": normal(3, 3), "w": normal(3, 3, seed=1) / 2, "v": normal(3)}

    def scanned(named: dict[str, Any]) -> jax.Array:
        step = lambda x, _: (gemm(x, named["w"], bias=named["v"]), None)  # noqa: E731
        return lax.scan(step, named["x"], None, length=4)[0].sum()

    def unrolled(named: dict[str, Any]) -> jax.Array:
        x = named["x"]
        for _ in range(4):
            x = x @ named["w"] + named["v"]
        return x.sum()

    want = jax.grad(unrolled)(operands)
    for name, x in operands.items():
        got = jax.jit(jax.grad(lambda x, name=name: scanned({**operands, name: x})))(x)
        np.testing.assert_allclose(got, want[name], rtol=1e-5, atol=1e-5)


JAX_ACTIVATIONS: dict[str | None, Callable[[jax.Array], jax.Array]] = {
    "relu": jax.nn.relu,
    "gelu": jax.nn.gelu,
    "gelu_exact": functools.partial(jax.nn.gelu, approximate=False),
    "silu": jax.nn.silu,
    "sigmoid": jax.nn.sigmoid,
    "tanh": jnp.tanh,
    "relu2": lambda x: jax.nn.relu(x) ** 2,
}


@pytest.mark.parametrize("activation", JAX_ACTIVATIONS, ids="GR07 {0}".format)
def test_derivative_is_that_of_the_same_variant(activation: str) -> None:
    x, one = jnp.array([[-3.0], [-1.0], [-0.5], [0.0], [0.5], [2.0]]), jnp.ones((1, 1))
    want = jax.grad(sum_of(JAX_ACTIVATIONS[activation]))(x)
    for autodiff in ("vjp", "jvp"):
        run = functools.partial(gemm, activation=activation, autodiff=autodiff)
        np.testing.assert_allclose(jax.grad(sum_of(run))(x, one), want, atol=1e-6)
    with jax.enable_x64(True):
        run = functools.partial(gemm, activation=activation)
        wide, step = jnp.asarray(x, jnp.float64), 1e-6
        bar = jax.grad(sum_of(run))(wide, one.astype(jnp.float64))
        difference = (run(wide + step, one) - run(wide - step, one)) / (2 * step)
        smooth = np.asarray(x) != 0 if activation == "relu" else np.ones(x.shape, bool)
        np.testing.assert_allclose(
            np.asarray(bar)[smooth], np.asarray(difference)[smooth], atol=1e-6
        )


def test_keyword_operands_are_differentiable() -> None:
    """GR10."""
    a, b, c, bias = normal(2, 3), normal(4, 3), normal(2, 4), normal(4)
    options = {"alpha": 2.0, "beta": 0.5, "activation": "relu", "transpose_b": True}
    options |= {"out_dtype": jnp.float32}
    keyword = lambda a: gemm(a, b, c=c, bias=bias, **options).sum()  # noqa: E731
    partial = functools.partial(gemm, b=b, c=c, bias=bias, **options)
    plain = lambda a: jax.nn.relu(2 * a @ b.T + 0.5 * c + bias).sum()  # noqa: E731
    want = jax.grad(plain)(a)
    for f in (keyword, sum_of(partial)):
        np.testing.assert_allclose(jax.grad(f)(a), want, rtol=1e-6)
    named = jax.grad(lambda v: gemm(a, b, c=c, bias=v, **options).sum())(bias)
    again = jax.grad(lambda v: jax.nn.relu(2 * a @ b.T + 0.5 * c + v).sum())(bias)
    np.testing.assert_allclose(named, again, rtol=1e-6)


# (operands that are differentiated, activation, layout): second order in reverse, by differences.
CHECKED = [
    (("a", "b", "c", "bias", "alpha", "beta"), "silu", "NT"),
    (("b", "bias"), "tanh", "TN"),
    (("a", "c"), None, "TT"),
]


@pytest.mark.parametrize(("wanted", "activation", "layout"), CHECKED, ids=str)
def test_second_derivatives_agree_with_differences(
    wanted: tuple[str, ...], activation: str | None, layout: str
) -> None:
    with jax.enable_x64(True):
        operands = {"a": normal(2, 3, dtype="float64"), "b": normal(3, 4, dtype="float64")}
        operands |= {"c": normal(2, 4, dtype="float64"), "bias": normal(4, dtype="float64")}
        operands |= {"alpha": jnp.float64(0.7), "beta": jnp.float64(-0.4)}
        flags = {f"transpose_{x}": t == "T" for x, t in zip("ab", layout, strict=True)}
        for name in "ab":
            operands[name] = operands[name].T if flags[f"transpose_{name}"] else operands[name]
        fixed = {name: x for name, x in operands.items() if name not in wanted}

        def run(moving: dict[str, Any]) -> jax.Array:
            return gemm(**moving, **fixed, **flags, activation=activation)

        moving = {name: operands[name] for name in wanted}
        check_grads(jax.jit(run), (moving,), order=2, modes=["rev"], rtol=1e-4, atol=1e-4)
