"""Which cases each kernel behind XLA's FFI accepts."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from jaxgemm.ffi_kernels import KERNELS, cublaslt, limits, sm90_tf32
from jaxgemm.kernel import Kernel
from jaxgemm.problem import Problem
from tests.kernel_cases import ODD_CASES, SMALL_CASES, KernelCase, in_float32


def _cases() -> dict[str, KernelCase]:
    """All cases that some kernel here may take, and each in float32."""
    known = {**SMALL_CASES, **ODD_CASES}
    return {**known, **in_float32(known)}


def _why_not(kernel: Kernel, problem: Problem) -> str | None:
    """Why a kernel declines, whatever the device."""
    if kernel is cublaslt.KERNEL:
        return cublaslt.why_not_problem(problem)
    if kernel is sm90_tf32.KERNEL:
        return sm90_tf32.why_not_problem(problem)
    return limits.why_not_problem(problem, kernel.name)


def accepted(
    kernels: Sequence[Kernel] = KERNELS, cases: Mapping[str, KernelCase] | None = None
) -> list[Any]:
    """Every kernel with every case that it accepts, whatever can be built here."""
    return [
        pytest.param(kernel, case, id=f"{kernel.name}-{name}")
        for kernel, (name, case) in itertools.product(kernels, (cases or _cases()).items())
        if _why_not(kernel, case.problem()) is None
    ]
