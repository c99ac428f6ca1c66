"""Calls that must agree with one another. Operands are integers, so that they do to the bit."""

import dataclasses
import itertools

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxgemm
from tests import oracle

FLOATS = ["float32", "bfloat16", "float16"]


def _check_transposed(m: int, n: int, k: int, dtype: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    a, b = (jnp.asarray(rng.integers(-4, 5, s), dtype) for s in ((m, k), (k, n)))
    c = jnp.asarray(rng.integers(-9, 10, (m, n)), jnp.float32)
    options = {"alpha": 2, "beta": -3, "activation": "relu", "out_dtype": "float32"}
    want = oracle.gemm(a, b, c, alpha=2, beta=-3, activation="relu").value
    for transpose_a, transpose_b in itertools.product((False, True), repeat=2):
        left, right = a.T if transpose_a else a, b.T if transpose_b else b
        flags = {"transpose_a": transpose_a, "transpose_b": transpose_b}
        d = jaxgemm.gemm(left, right, c, **options, **flags)
        np.testing.assert_array_equal(np.asarray(d), want)
        # (op(a) op(b))ᵀ = op(b)ᵀ op(a)ᵀ
        flags = {"transpose_a": not transpose_b, "transpose_b": not transpose_a}
        d = jaxgemm.gemm(right, left, c.T, **options, **flags)
        np.testing.assert_array_equal(np.asarray(d), want.T)


@settings(max_examples=6)
@given(*[st.integers(1, 17)] * 3, st.sampled_from(FLOATS), st.integers(0, 9))
def test_transposed_calls_agree(m: int, n: int, k: int, dtype: str, seed: int) -> None:
    _check_transposed(m, n, k, dtype, seed)


@pytest.mark.slow
@settings(max_examples=100)
@given(*[st.integers(0, 40)] * 3, st.sampled_from(FLOATS), st.integers(0, 99))
def test_transposed_calls_agree_in_a_longer_sweep(
    m: int, n: int, k: int, dtype: str, seed: int
) -> None:
    _check_transposed(m, n, k, dtype, seed)


@dataclasses.dataclass(frozen=True)
class Groups:
    """lhs, rhs, bias and sizes of a grouped product whose rows all have a group."""

    lhs: np.ndarray
    rhs: np.ndarray
    bias: np.ndarray
    sizes: np.ndarray

    @classmethod
    def draw(cls, sizes: list[int], seed: int) -> "Groups":
        """Operands of integers."""
        rng, g = np.random.default_rng(seed), len(sizes)
        shapes = (sum(sizes), 5), (g, 5, 7), (g, 7)
        arrays = (rng.integers(-4, 5, shape).astype(np.float32) for shape in shapes)
        return cls(*arrays, np.asarray(sizes, np.int32))

    def run(self) -> np.ndarray:
        """The product."""
        return np.asarray(
            jaxgemm.grouped_gemm(self.lhs, self.rhs, self.sizes, bias=self.bias, activation="relu")
        )

    def rows(self) -> list[np.ndarray]:
        """The numbers of the rows of each group."""
        return np.split(np.arange(len(self.lhs)), np.cumsum(self.sizes)[:-1])


# Four groups of 24 rows in all, so that one compiled product serves every example.
FOUR_SIZES = st.lists(st.integers(0, 24), min_size=3, max_size=3).map(
    lambda cuts: np.diff([0, *sorted(cuts), 24]).tolist()
)


@settings(max_examples=30)
@given(FOUR_SIZES, st.permutations(range(4)), st.integers(0, 99))
def test_permuting_groups_permutes_the_result(
    sizes: list[int], order: list[int], seed: int
) -> None:
    groups = Groups.draw(sizes, seed)
    moved = np.concatenate([groups.rows()[g] for g in order])
    permuted = Groups(
        groups.lhs[moved], *(x[order] for x in (groups.rhs, groups.bias, groups.sizes))
    )
    np.testing.assert_array_equal(permuted.run(), groups.run()[moved])


@settings(max_examples=30)
@given(FOUR_SIZES, st.integers(0, 99))
def test_grouped_product_is_a_gemm_for_every_group(sizes: list[int], seed: int) -> None:
    groups = Groups.draw(sizes, seed)
    result = groups.run()
    # One gemm of all rows with each matrix: only the rows of its group count.
    for g, rows in enumerate(groups.rows()):
        whole = jaxgemm.gemm(groups.lhs, groups.rhs[g], bias=groups.bias[g], activation="relu")
        np.testing.assert_array_equal(result[rows], np.asarray(whole)[rows])


@settings(max_examples=30)
@given(FOUR_SIZES, st.integers(0, 99))
def test_groups_with_equal_weights_are_one_group(sizes: list[int], seed: int) -> None:
    groups = Groups.draw(sizes, seed)
    rhs, bias = (np.repeat(x[:1], 4, axis=0) for x in (groups.rhs, groups.bias))
    split = dataclasses.replace(groups, rhs=rhs, bias=bias)
    whole = jaxgemm.gemm(groups.lhs, rhs[0], bias=bias[0], activation="relu")
    np.testing.assert_array_equal(split.run(), np.asarray(whole))


@settings(max_examples=12)
@given(st.integers(1, 9), st.sampled_from([None, "silu"]), st.integers(0, 9))
def test_gated_product_with_a_gate_of_ones_is_a_plain_product(
    m: int, activation: str | None, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    x = rng.integers(-3, 4, (m, 5)).astype(np.float32)
    x[:, 0] = 1
    up = rng.integers(-3, 4, (5, 7)).astype(np.float32)
    # Picks the column of ones.
    gate = np.zeros((5, 7), np.float32)
    gate[0] = 1
    result = jaxgemm.gated_gemm(x, gate, up, activation=activation)
    one = oracle.ACTIVATIONS[activation][0](np.float64(1))
    np.testing.assert_allclose(np.asarray(result), one * (x @ up), rtol=1e-6)
