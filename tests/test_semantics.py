"""Every case against the float64 answer, eager and jitted, with the derived bound."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxgemm
from jaxgemm import call
from tests import oracle
from tests.cases import ACTIVATIONS, CASES, GROUPED, Case, GroupedCase


@pytest.mark.parametrize("case", CASES, ids=str)
def test_gemm_is_within_its_bound(case: Case) -> None:
    operands = case.operands()
    answer = case.answer(operands)
    oracle.check(case.run(operands), answer, case.expected_out)
    oracle.check(jax.jit(case.run)(operands), answer, case.expected_out)


@pytest.mark.parametrize("case", GROUPED, ids=str)
def test_grouped_gemm_is_within_its_bound(case: GroupedCase) -> None:
    operands = case.operands()
    result = case.run(operands)
    oracle.check(result, case.answer(operands), case.out)
    tail = oracle.group_rows(case.sizes, case.m)[-1].stop
    assert not np.asarray(result[tail:]).any(), "rows of no group are exactly zero"


@pytest.mark.parametrize("activation", [None, "silu", "gelu", "sigmoid", "relu2"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("transpose_w", [False, True])
def test_gated_gemm_is_within_its_bound(activation: str, dtype: str, transpose_w: bool) -> None:
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(2, 9, 20)), dtype)
    gate, up = (jnp.asarray(rng.normal(size=(20, 11)) / 4, dtype) for _ in range(2))
    weights = (gate.T, up.T) if transpose_w else (gate, up)
    result = jaxgemm.gated_gemm(x, *weights, activation=activation, transpose_w=transpose_w)
    oracle.check(result, oracle.gated(x, gate, up, activation=activation), dtype)


@pytest.mark.parametrize("m", [1, 8, 9, 100])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_batch_invariant_rows_do_not_depend_on_other_rows(m: int, dtype: str) -> None:
    rng = np.random.default_rng(0)
    a, b = (jnp.asarray(rng.normal(size=s), dtype) for s in ((100, 70), (70, 33)))
    run = functools.partial(jaxgemm.gemm, activation="gelu", batch_invariant=True)
    whole = run(a, b)
    np.testing.assert_array_equal(np.asarray(run(a[-m:], b)), np.asarray(whole[-m:]))
    stacked = jax.vmap(lambda x: run(x[None], b)[0])(a[:m])
    np.testing.assert_array_equal(np.asarray(stacked), np.asarray(whole[:m]))
    oracle.check(whole, oracle.gemm(a, b, activation="gelu"))


def test_batch_invariant_grouped_rows_do_not_depend_on_other_rows() -> None:
    rng = np.random.default_rng(0)
    x, w = (jnp.asarray(rng.normal(size=s), jnp.float32) for s in ((64, 70), (3, 70, 33)))
    run = functools.partial(jaxgemm.grouped_gemm, batch_invariant=True)
    whole = run(x, w, jnp.array([30, 4, 30]))
    part = run(x[:34], w, jnp.array([30, 4, 0]))
    np.testing.assert_array_equal(np.asarray(part), np.asarray(whole[:34]))


@pytest.mark.parametrize("case", ACTIVATIONS, ids=str)
def test_nan_passes_through_activations(case: Case) -> None:
    operands = case.operands()
    operands["a"] = operands["a"].at[2].set(jnp.nan)
    result = np.asarray(case.run(operands), np.float32)
    assert np.isnan(result[2]).all()
    assert np.isfinite(np.delete(result, 2, 0)).all()


def test_float64_is_exact_to_float64() -> None:
    with jax.enable_x64(True):
        for a, b in (("float64", "float64"), ("float32", "float64")):
            case = Case(20, 30, 500, a=a, b=b, c="full", bias=True, alpha=0.3, activation="gelu")
            operands = case.operands()
            oracle.check(case.run(operands), case.answer(operands), "float64")
        a = jnp.ones((2, 3), jnp.float32)
        assert jaxgemm.gemm(a, a.T, out_dtype=jnp.float64).dtype == jnp.float64


@pytest.mark.parametrize("x64", [False, True])
@pytest.mark.parametrize(
    "scalar", [2, 2.0, np.float64(2), np.int64(2), np.float32(2), np.array(2.0), "jnp", "traced"]
)
def test_scalars_never_change_the_result_dtype(x64: bool, scalar: object) -> None:
    with jax.enable_x64(x64):
        a = jnp.ones((3, 4), jnp.bfloat16)
        c = jnp.ones((3, 3), jnp.float32)

        def run(s: object) -> jax.Array:
            return jaxgemm.gemm(a, a.T, c, alpha=s, beta=s)

        if scalar == "traced":
            result = jax.jit(run)(2.0)
        else:
            result = run(jnp.asarray(2.0) if isinstance(scalar, str) else scalar)
        assert result.dtype == jnp.bfloat16
        assert not result.weak_type
        np.testing.assert_array_equal(np.asarray(result, np.float32), 10)
        shape = jax.eval_shape(run, 2.0)
        assert (shape.dtype, shape.weak_type) == (result.dtype, result.weak_type)


def test_a_new_alpha_or_group_size_does_not_recompile() -> None:
    traces = []

    @jax.jit
    def dense(a: jax.Array, s: float) -> jax.Array:
        traces.append("dense")
        return jaxgemm.gemm(a, a, alpha=s)

    @jax.jit
    def grouped(a: jax.Array, w: jax.Array, sizes: jax.Array) -> jax.Array:
        traces.append("grouped")
        return jaxgemm.grouped_gemm(a, w, sizes)

    a, w = jnp.ones((4, 4)), jnp.ones((2, 4, 4))
    for i in range(4):
        dense(a, 0.5 * i)
        grouped(a, w, jnp.array([i, 4 - i]))
    assert traces == ["dense", "grouped"]
    jaxgemm.gemm(a, a, alpha=0.25)
    before = call._compute._cache_size()
    for i in range(4):
        jaxgemm.gemm(a, a, alpha=0.3 * i)
    assert call._compute._cache_size() == before
