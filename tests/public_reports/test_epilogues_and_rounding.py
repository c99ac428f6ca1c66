"""Faults of what is added, when it is rounded, and how precisely."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxgemm
from jaxgemm import gemm, grouped_gemm
from tests import oracle
from tests.public_reports.helpers import INF, NAN, integers, normal, same

# --- epilogue-order: what is added, to which axis, and when it is rounded.


def test_bias_runs_along_columns_of_any_shape() -> None:
    """EP04."""
    for m, n in ((40, 1), (1, 40), (5, 5)):
        a, b = normal(m, 16, dtype="bfloat16"), normal(16, n, dtype="bfloat16")
        bias = jnp.arange(n, dtype=jnp.bfloat16)
        oracle.check(gemm(a, b, bias=bias), oracle.gemm(a, b, bias=bias), "bfloat16")


def test_ones_of_everything_add_up() -> None:
    """EP05."""
    for m, n in ((128, 256), (256, 128)):
        a, b, c, bias = (jnp.ones(s) for s in ((m, 64), (64, n), (m, n), (n,)))
        same(gemm(a, b, c, alpha=1, beta=1, bias=bias), np.full((m, n), 66.0))


def test_every_row_gets_its_own_row_of_c() -> None:
    """EP06."""
    a, b, c = normal(3, 5), normal(5, 4), jnp.arange(12.0).reshape(3, 4)
    oracle.check(gemm(a, b, c, beta=1), oracle.gemm(a, b, c, beta=1))


def test_every_example_gets_its_own_c() -> None:
    """EP07."""
    a, b, c, bias = normal(2, 5, 7), normal(7, 48), normal(2, 5, 48), normal(48)
    out = jax.vmap(lambda a, c: gemm(a, b, c, bias=bias))(a, c)
    for i in range(2):
        oracle.check(out[i], oracle.gemm(a[i], b, c[i], bias=bias))


# EP08: "gelu" is the tanh form, as jax.nn.gelu, and "gelu_exact" the one with erf, on every path.
@pytest.mark.parametrize(
    ("activation", "values"),
    [
        pytest.param("gelu", [-0.1588080, 1.9545977, -0.0036373], id="EP08 tanh"),
        pytest.param("gelu_exact", [-0.1586553, 1.9544997, -0.0040497], id="EP08 exact"),
    ],
)
def test_gelu_is_the_one_that_its_name_says(activation: str, values: list[float]) -> None:
    x, one = jnp.array([[-1.0], [2.0], [-3.0]]), jnp.ones((1, 1))
    want = np.array(values)[:, None]
    sizes = np.array([3], np.int32)
    paths: dict[str, Callable[..., jax.Array]] = {
        "gemm": functools.partial(gemm, activation=activation),
        "saved": lambda x, w: jax.vjp(functools.partial(gemm, activation=activation), x, w)[0],
        "jvp": lambda x, w: gemm(x, w, activation=activation, autodiff="jvp"),
        "grouped": lambda x, w: grouped_gemm(x, w[None], sizes, activation=activation),
        "gated": lambda x, w: jaxgemm.gated_gemm(
            jnp.concatenate([x, jnp.ones((3, 1))], 1),
            jnp.array([[1.0], [0.0]]),
            jnp.array([[0.0], [1.0]]),
            activation=activation,
        ),
        "invariant": lambda x, w: gemm(x, w, activation=activation, batch_invariant=True),
    }
    for path, run in paths.items():
        np.testing.assert_allclose(run(x, one), want, atol=1e-6, err_msg=path)


def test_relu_passes_nan_and_knows_infinities() -> None:
    """EP09."""
    a = jnp.ones((4, 3)).at[1].set(INF).at[2, 1].set(NAN).at[3].set(-INF)
    out = gemm(a, jnp.ones((3, 2)), activation="relu")
    same(out, np.array([[3, 3], [INF, INF], [NAN, NAN], [0, 0]]))


# With integers everything is exact, so a term on the wrong side of alpha or a wrong axis shows.
@pytest.mark.parametrize(
    ("m", "n", "dtype"),
    [(3, 5, "float32"), *((4, 4, x) for x in ("float32", "bfloat16", "float16", "int8"))],
)
def test_algebra_of_the_epilogue_is_exact(m: int, n: int, dtype: str) -> None:
    a, b = integers(m, 6, dtype=dtype), integers(6, n, dtype=dtype, seed=1)
    addend = "int32" if dtype == "int8" else "float32"
    c = jnp.asarray(np.arange(m * n).reshape(m, n), addend)
    bias = jnp.asarray(100 * np.arange(1, n + 1), addend)
    out_dtype = "int32" if dtype == "int8" else "float32"
    product = oracle.f64(a) @ oracle.f64(b)

    def run(a: jax.Array, c: jax.Array) -> jax.Array:
        scalars = {"alpha": 2, "beta": -3}
        return gemm(a, b, c, bias=bias, activation="relu", out_dtype=out_dtype, **scalars)

    want = np.maximum(2 * product - 3 * oracle.f64(c) + oracle.f64(bias), 0)
    scanned = jax.jit(
        lambda: lax.scan(lambda _, x: (None, run(*x)), None, (a[None], c[None]))[1][0]
    )
    scaled = jax.jit(lambda: (run(a * 1, (c.T * 1).T) * 2 + 1 - 1) // 2)
    for got in (run(a, c), jax.jit(run)(a, c), scanned(), scaled()):
        assert got.dtype == jnp.dtype(out_dtype)
        same(got, want)


# --- accumulate-precision: sums are kept in float32 and rounded once, at the very end.


def test_sum_of_ones_does_not_stall() -> None:
    """AP04, AP05."""
    for k, in_bf16 in ((20000, 19968), (1024, 1024), (4097, 4096), (257, 256)):
        a, b = jnp.ones((1, k), "bfloat16"), jnp.ones((k, 1), "bfloat16")
        same(gemm(a, b, out_dtype="float32"), np.full((1, 1), float(k)))
        same(gemm(a, b), np.full((1, 1), float(in_bf16)))
    square = jnp.ones((256, 1024), "bfloat16")
    same(gemm(square, square, transpose_b=True), np.full((256, 256), 1024.0))


def test_wider_result_is_not_rounded_first() -> None:
    """AP08."""
    a, b = jnp.array([[256]], "bfloat16"), jnp.array([[258]], "bfloat16")
    for out in ("bfloat16", "float32"):
        same(gemm(a, b, out_dtype=out), np.array([[66048.0]]))
    third = jnp.full((1, 3), 1 / 3, "bfloat16")
    out = gemm(third, third.T, out_dtype="float32")
    np.testing.assert_allclose(out, 0.33463669, rtol=1e-7)
    large = jnp.full((1, 64), 64, "float16")
    same(gemm(large, large.T, out_dtype="float32"), np.array([[262144.0]]))


def test_partial_sums_may_exceed_the_range_of_the_result() -> None:
    a = jnp.concatenate([jnp.full((1, 600), 200.0), jnp.full((1, 600), -200.0)], 1)
    a = a.astype("float16").at[0, 0].set(201)
    out = gemm(a, jnp.ones((1200, 1), "float16"))
    same(out, np.array([[1.0]]))


def test_bias_and_activation_come_before_the_one_rounding() -> None:
    # 256 + 1 is 256 in bfloat16; with the bias it is 2 · 129 = 258, which bfloat16 has.
    a, b = jnp.ones((1, 257), "bfloat16"), jnp.ones((257, 1), "bfloat16")
    same(gemm(a, b, bias=jnp.ones(1, "bfloat16")), np.array([[258.0]]))
    sizes = np.array([1], np.int32)
    same(grouped_gemm(a, b[None], sizes, bias=jnp.ones((1, 1), "bfloat16")), np.array([[258.0]]))


@pytest.mark.parametrize("shape", [(4099, 3), (3,), (1, 3), (4099, 1), ()], ids=str)
def test_gradient_of_a_broadcast_c_is_summed_before_it_is_rounded(shape: tuple[int, ...]) -> None:
    a, b, c = (jnp.ones(s, "bfloat16") for s in ((4099, 2), (2, 3), shape))
    bar = jax.jit(jax.grad(lambda c: gemm(a, b, c, out_dtype="float32").sum()))(c)
    same(bar, jnp.full(shape, 4099 * 3 / c.size, "bfloat16"))


# --- precision-default: what precision is asked for is kept everywhere (a CPU is always exact).


def test_float32_is_float32_when_asked_for() -> None:
    """PD01."""
    a = jnp.array([[1.1111111, 2.2222222], [3.3333333, 4.4444444]])
    want = [[6.1728384, 13.580247], [13.580247, 30.864197]]
    np.testing.assert_allclose(gemm(a, a, transpose_b=True, precision="highest"), want, rtol=1e-6)
    with jax.default_matmul_precision("highest"):
        np.testing.assert_allclose(gemm(a, a, transpose_b=True), want, rtol=1e-6)


def test_jacobian_of_a_linear_map_is_its_matrix() -> None:
    """PD03."""
    matrix, x = normal(10, 100), normal(100)
    for transform, autodiff in ((jax.jacrev, "vjp"), (jax.jacrev, "jvp"), (jax.jacfwd, "jvp")):
        run = functools.partial(gemm, precision="highest", autodiff=autodiff)
        same(transform(lambda x, run=run: run(matrix, x[:, None])[:, 0])(x), matrix)
