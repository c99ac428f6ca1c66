"""The gate: right results pass, and one wrong element does not."""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import jaxgemm
from benchmarks import cases
from benchmarks.variants import compiled
from jaxgemm.tuning import gate
from tests.benchmark_helpers import ROWS
from tests.kernel_cases import KernelCase


@pytest.mark.parametrize(
    "name",
    [
        "smoke_bf16",
        "smoke_odd_nt",
        "smoke_bias_gelu",
        "smoke_alpha_beta",
        "smoke_swiglu",
        "smoke_interleaved",
        "smoke_int8",
        "smoke_grouped",
    ],
)
def test_the_gate_lets_right_results_through_and_one_wrong_element_not(name: str):
    case = cases.of(ROWS[name])
    operands = case.inputs("forward")[0]
    d = jax.jit(cases.call(case))(operands)
    answer = gate.answer(case.problem, operands)
    assert answer.error(d) <= 1
    wide = d.astype(jnp.float32)
    moved = jnp.max(jnp.abs(wide)) / 2
    wrong = wide.at[(0,) * d.ndim].add(moved).astype(d.dtype)
    assert answer.error(wrong) > 1
    if name == "smoke_bias_gelu":
        assert answer.error(wrong, stepwise=True) > 1
    if jnp.issubdtype(d.dtype, jnp.floating):
        missing = d.at[(-1,) * d.ndim].set(jnp.nan)
        assert answer.error(missing) == math.inf
    assert answer.error(wide.astype(jnp.float16)) == math.inf


@pytest.mark.parametrize("name", ["smoke_odd_tn", "smoke_grad", "smoke_swiglu", "smoke_grouped"])
def test_the_gate_judges_gradients(name: str):
    case = cases.of(ROWS[name])
    x = case.inputs("vjp")[0]
    variant = compiled(cases.call(case), case, "vjp", x)
    d, gradients = variant.outputs(variant.call(variant.prepare(x)))
    assert d is None
    assert set(gradients) == set(case.differentiable)
    operands = {n: x[n] for n in case.problem.spec.operands}
    answers = gate.gradient_answers(case.problem, operands, x["d_bar"], gradients)
    for operand, gradient in gradients.items():
        assert answers[operand].error(gradient) <= 1
        assert answers[operand].error(gradient * 1.5) > 1


def test_the_gate_judges_a_clamp():
    case = KernelCase(m=40, n=24, k=32, extras=("bias",), activation="silu", clamp=(0.25, 1.0))
    problem, operands = case.problem(), case.arrays()

    def call(a: jax.Array, b: jax.Array, bias: jax.Array, **options: Any) -> jax.Array:
        return jaxgemm.gemm(a, b, bias=bias, activation="silu", **options)

    x = tuple(operands[name] for name in problem.spec.operands)
    cotangent = jnp.ones(problem.shape("d"), problem.dtype("d"))
    right = functools.partial(call, clamp=(0.25, 1.0))
    for function, passes in ((right, True), (call, False)):
        d, pull = jax.vjp(function, *x)
        gradients = dict(zip(problem.spec.operands, pull(cotangent), strict=True))
        assert (gate.answer(problem, operands).error(d) <= 1) is passes
        answers = gate.gradient_answers(problem, operands, cotangent, gradients)
        errors = {n: answer.error(gradients[n]) for n, answer in answers.items()}
        assert all((error <= 1) is passes for error in errors.values()), errors
