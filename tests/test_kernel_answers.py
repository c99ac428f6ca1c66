"""What the checks of kernels see in data that is not normal."""

import dataclasses
import itertools

import jax.numpy as jnp
import numpy as np
import pytest

from jaxgemm import reference
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


def test_outputs_are_written_where_there_was_nan() -> None:
    case = SMALL_CASES["preactivation_with_all"]
    problem, arrays = case.problem(), case.arrays()
    outputs = kernel_answers.run_over_nan(
        lambda x: reference.evaluate(problem.spec, x, reference.Config(False)), problem, arrays
    )
    kernel_answers.check(problem, arrays, outputs, u_curved=kernel_answers.U_CURVED)
    # A result of another shape is in memory of its own.
    with pytest.raises(AssertionError), pytest.warns(UserWarning, match="not usable"):
        kernel_answers.run_over_nan(lambda x: (x["a"][:1], x["a"][:2]), problem, arrays)


def test_changes_of_bits_are_counted() -> None:
    arrays = {"a": jnp.zeros(4, jnp.bfloat16), "b": jnp.zeros(4, jnp.bfloat16)}
    assert kernel_answers.num_changed(lambda x: x["a"] + 1, arrays, 5) == 0
    calls = itertools.count()
    # The first result, and those of the loop, which is traced once.
    assert kernel_answers.num_changed(lambda x: x["a"] + next(calls), arrays, 5) == 20
