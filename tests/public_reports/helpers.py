"""What tests of several kinds of fault share: operands, comparisons, and groups."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxgemm import grouped_gemm
from tests import oracle

NAN, INF = np.nan, np.inf


def labels(report: str, count: int) -> list[str]:
    return [f"{report} case {i}" for i in range(count)]


def normal(*shape: int, dtype: Any = "float32", seed: int = 0) -> jax.Array:
    return jnp.asarray(np.random.default_rng((seed, *shape)).normal(size=shape), dtype)


def integers(*shape: int, dtype: Any = "float32", seed: int = 0) -> jax.Array:
    """Small integers: products and sums of a few hundred of them are exact."""
    return jnp.asarray(np.random.default_rng((seed, *shape)).integers(-3, 4, shape), dtype)


def same(got: Any, want: Any) -> None:
    """Asserts equality in value, with NaN equal to NaN, and in dtype if both are JAX arrays."""
    if isinstance(want, jax.Array):
        assert got.dtype == want.dtype
    np.testing.assert_array_equal(oracle.f64(got), oracle.f64(want))


def sum_of(function: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    return lambda *args, **kwargs: function(*args, **kwargs).sum()


def plain_gemm(
    a: Any, b: Any, c: Any = None, *, alpha: Any = 1.0, beta: Any = 1.0, bias: Any = None
) -> Any:
    """The same in jnp, with gelu."""
    z = alpha * (a @ b)
    z = z if c is None else z + beta * c
    return jax.nn.gelu(z if bias is None else z + bias)


@functools.partial(jax.jit, static_argnames="activation")
def grouped_vjp(
    lhs: Any, rhs: Any, sizes: Any, cotangent: Any, activation: str | None = None
) -> tuple[Any, ...]:
    """The result, the gradient for lhs and that for rhs."""
    run = functools.partial(grouped_gemm, out_dtype=cotangent.dtype, activation=activation)
    out, pullback = jax.vjp(lambda lhs, rhs: run(lhs, rhs, sizes), lhs, rhs)
    return out, *pullback(cotangent)


def check_groups(lhs: Any, rhs: Any, sizes: Any, cotangent: Any) -> None:
    """A grouped product and its gradients, group by group; NaN is put where nothing may look."""
    sizes = np.asarray(sizes, np.int32)
    lhs, rhs, cotangent = (np.array(x) for x in (lhs, rhs, cotangent))
    rows = oracle.group_rows(sizes, lhs.shape[0])
    used = rows[-1].stop
    lhs[used:], cotangent[used:], rhs[sizes == 0] = NAN, NAN, NAN
    out, d_lhs, d_rhs = (np.asarray(x) for x in grouped_vjp(lhs, rhs, sizes, cotangent))
    assert (d_lhs.dtype, d_rhs.dtype) == (lhs.dtype, rhs.dtype)
    assert not np.any(oracle.f64(out[used:])), "rows of no group"
    assert not np.any(oracle.f64(d_lhs[used:])), "their gradient"
    idle = [g for g, part in enumerate(rows) if part.start == part.stop]
    assert not np.any(oracle.f64(d_rhs[idle])), "gradients for weights of groups without rows"
    assert not np.signbit(oracle.f64(d_rhs[idle])).any(), "which are +0"
    for g, part in enumerate(rows):
        if g in idle:
            continue
        x, bar = lhs[part], cotangent[part]
        oracle.check(out[part], oracle.gemm(x, rhs[g]), out.dtype)
        oracle.check(d_lhs[part], oracle.gemm(bar, rhs[g], transpose_b=True), lhs.dtype)
        oracle.check(d_rhs[g], oracle.gemm(x, bar, transpose_a=True), rhs.dtype)


def draw_groups(m: int, k: int, n: int, g: int, dtype: str = "float32") -> tuple[Any, ...]:
    """lhs, rhs and a cotangent."""
    lhs, rhs = normal(m, k, dtype=dtype), normal(g, k, n, dtype=dtype)
    return lhs, rhs, normal(m, n, seed=1)
