"""What the checks of kernels see in data that is not normal."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from tests import kernel_answers
from tests.kernel_cases import SMALL_CASES


def test_a_result_that_is_rounded_twice_is_not_exact() -> None:
    case = SMALL_CASES["integers_with_all"]
    assert case.is_exact
    problem, arrays = case.problem(), case.arrays()
    answers = kernel_answers.answers(problem, arrays)
    exact = {n: jnp.asarray(x.value, problem.dtype(n)) for n, x in answers.items()}
    kernel_answers.check(problem, arrays, tuple(exact.values()), is_exact=True)
    twice = {**exact, "d": jnp.asarray(answers["z"].value - 64, jnp.bfloat16) + jnp.bfloat16(64)}
    twice["d"] = jnp.maximum(twice["d"], 0)
    with pytest.raises(AssertionError, match=r"d is not exact|times its bound"):
        kernel_answers.check(problem, arrays, tuple(twice.values()), is_exact=True)


@pytest.mark.parametrize("name", ["cancelling", "cancelling_float32_out"])
def test_totals_of_cancelling_data_are_smaller_than_partial_sums(name: str) -> None:
    case = SMALL_CASES[name]
    half = dataclasses.replace(case, k=case.k // 2)
    arrays, spec = case.arrays(), case.problem().spec
    halves = {
        "a": jnp.take(arrays["a"], jnp.arange(half.k), spec.a_contract),
        "b": jnp.take(arrays["b"], jnp.arange(half.k), spec.b_contract),
    }
    total = kernel_answers.answers(case.problem(), arrays)["d"].value
    partial = kernel_answers.answers(half.problem(), halves)["d"].value
    assert np.std(total) < np.std(partial) / 1.5


@pytest.mark.parametrize("name", ["positive", "positive_float32_out"])
def test_positive_data_is_above_zero_and_at_most_one(name: str) -> None:
    for x in SMALL_CASES[name].arrays().values():
        assert bool((x > 0).all())
        assert bool((x <= 1).all())
