"""Faults of sizes and layouts: odd, misaligned, or very many."""

import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxgemm import gemm, grouped_gemm
from tests import oracle
from tests.public_reports.helpers import (
    NAN,
    check_groups,
    draw_groups,
    integers,
    labels,
    normal,
    same,
    sum_of,
)

# --- edge-tile: sizes that are no multiples of a tile. tests/test_pallas_kernels.py does the same
# with kernels; here the public operations.


@pytest.mark.parametrize("k", [1, 63, 64, 65, 95, 96, 97], ids="ET04 {0}".format)
def test_one_row_a_group_for_any_depth(k: int) -> None:
    lhs, rhs = np.asarray(normal(32, k)), np.asarray(normal(32, k, 24))
    out = grouped_gemm(lhs, rhs, np.ones(32, np.int32))
    oracle.check(out, oracle.grouped(lhs, rhs, np.ones(32, int)))


@pytest.mark.parametrize("k", [1, 65, 100], ids="ET10 {0}".format)
def test_what_lies_beside_an_operand_is_not_read(k: int) -> None:
    frame = jnp.full((128, 128), NAN)
    inner = functools.partial(lax.dynamic_slice, start_indices=(3, 5))

    @jax.jit
    def run(a: jax.Array, b: jax.Array) -> list[jax.Array]:
        a, b = inner(a, slice_sizes=(40, k)), inner(b, slice_sizes=(k, 24))
        return [gemm(a, b), gemm(a.T, b.T, transpose_a=True, transpose_b=True)]

    a, b = normal(40, k), normal(k, 24, seed=1)
    framed = (frame.at[3 : 3 + x.shape[0], 5 : 5 + x.shape[1]].set(x) for x in (a, b))
    for out in run(*framed):
        oracle.check(out, oracle.gemm(a, b))


def test_outer_products_are_rounded_once() -> None:
    """ET02."""
    for m, n in ((1, 128), (128, 1)):
        a, b = normal(m, 1, dtype="float16"), normal(1, n, dtype="float16", seed=1)
        want = (oracle.f64(a) * oracle.f64(b)).astype(np.float16)
        same(gemm(a, b), want)


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn"], ids="ET06 {0}".format)
def test_ones_count_the_depth(dtype: str) -> None:
    for k in (1, 31, 1024, 1055):
        out = gemm(jnp.ones((9, k), dtype), jnp.ones((k, 1), dtype), out_dtype="float32")
        same(out, np.full((9, 1), float(k)))


# A row knows its number and a column its own, so a tile in a wrong place shows, to the bit.
@pytest.mark.parametrize(("m", "n"), [(1, 1), (7, 300), (129, 65), (513, 3)])
def test_coordinates_stay_where_they_are(m: int, n: int) -> None:
    rows, columns = np.arange(m, dtype=np.float32), np.arange(n, dtype=np.float32)
    a = np.stack([rows, np.ones_like(rows)], 1)
    b = np.stack([np.ones_like(columns), 1000 * columns])
    want = rows[:, None] + 1000 * columns
    same(gemm(a, b), want)
    stacked = jax.vmap(lambda x: gemm(a, b, x, beta=1))(
        jnp.array([[[0.0]], [[0.5]]]) + jnp.zeros((m, n))
    )
    same(stacked, np.stack([want, want + 0.5]))


@pytest.mark.parametrize("num_groups", [1, 3, 40])
def test_coordinates_stay_in_their_group(num_groups: int) -> None:
    m, n = 301, 5
    rng = np.random.default_rng(num_groups)
    lhs = np.stack([np.arange(m, dtype=np.float32), np.ones(m, np.float32)], 1)
    rhs = np.ones((num_groups, 2, n), np.float32)
    rhs[:, 1] = 1000 * np.arange(num_groups)[:, None]
    run = jax.jit(grouped_gemm)
    for _ in range(8):
        cuts = np.sort(rng.integers(0, m + 40, num_groups))
        sizes = np.diff([0, *cuts]).astype(np.int32)
        want = np.zeros((m, n))
        for g, rows in enumerate(oracle.group_rows(sizes, m)):
            want[rows] = lhs[rows, :1] + 1000 * g
        same(run(lhs, rhs, sizes), want)


@pytest.mark.parametrize("sizes", [[1], [133], [1, 133, 7, 0, 2]], ids="ET14 {0}".format)
def test_weight_gradient_of_groups_of_odd_sizes(sizes: list[int]) -> None:
    check_groups(*_with_sizes(draw_groups(sum(sizes), 32, 24, len(sizes), "bfloat16"), sizes))


def _with_sizes(drawn: tuple[Any, ...], sizes: list[int]) -> tuple[Any, ...]:
    lhs, rhs, cotangent = drawn
    return lhs, rhs, sizes, cotangent


# --- alignment-layout: odd strides, slices, broadcasts, transposes, axes of size 1.


def test_stride_of_a_broadcast_or_single_axis_means_nothing() -> None:
    """AL06."""
    a0, b = normal(3, 5), normal(4, 5, 2)
    want = [oracle.gemm(a0, b[i]) for i in range(4)]
    for run in (jax.vmap(gemm), jax.jit(jax.vmap(gemm))):
        out = run(jnp.broadcast_to(a0, (4, 3, 5)), b)
        for i in range(4):
            oracle.check(out[i], want[i])
        out = run(jnp.expand_dims(a0.T.T, 0), b[:1])
        oracle.check(out[0], want[0])


def test_slices_and_transposes_before_the_product() -> None:
    """AL01, AL07."""
    x, w, bias = normal(12, 97, dtype="float16"), normal(41, 24, dtype="float16"), normal(24)

    @jax.jit
    def run(x: jax.Array, w: jax.Array) -> dict[str, jax.Array]:
        part = x[:, 31:72]
        return {
            "sliced": gemm(part, w, bias=bias),
            "turned": gemm(w, part, transpose_a=True, transpose_b=True, bias=bias[:12]),
            "produced": gemm(part.T, w.T, transpose_a=True, transpose_b=True, bias=bias),
            "strided": gemm(part[::2, ::-1], w[::-1], bias=bias),
        }

    out, part = run(x, w), np.asarray(x)[:, 31:72]
    for name in ("sliced", "produced"):
        oracle.check(out[name], oracle.gemm(part, w, bias=bias), "float16")
    oracle.check(out["strided"], oracle.gemm(part[::2], w, bias=bias), "float16")
    turned = oracle.gemm(w, part, transpose_a=True, transpose_b=True, bias=bias[:12])
    oracle.check(out["turned"], turned, "float16")


# Any of the sizes 1 … 17; AL02 asks for 1 … 9, AL09 for a batch stride of 84 bytes.
ODD = [
    *np.random.default_rng(0).integers(1, 18, (10, 3)).tolist(), (2, 3, 4), (3, 3, 7), (1, 9, 1),
]  # fmt: skip


@pytest.mark.parametrize(("m", "n", "k"), ODD, ids=labels("AL02", len(ODD)))
def test_odd_sizes_in_every_layout(m: int, n: int, k: int) -> None:
    dtype = ("float32", "bfloat16", "float16")[(m + n + k) % 3]
    a, b = integers(2, m, k, dtype=dtype), integers(2, k, n, dtype=dtype, seed=1)
    want = oracle.f64(a) @ oracle.f64(b)

    @jax.jit
    def run(a: jax.Array, b: jax.Array) -> dict[Any, jax.Array]:
        results = {}
        for ta, tb in itertools.product((False, True), repeat=2):
            left, right = a.mT if ta else a, b.mT if tb else b
            flags = {"transpose_a": ta, "transpose_b": tb, "out_dtype": "float32"}
            results[f"{ta} {tb}"] = gemm(left, right, **flags)
            results[f"{ta} {tb} mapped"] = jax.vmap(functools.partial(gemm, **flags))(left, right)
        return results

    for out in run(a, b).values():
        same(out, want)


def test_groups_that_begin_on_odd_rows() -> None:
    """AL04."""
    sizes = [1, 3, 5, 7, 9, 2]
    for k, n in ((36, 36), (36, 40)):
        lhs, rhs, cotangent = draw_groups(sum(sizes), k, n, len(sizes), "bfloat16")
        check_groups(lhs, rhs, sizes, cotangent)


@pytest.mark.parametrize(("m", "n", "k"), [(1, 6, 5), (6, 1, 5), (6, 5, 1)], ids=labels("AL10", 3))
def test_gradients_with_one_row_column_or_term(m: int, n: int, k: int) -> None:
    a, b, bar = normal(m, k), normal(k, n), normal(m, n, seed=1)
    out, pullback = jax.vjp(gemm, a, b)
    oracle.check(out, oracle.gemm(a, b))
    d_a, d_b = pullback(bar)
    oracle.check(d_a, oracle.gemm(bar, b, transpose_b=True))
    oracle.check(d_b, oracle.gemm(a, bar, transpose_a=True))


# --- size-limit: many small products; memory that grows with the number of groups.


def test_very_many_products_of_single_numbers() -> None:
    """SL10, SL03."""
    a, b = normal(70001, 1, 1), normal(70001, 1, 1, seed=1)
    same(jax.vmap(gemm)(a, b), np.asarray(a) * np.asarray(b))
    a, b = (
        integers(2, 33000, 2, 2, dtype="float16"),
        integers(2, 33000, 2, 2, dtype="float16", seed=1),
    )
    same(jax.vmap(jax.vmap(gemm))(a, b), oracle.f64(a) @ oracle.f64(b))


def test_memory_does_not_grow_with_the_number_of_groups() -> None:
    """SL09."""
    m, k, weights = 4096, 64, 128 * 64
    used = {}
    for g in (4, 64):
        n = weights // g
        lhs, rhs = (jax.ShapeDtypeStruct(s, jnp.bfloat16) for s in ((m, k), (g, k, n)))
        sizes = jax.ShapeDtypeStruct((g,), jnp.int32)
        run = jax.value_and_grad(sum_of(grouped_gemm), (0, 1))
        memory = jax.jit(run).lower(lhs, rhs, sizes).compile().memory_analysis()
        used[g] = memory.temp_size_in_bytes / (4 * (m * k + g * k * n + m * n))
    assert max(used.values()) < 4, used
