"""Faults of dtypes: narrow operands and results, and gradients."""

import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxgemm import dtypes, gemm, grouped_gemm
from tests import oracle
from tests.public_reports.helpers import INF, NAN, normal, same, sum_of

# --- narrow-dtype: integers that wrap, casts that saturate.


def test_default_result_of_int8_is_int32() -> None:
    """ND01, ND05."""
    a, b = jnp.array([[100, -128], [127, 1]], "int8"), jnp.array([[100, 2], [-128, -128]], "int8")
    same(gemm(a, b), jnp.array([[26384, 16584], [12572, 126]], "int32"))
    same(gemm(a[:1, :1], b[:1, :1]), jnp.array([[10000]], "int32"))
    lowest = jnp.full((3, 999), -128, "int8")
    same(gemm(lowest, lowest, transpose_b=True), np.full((3, 3), 999 * 128 * 128))
    out = grouped_gemm(lowest, lowest.T[None], np.array([2], np.int32))
    same(out, jnp.full((3, 3), 999 * 128 * 128, "int32").at[2].set(0))


# ND04: a result that the 8-bit float cannot hold becomes what `astype` makes of it: NaN for
# e4m3fn, which has no infinity, and infinity for e5m2.
@pytest.mark.parametrize(
    ("dtype", "values", "stored"),
    [
        pytest.param(
            "float8_e4m3fn",
            [448, 464, 465, 1000, -1000],
            [448, 448, NAN, NAN, NAN],
            id="ND04 e4m3fn",
        ),
        pytest.param(
            "float8_e5m2", [57344, 61439, 1e5, -1e5], [57344, 57344, INF, -INF], id="ND04 e5m2"
        ),
    ],
)
def test_overflow_of_an_8_bit_float(dtype: str, values: list[float], stored: list[float]) -> None:
    a, one = jnp.array(values, jnp.float32)[:, None], jnp.ones((1, 1))
    same(gemm(a, one, out_dtype=dtype)[:, 0], np.array(stored))
    same(jax.jit(functools.partial(gemm, out_dtype=dtype))(a, one)[:, 0], np.array(stored))


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_all_8_bit_floats_go_in_and_out(dtype: str) -> None:
    every = jnp.arange(256, dtype=jnp.uint8).view(dtype)[:, None]
    one = jnp.ones((1, 1), dtype)
    assert gemm(every, one).dtype == jnp.bfloat16
    same(gemm(every, one, out_dtype="float32"), every.astype("float32"))
    same(gemm(every, one, out_dtype=dtype), every)
    # Between two values the cast decides, and it is that of astype.
    between = every.astype("float32") * 1.03
    same(gemm(between, jnp.ones((1, 1)), out_dtype=dtype), between.astype(dtype))


@pytest.mark.parametrize("out", ["bfloat16", "float16", "float32"], ids="ND06 {0}".format)
def test_every_pair_of_8_bit_floats_in_every_layout(out: str) -> None:
    kinds = ("float8_e4m3fn", "float8_e5m2")

    @jax.jit
    def run(operands: Any) -> Any:
        results = {}
        for left, right in itertools.product(kinds, repeat=2):
            for ta, tb in itertools.product((False, True), repeat=2):
                a, b = operands[f"a {left}"], operands[f"b {right}"]
                a, b = a.T if ta else a, b.T if tb else b
                d = gemm(a, b, transpose_a=ta, transpose_b=tb, out_dtype=out)
                results[f"{left} {right} {ta} {tb}"] = d
        return results

    operands = {
        f"{n} {kind}": normal(8, 8, dtype=kind, seed=i)
        for i, n in enumerate("ab")
        for kind in kinds
    }
    for name, d in run(operands).items():
        left, right, *_ = name.split()
        oracle.check(d, oracle.gemm(operands[f"a {left}"], operands[f"b {right}"]), out)


# The support table of dtypes: what is in it has a result, what is not is one TypeError.
@pytest.mark.parametrize(
    "a", [*dtypes.OPERANDS, "int16", "int32", "uint8", "int4", "bool", "complex64", "float8_e4m3"]
)
def test_every_pair_of_dtypes_works_or_is_a_type_error(a: str) -> None:
    every = [*dtypes.OPERANDS, "int16", "uint8", "bool", "complex64"]
    with jax.enable_x64(True):
        for b in every:
            left, right = (jax.ShapeDtypeStruct((2, 2), jnp.dtype(x)) for x in (a, b))
            supported = {a, b} <= dtypes.OPERANDS.keys() and (a == "int8") == (b == "int8")
            if not supported:
                with pytest.raises(TypeError, match=r"^[ab]: dtype \w+ "):
                    jax.eval_shape(gemm, left, right)
                continue
            wide = {x for x in (a, b) if not x.startswith("float8")} or {"bfloat16"}
            want = jnp.int32 if a == "int8" else functools.reduce(jnp.promote_types, wide)
            assert jax.eval_shape(gemm, left, right).dtype == want


# --- grad-dtype: a gradient has the dtype of its primal, whatever else is wider.


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float8_e4m3fn"], ids="GD01 {0}".format)
def test_gradient_of_a_wider_result_has_the_operands_dtype(dtype: str) -> None:
    a, b = jnp.ones((3, 4), dtype), jnp.ones((4, 5), dtype)
    d_a, d_b = jax.grad(sum_of(functools.partial(gemm, out_dtype="float32")), (0, 1))(a, b)
    same(d_a, jnp.full((3, 4), 5, dtype))
    same(d_b, jnp.full((4, 5), 3, dtype))


def test_narrow_carry_of_a_scan_stays_narrow() -> None:
    """GD02."""
    x, w = normal(4, 4, dtype="bfloat16"), normal(4, 4, dtype="bfloat16", seed=1) / 2

    def scanned(x: jax.Array, w: jax.Array) -> jax.Array:
        return lax.scan(lambda x, _: (gemm(x, w), None), x, None, length=3)[0].sum()

    def unrolled(x: jax.Array, w: jax.Array) -> jax.Array:
        return gemm(gemm(gemm(x, w), w), w).sum()

    got, want = (jax.jit(jax.grad(f, (0, 1)))(x, w) for f in (scanned, unrolled))
    for bar, other in zip(got, want, strict=True):
        assert bar.dtype == jnp.bfloat16
        # Three bfloat16 gradients are added in another order.
        np.testing.assert_allclose(oracle.f64(bar), oracle.f64(other), rtol=0.05, atol=0.05)


def test_gradient_for_a_wide_operand_is_not_rounded_to_the_narrow_one() -> None:
    """GD03."""
    a, w = normal(512, 4, dtype="bfloat16"), normal(4, 5)
    bar = normal(512, 5, dtype="bfloat16") * jnp.where(jnp.arange(512) % 2, 1e-3, 1e3)[:, None]
    bar = bar.astype("bfloat16")
    _, pullback = jax.vjp(functools.partial(gemm, out_dtype="bfloat16"), a, w)
    d_a, d_w = pullback(bar)
    oracle.check(d_w, oracle.gemm(a, bar, transpose_a=True), "float32")
    oracle.check(d_a, oracle.gemm(bar, w, transpose_b=True), "bfloat16")


@pytest.mark.parametrize("scalar", [0.1, np.float64(0.1), np.float32(0.1)], ids="GD05 {0!r}".format)
def test_scalars_widen_nothing_in_64_bit_mode(scalar: Any) -> None:
    with jax.enable_x64(True):
        a, b, c = (normal(3, 3, seed=i) for i in range(3))
        assert a.dtype == jnp.float32

        def run(a: jax.Array, b: jax.Array, s: Any) -> jax.Array:
            return gemm(a, b, c, alpha=s, beta=s)

        eager, jitted = run(a, b, scalar), jax.jit(run)(a, b, scalar)
        assert eager.dtype == jitted.dtype == jnp.float32
        assert not eager.weak_type
        np.testing.assert_allclose(eager, jitted, rtol=1e-6)
        traced = jnp.asarray(scalar)
        bars = jax.grad(sum_of(run), (0, 1, 2))(a, b, traced)
        assert [bar.dtype for bar in bars] == [jnp.float32, jnp.float32, traced.dtype]
        want = oracle.f64(gemm(a, b)).sum() + oracle.f64(c).sum()
        np.testing.assert_allclose(bars[2], want, rtol=1e-5)


FLOAT_DTYPES = ["float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2"]


@pytest.mark.parametrize("x64", [False, True])
@pytest.mark.parametrize("a", FLOAT_DTYPES)
def test_dtypes_of_results_and_gradients_follow_one_rule(a: str, x64: bool) -> None:
    # Shapes alone, so that every pair is cheap.
    traced = jax.ShapeDtypeStruct((), jnp.dtype("float64" if x64 else "float32"))
    others = itertools.cycle([(2.0, "float32"), (np.float64(2), "bfloat16"), (traced, "float16")])
    with jax.enable_x64(x64):
        for b, out in itertools.product(FLOAT_DTYPES, [None, "float32", "float8_e4m3fn"]):
            scalar, addend = next(others)
            shapes = {"a": (2, 3), "b": (3, 4), "c": (2, 4), "bias": (4,)}
            kinds = {"a": a, "b": b, "c": addend, "bias": addend}
            named = {n: jax.ShapeDtypeStruct(s, jnp.dtype(kinds[n])) for n, s in shapes.items()}

            def run(named: Any, s: Any, out: Any = out) -> jax.Array:
                return gemm(**named, alpha=s, beta=s, activation="silu", out_dtype=out)

            wide = [x for x in (a, b) if not x.startswith("float8")] or ["bfloat16"]
            default = functools.reduce(jnp.promote_types, wide)
            out_and_bars = jax.eval_shape(
                lambda named, s, run=run: (
                    run(named, s),
                    jax.grad(lambda named: run(named, s).astype(jnp.float32).sum())(named),
                ),
                named,
                scalar,
            )
            shaped, bars = out_and_bars
            assert (shaped.dtype, shaped.weak_type) == (jnp.dtype(out or default), False)
            assert {n: x.dtype for n, x in bars.items()} == {n: x.dtype for n, x in named.items()}
