"""Faults of groups: those without rows, and rows past the last one."""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgemm import grouped_gemm
from tests import oracle
from tests.public_reports.helpers import (
    INF,
    NAN,
    check_groups,
    draw_groups,
    grouped_vjp,
    normal,
    same,
)

# --- empty-group: a group of size 0 gives junk, mostly in the gradient for the weights.


@pytest.mark.parametrize("jitted", [False, True], ids=["EG08 eager", "EG08 jit"])
def test_grouped_product_of_no_rows_at_all(jitted: bool) -> None:
    lhs, rhs = jnp.ones((0, 256)), jnp.ones((4, 256, 224))
    sizes = jnp.zeros(4, jnp.int32)

    def both(lhs: jax.Array, rhs: jax.Array) -> tuple[Any, ...]:
        out, pullback = jax.vjp(lambda lhs, rhs: grouped_gemm(lhs, rhs, sizes), lhs, rhs)
        return out, *pullback(out)

    out, d_lhs, d_rhs = (jax.jit(both) if jitted else both)(lhs, rhs)
    assert (out.shape, d_lhs.shape) == ((0, 224), (0, 256))
    same(d_rhs, np.zeros((4, 256, 224)))


# EG09: weights of experts that nobody was sent to must reach nobody.
@pytest.mark.parametrize(
    ("m", "k", "n", "sizes", "dtype"),
    [
        pytest.param(320, 256, 128, [128, 0, 192, 0], "bfloat16", id="EG09"),
        pytest.param(24, 64, 32, [8, 0, 8, 0], "bfloat16", id="EG02"),
        pytest.param(32, 16, 16, [0, 8, 8, 0, 16], "bfloat16", id="EG03"),
        pytest.param(64, 32, 16, [0, 13, 0, 40, 1, 0, 10] + [0] * 249, "bfloat16", id="EG10"),
    ],
)
def test_empty_groups_influence_nothing(
    m: int, k: int, n: int, sizes: list[int], dtype: str
) -> None:
    lhs, rhs, cotangent = draw_groups(m, k, n, len(sizes), dtype)
    check_groups(lhs, rhs, sizes, cotangent)


def test_all_rows_in_one_group_of_many() -> None:
    """EG07."""
    lhs, rhs, cotangent = draw_groups(40, 16, 24, 64, "bfloat16")
    for g in (0, 17, 63):
        check_groups(lhs, rhs, [40 * (i == g) for i in range(64)], cotangent)


@pytest.mark.parametrize("num_groups", [1, 2, 3, 4, 5])
def test_every_pattern_of_empty_groups(num_groups: int) -> None:
    lhs, rhs, cotangent = draw_groups(23, 5, 7, num_groups)
    for pattern in itertools.product((False, True), repeat=num_groups):
        sizes = [(3, 1, 6, 2, 8)[i] * full for i, full in enumerate(pattern)]
        check_groups(lhs, rhs, sizes, cotangent)


def test_many_random_groups_of_which_most_are_empty() -> None:
    rng = np.random.default_rng(0)
    lhs, rhs, cotangent = draw_groups(300, 4, 6, 256)
    for _ in range(4):
        sizes = rng.integers(1, 12, 256) * (rng.random(256) < 0.1)
        check_groups(lhs, rhs, sizes, cotangent)


@pytest.mark.parametrize("activation", [None, "sigmoid"])
@pytest.mark.parametrize("has_bias", [False, True])
def test_no_groups_at_all(has_bias: bool, activation: str | None) -> None:
    operands = {"lhs": jnp.ones((5, 3)), "rhs": jnp.ones((0, 3, 2))}
    operands |= {"bias": jnp.ones((0, 2))} if has_bias else {}

    def run(operands: dict[str, jax.Array]) -> jax.Array:
        sizes = jnp.zeros(0, jnp.int32)
        return grouped_gemm(**operands, group_sizes=sizes, activation=activation)

    out, pullback = jax.vjp(run, operands)
    same(out, np.zeros((5, 2)))
    for name, bar in pullback(jnp.ones((5, 2)))[0].items():
        same(bar, jnp.zeros_like(operands[name]))


# --- ragged-tail: rows past the last group are junk, or leak.


def test_rows_of_no_group_are_zero_in_every_pass() -> None:
    """RT01: the second training step must not see what the first left in memory."""
    sizes, used = np.array([10, 0, 7, 20], np.int32), 37
    lhs = normal(64, 32).at[used:].set(NAN)
    rhs, ones = normal(4, 32, 16), jnp.ones((64, 16))
    passes = []
    for _ in range(2):
        passes.append(grouped_vjp(lhs, rhs, sizes, ones))
        jnp.full((64, 32), NAN).block_until_ready()
    out, d_lhs, d_rhs = passes[0]
    for first, second in zip(*passes, strict=True):
        same(first, second)
    same(out[used:], np.zeros((27, 16)))
    same(d_lhs[used:], np.zeros((27, 32)))
    check_groups(lhs, rhs, sizes, ones)
    assert np.isfinite(d_rhs).all()


# RT04: sizes are data; a buffer for the worst case is not an error, nor are too many rows.
# We clip: the groups take what rows there are, in order.
def test_sizes_need_not_add_up_to_the_rows() -> None:
    """RT04."""
    lhs, rhs, cotangent = draw_groups(48, 16, 8, 3)
    for sizes in ([5, 6, 7], [16, 20, 12], [40, 40, 0], [100, 1, 1], [0, 0, 0], [48, 0, 0]):
        check_groups(lhs, rhs, sizes, cotangent)
    out = jax.jit(grouped_gemm)(lhs, rhs, jnp.array([40, 40, 0]))
    oracle.check(out[40:], oracle.gemm(lhs[40:], rhs[1]))


def test_sizes_may_add_up_to_more_than_32_bits_hold() -> None:
    m, num_groups = 65536, 32769
    assert m * num_groups > 2**31
    rhs = np.arange(1, num_groups + 1, dtype=np.float32)[:, None, None]
    out = grouped_gemm(np.ones((m, 1), np.float32), rhs, np.full(num_groups, m, np.int32))
    # The first group takes every row.
    same(out, np.ones((m, 1)))


def test_padding_does_not_reach_a_second_product() -> None:
    """RT05: two layers with an activation between; the padding of the buffer is infinite."""
    sizes, used = jnp.array([3, 0, 9, 1]), 13
    x = normal(40, 8)
    weights = normal(4, 8, 12), normal(4, 12, 8)

    def loss(x: jax.Array, w1: jax.Array, w2: jax.Array) -> jax.Array:
        h = grouped_gemm(x, w1, sizes)
        return grouped_gemm(jax.nn.relu(h) * h, w2, sizes)[:used].sum()

    gradient = jax.jit(jax.grad(loss, (0, 1, 2)))
    padded = gradient(x.at[used:].set(INF), *weights)
    alone = gradient(x[:used], *weights)
    same(padded[0][used:], np.zeros((27, 8)))
    for got, want in zip((padded[0][:used], *padded[1:]), alone, strict=True):
        assert np.isfinite(got).all()
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("sizes", "dtype"),
    [
        pytest.param((5, 0, 11), "float32", id="RT06 f32"),
        pytest.param((5, 0, 11), "bfloat16", id="RT06 bf16"),
        pytest.param((5, 0, 11), "float16", id="RT06 f16"),
        pytest.param((16,), "float32", id="RT06 one group"),
    ],
)
def test_finite_tail_is_zeroed_too(sizes: tuple[int, ...], dtype: str) -> None:
    lhs, rhs, _ = draw_groups(40, 8, 12, len(sizes), dtype)
    for run in (grouped_gemm, jax.jit(grouped_gemm)):
        out = np.asarray(run(lhs, rhs, np.asarray(sizes)))
        assert out.dtype == jnp.dtype(dtype)
        same(out[16:], np.zeros((24, 12)))
        assert out[:16].all()


@pytest.mark.parametrize("activation", [None, "sigmoid"])
@pytest.mark.parametrize("sizes", [(4, 0, 9), (0, 0, 0), (20, 0, 0), (9, 30, 2), (7,)], ids=str)
def test_contents_of_the_tail_change_no_bit(sizes: tuple[int, ...], activation: str | None) -> None:
    lhs, rhs, cotangent = draw_groups(20, 6, 5, len(sizes))
    used = oracle.group_rows(sizes, 20)[-1].stop
    results = []
    for junk in (0, NAN, INF, -INF, 1e38):
        lhs, cotangent = lhs.at[used:].set(junk), cotangent.at[used:].set(junk)
        results.append(grouped_vjp(lhs, rhs, np.asarray(sizes, np.int32), cotangent, activation))
    for other in results[1:]:
        for got, want in zip(other, results[0], strict=True):
            assert np.asarray(got).tobytes() == np.asarray(want).tobytes()
    # Not sigmoid(0), which is a half.
    same(results[0][0][used:], np.zeros((20 - used, 5)))
