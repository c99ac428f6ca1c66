"""Faults of maps over a batch: one operand alone, any axis, several levels."""

import functools
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxgemm
from jaxgemm import gemm, grouped_gemm
from tests import oracle
from tests.public_reports.helpers import integers, normal, plain_gemm, same

# --- vmap-rule: operands that are mapped alone, along other axes, at several levels. More of it is
# in tests/test_mapped_properties.py.


def test_nested_maps_over_different_operands() -> None:
    """VM01."""
    a, b = integers(8, 4, 2), integers(5, 2, 3, seed=1)
    want = np.einsum("imk,jkn->ijmn", oracle.f64(a), oracle.f64(b))
    same(jax.vmap(jax.vmap(gemm, (None, 0)), (0, None))(a, b), want)
    same(jax.vmap(jax.vmap(gemm, (0, None)), (None, 0))(a, b), want.swapaxes(0, 1))


def test_nested_maps_with_unmapped_addends() -> None:
    """VM02."""
    a, b = integers(2, 3, 4), integers(5, 4, 3, seed=1)
    c, bias = integers(3, 3), integers(3)
    call = lambda a, b, c, v: gemm(a, b, c, bias=v)  # noqa: E731
    inner = jax.vmap(call, (0, None, None, None))
    product = np.einsum("imk,jkn->jimn", oracle.f64(a), oracle.f64(b))
    got = jax.vmap(inner, (None, 0, None, None))(a, b, c, bias)
    same(got, product + oracle.f64(c) + oracle.f64(bias))
    cs, biases = integers(5, 3, 3), integers(2, 3)
    inner = jax.vmap(call, (0, None, None, 0))
    got = jax.vmap(inner, (None, 0, 0, None))(a, b, cs, biases)
    same(got, product + oracle.f64(cs)[:, None] + oracle.f64(biases)[None, :, None])


def test_gradient_of_shared_weights_under_map_and_scan() -> None:
    """VM03."""
    a, w = normal(6, 3, 3), normal(3, 3) / 2

    def each(x: jax.Array, w: jax.Array) -> jax.Array:
        return lax.scan(lambda x, _: (gemm(x, w), None), x, None, length=2)[0]

    _, pullback = jax.vjp(lambda w: jax.vmap(lambda x: each(x, w))(a), w)
    (bar,) = pullback(jnp.ones((6, 3, 3)))
    assert bar.shape == w.shape
    want = sum(jax.grad(lambda w, x=x: (x @ w @ w).sum())(w) for x in a)
    np.testing.assert_allclose(bar, want, rtol=1e-5, atol=1e-5)


IN_AXES = [axes for axes in itertools.product((None, 0, 1, 2), repeat=2) if axes != (None, None)]


def test_every_axis_of_either_operand() -> None:
    """VM05: the value, and both gradients, for each of the pairs of axes."""
    core = {"a": integers(6, 3, 4), "b": integers(6, 4, 5, seed=1)}
    weights = integers(3, 6, 5, seed=2)

    @jax.jit
    def run(core: dict[str, jax.Array]) -> dict[str, Any]:
        results = {}
        for axes in IN_AXES:
            named = zip(core.values(), axes, strict=True)
            xs = [x[0] if axis is None else jnp.moveaxis(x, 0, axis) for x, axis in named]
            call = jax.vmap(gemm, axes, out_axes=1)
            loss = lambda a, b, call=call: (weights * call(a, b)).sum()  # noqa: E731
            results[str(axes)] = call(*xs), jax.grad(loss, (0, 1))(*xs)
        return results

    a, b, w = (oracle.f64(x) for x in (*core.values(), weights))
    results = run(core)
    for axes in IN_AXES:
        out, bars = results[str(axes)]
        left, right = (
            x[:1].repeat(6, 0) if axis is None else x for x, axis in zip((a, b), axes, strict=True)
        )
        same(out, np.moveaxis(left @ right, 0, 1))
        bar = np.moveaxis(w, 1, 0)
        want = bar @ right.swapaxes(1, 2), left.swapaxes(1, 2) @ bar
        for got, each, axis in zip(bars, want, axes, strict=True):
            same(got, each.sum(0) if axis is None else np.moveaxis(each, 0, axis))


def test_a_batch_of_one_is_not_special() -> None:
    """VM07, AL09."""
    b = normal(32, 16, dtype="float16")
    for size in (1, 4):
        a = normal(size, 8, 32, dtype="float16")
        out = jax.vmap(gemm, (0, None))(a, b)
        turned = jax.vmap(lambda x: gemm(b, x, transpose_a=True, transpose_b=True))(a)
        for i in range(size):
            oracle.check(out[i], oracle.gemm(a[i], b), "float16")
            oracle.check(turned[i].T, oracle.gemm(a[i], b), "float16")
    a, b = normal(5, 3, 7), normal(5, 7, 3)
    oracle.check(jax.vmap(gemm)(a, b), oracle.gemm(a, b))


def _derivatives(run: Callable[..., jax.Array], axes: Any, first: Any, args: Any) -> Any:
    """A mapped function, derivatives for some arguments, and derivatives of these."""
    mapped = jax.vmap(run, axes)

    def bars(*args: Any) -> Any:
        return jax.grad(lambda *xs: (mapped(*xs) ** 2).sum(), first)(*args)

    def squares(*args: Any) -> Any:
        return sum((x**2).sum() for x in bars(*args))

    return mapped(*args), bars(*args), jax.grad(squares, first)(*args)


def _assert_same_derivatives(run: Any, plain: Any, axes: Any, first: Any, args: Any) -> None:
    got, want = (
        jax.tree.leaves(jax.jit(functools.partial(_derivatives, f, axes, first))(args))
        for f in (run, plain)
    )
    for x, right in zip(got, want, strict=True):
        assert (x.shape, x.dtype) == (right.shape, right.dtype)
        np.testing.assert_allclose(x, right, rtol=1e-4, atol=1e-4 * float(jnp.abs(right).max()))


@pytest.mark.parametrize("mapped", ["bias", "alpha", "c", "beta", "a bias"], ids="VM04 {0}".format)
@pytest.mark.parametrize("autodiff", ["vjp", "jvp"])
def test_every_example_has_its_own_addend_or_scalar(mapped: str, autodiff: Any) -> None:
    operands: dict[str, Any] = {"a": normal(2, 3), "b": normal(3, 7), "c": normal(2, 7)}
    operands |= {"bias": normal(7), "alpha": jnp.float32(2), "beta": jnp.float32(3)}
    names = mapped.split()
    operands |= {n: normal(5, *operands[n].shape, seed=1) for n in names}
    axes = tuple(0 if n in names else None for n in operands)

    def run(*xs: Any) -> jax.Array:
        named = dict(zip(operands, xs, strict=True))
        return gemm(**named, activation="gelu", autodiff=autodiff)

    def plain(*xs: Any) -> jax.Array:
        return plain_gemm(**dict(zip(operands, xs, strict=True)))

    _assert_same_derivatives(run, plain, axes, tuple(range(6)), tuple(operands.values()))
    out = np.asarray(jax.vmap(run, axes)(*operands.values()))
    for i in range(5):
        entry = {n: np.asarray(x)[i] if n in names else x for n, x in operands.items()}
        oracle.check(out[i], oracle.gemm(**entry, activation="gelu"))


GATED_AXES = [axes for axes in itertools.product((0, None), repeat=3) if axes != (None,) * 3]


@pytest.mark.parametrize("axes", GATED_AXES, ids=str)
def test_gate_and_up_may_be_mapped_apart(axes: tuple[int | None, ...]) -> None:
    shapes = (2, 3), (3, 5), (3, 5)
    args = [
        normal(*(() if axis is None else (4,)), *shape, seed=i)
        for i, (axis, shape) in enumerate(zip(axes, shapes, strict=True))
    ]

    def plain(x: jax.Array, gate: jax.Array, up: jax.Array) -> jax.Array:
        return jax.nn.silu(x @ gate) * (x @ up)

    _assert_same_derivatives(jaxgemm.gated_gemm, plain, axes, (0, 1, 2), args)


@pytest.mark.parametrize("mapped", ["lhs", "rhs", "bias", "sizes"])
def test_one_operand_of_a_grouped_product_may_be_mapped(mapped: str) -> None:
    cores = {"lhs": (6, 2), "rhs": (3, 2, 5), "bias": (3, 5)}
    args = {n: normal(*([3] * (n == mapped)), *core, seed=1) for n, core in cores.items()}
    sizes = jnp.array([[1, 0, 3], [0, 6, 0], [4, 4, 4]])
    args["sizes"] = sizes if mapped == "sizes" else sizes[0]

    def run(lhs: Any, rhs: Any, bias: Any, sizes: Any) -> jax.Array:
        return grouped_gemm(lhs, rhs, sizes, bias=bias, activation="silu")

    def plain(lhs: Any, rhs: Any, bias: Any, sizes: Any) -> jax.Array:
        ends = jnp.cumsum(sizes)
        group = jnp.minimum(jnp.searchsorted(ends, jnp.arange(6), side="right"), 2)
        z = jnp.einsum("mk,mkn->mn", lhs, rhs[group]) + bias[group]
        return jnp.where(jnp.arange(6)[:, None] < ends[-1], jax.nn.silu(z), 0)

    axes = tuple(0 if name == mapped else None for name in args)
    _assert_same_derivatives(run, plain, axes, (0, 1, 2), tuple(args.values()))
