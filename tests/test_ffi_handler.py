"""The operation behind XLA's FFI, its binding and its errors, with the handler of the CPU."""

import dataclasses
import os
from typing import Any

import jax
import numpy as np
import pytest

from jaxgemm import epilogue
from jaxgemm.ffi_kernels import KERNELS, build, call, library
from tests import kernel_answers
from tests.cublaslt_cases import BACKWARD_CASES
from tests.ffi_cases import accepted
from tests.kernel_cases import KernelCase

pytestmark = pytest.mark.usefixtures("cpu_handler")


@pytest.fixture(scope="module")
def cpu_handler() -> None:
    """The CPU's handler, registered under the targets of all kernels.

    JAXGEMM_TEST_CXXFLAGS adds options for the compiler: those of a sanitizer.
    """
    flags = tuple(os.environ.get("JAXGEMM_TEST_CXXFLAGS", "").split())
    library.register_file(library.ensure_built(build.cpu_recipe(flags)), "cpu")


def _call(case: KernelCase, **options: Any) -> tuple[jax.Array, ...]:
    problem = case.problem()
    run = jax.jit(lambda x: call.call(problem, "cuda.naive", "naive_f32", x, **options))
    return run(case.arrays())


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(param.values[1], id=param.id)
        for param in accepted()
        if param.values[0].name == "cuda.naive"
    ]
    + [
        pytest.param(dataclasses.replace(case, activation=activation), id=f"{name}-{activation}")
        for name, case in BACKWARD_CASES.items()
        for activation in epilogue.ACTIVATIONS
    ]
    + [pytest.param(KernelCase(m=0, n=8, k=8, sums="float32"), id="sum_of_nothing")],
)
def test_cpu_handler_is_right(case: KernelCase) -> None:
    kernel_answers.check(
        case.problem(),
        case.arrays(),
        _call(case),
        is_exact=case.is_exact,
        u_curved=kernel_answers.U_CURVED,
    )


def test_every_kernel_has_a_target_for_the_cpu_too() -> None:
    case = KernelCase(m=8, n=8, k=8, dtype="float32", out="float32")
    for kernel in KERNELS:
        [d] = call.call(case.problem(), kernel.name, "any", case.arrays())
        kernel_answers.check(case.problem(), case.arrays(), (d,), u_curved=kernel_answers.U_CURVED)


_SMALL = KernelCase(m=6, n=7, k=5, extras=("bias",), batch=((2, "a d"),))
_REFUSED = {
    "abi": ({"abi_version": np.int32(99)}, r"abi_version: got 99, expected \d"),
    "activation": ({"activation": "softmax"}, "activation: got 'softmax'"),
    "clamp": ({"clamp": np.float32([2, 1])}, "clamp: expected two values of float32, the lower"),
    "clamp_nan": ({"clamp": np.float32([np.nan, 1])}, "clamp: expected two values of float32"),
    "major": ({"a_major": "m"}, "a_major: got 'm', expected 'k' or 'mn'"),
    "role": ({"operands": "a b q"}, "operands: got 'q'"),
    "twice": ({"operands": "a b b"}, "each other name at most once"),
    "as_output": ({"outputs": "bias"}, "operands and outputs"),
    "z_as_both": ({"operands": "a b z", "outputs": "d z"}, "operands and outputs"),
    "sum_alone": ({"outputs": "d_sum"}, "operands and outputs: expected a and b, d"),
    "sum_over_a_batch": ({"outputs": "d d_sum"}, "batch: expected d_sum, as d, among the names"),
    "count": ({"operands": "a b"}, "got 3 operands and 1 outputs, expected 2 and 1"),
    "batch_without_d": ({"batch": "a b"}, "batch: got axis 0 without d, expected d"),
    "inside_of_others": ({"inside": "a b"}, "inside: got axis 0, expected names of matrices that"),
    "inside_of_bias": (
        {"batch": "a bias d", "inside": "bias"},
        "inside: got axis 0, expected names of matrices",
    ),
    "inside_of_too_many": ({"inside": "a;a;a;a;a"}, "inside: got 5 axes, expected at most 4"),
    "inside_of_more_than_batch": ({"inside": ";a"}, "inside: got 2 axes, expected at most 1"),
    "too_many_axes": ({"batch": "d;d;d;d;d"}, "batch: got 5 axes, expected at most 4"),
    "rank": ({"batch": ""}, "a: got 3 dimensions, expected 2"),
    "size": ({"b_major": "k"}, "b: dimension 1: got 7, expected k = 5 of a"),
    "bias_size": ({"operands": "bias b a"}, "bias: got 3 dimensions, expected 1"),
    "knobs": ({"knobs": np.zeros(9, np.int32)}, "knobs: expected at most 8"),
    "knobs_dtype": ({"knobs": np.zeros(2, np.int64)}, "knobs: expected at most 8 values of int32"),
}


@pytest.mark.parametrize("name", _REFUSED)
def test_handler_refuses_with_the_name_and_what_it_expected(name: str) -> None:
    overrides, text = _REFUSED[name]
    with pytest.raises(jax.errors.JaxRuntimeError, match=f"INVALID_ARGUMENT.*{text}"):
        _call(_SMALL, overrides=overrides)


def test_handler_refuses_a_dtype_that_it_does_not_know() -> None:
    case = dataclasses.replace(_SMALL, dtypes=(("bias", "int32"),))
    with pytest.raises(jax.errors.JaxRuntimeError, match="bias: got dtype S32, expected float32"):
        _call(case)


def test_a_workspace_is_one_more_output_that_callers_do_not_see() -> None:
    [d] = _call(_SMALL, workspace_bytes=1000)
    kernel_answers.check(_SMALL.problem(), _SMALL.arrays(), (d,), u_curved=kernel_answers.U_CURVED)


def test_eager_calls_with_equal_values_of_other_types_do_not_share_attributes() -> None:
    for knobs in ((1,), (True,), (np.int8(1),)):
        problem, arrays = _SMALL.problem(), _SMALL.arrays()
        outputs = call.call(problem, "cuda.naive", "naive_f32", arrays, knobs=knobs)
        kernel_answers.check(problem, arrays, outputs, u_curved=kernel_answers.U_CURVED)
