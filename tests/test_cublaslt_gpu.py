"""The real cuBLASLt on a GPU: what only it takes, memory that it must not read, every device.

All cases that other kernels take too are in `tests/test_ffi_kernels.py`.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgemm import device
from jaxgemm.ffi_kernels import cublaslt
from jaxgemm.tuning import gate
from tests import kernel_answers, oracle
from tests.cublaslt_cases import BACKWARD_CASES, FP8_CASES, OWN_CASES
from tests.kernel_cases import EXTRAS, KernelCase

# Hopper adds products of 8-bit floats with 13 bits after the point of the largest of them.
_U_FP8 = 2.0**-13


def _poison() -> None:
    """Leaves NaN in the memory that is allocated next."""
    jax.block_until_ready(jnp.full(1 << 28, jnp.nan, jnp.float32))


def _check_every_algorithm(case: KernelCase, **roundoffs: float) -> None:
    """Each is right and gives the same bits again, over memory that held NaN."""
    problem, arrays = case.problem(), case.arrays()
    for config in cublaslt.KERNEL.configs(problem, device.current()):
        run = jax.jit(lambda x, c=config: cublaslt.KERNEL.run(problem, c, x))
        outputs = run(arrays)
        kernel_answers.check(
            problem, arrays, outputs, u_curved=kernel_answers.U_CURVED, **roundoffs
        )
        _poison()
        for again, first in zip(run(arrays), outputs, strict=True):
            np.testing.assert_array_equal(np.asarray(again), np.asarray(first), str(config))


@pytest.mark.gpu
@pytest.mark.parametrize("name", [*OWN_CASES, *FP8_CASES])
def test_every_algorithm_is_right_on_a_gpu_and_repeats_its_bits(name: str) -> None:
    case = {**OWN_CASES, **FP8_CASES}[name]
    with jax.enable_x64(case.dtype == "float64"):
        assert cublaslt.KERNEL.why_not(case.problem(), device.current()) is None
        _check_every_algorithm(case, u_mul=_U_FP8 if name in FP8_CASES else 0.0)


# With scalars on the device, every algorithm must look at beta before it reads c, which is d where
# there is none.
_LARGE = {
    "alpha_alone": KernelCase(2048, 2048, 1024, extras=("alpha",)),
    "c_is_not_read": KernelCase(
        2048, 2048, 1024, extras=("c", "beta"), scalars=(1.0, 0.0), nan_c=True
    ),
    "c_is_not_read_with_bias": KernelCase(
        1024, 4096, 4096, "NT", extras=EXTRAS, scalars=(0.5, 0.0), nan_c=True, activation="relu"
    ),
    "float32_out": KernelCase(
        2048,
        2048,
        1024,
        "TN",
        out="float32",
        extras=("c", "alpha", "beta"),
        dtypes=(("c", "float32"),),
        scalars=(0.5, 0.0),
        nan_c=True,
    ),
    "split": KernelCase(256, 256, 16384, extras=("alpha",)),
}


_MANY_ROWS = KernelCase(2048, 512, 512, "NT", extras=("z",), activation="gelu", sums="bfloat16")


@pytest.mark.gpu
@pytest.mark.parametrize("name", _LARGE)
def test_memory_that_beta_hides_is_not_read_on_a_gpu(name: str) -> None:
    case = _LARGE[name]
    problem, arrays = case.problem(), case.arrays()
    for config in cublaslt.KERNEL.configs(problem, device.current()):
        _poison()
        [d] = jax.jit(lambda x, c=config: cublaslt.KERNEL.run(problem, c, x))(arrays)
        assert gate.answer(problem, arrays).error(d) <= 1, config


@pytest.mark.gpu
@pytest.mark.parametrize("name", [*BACKWARD_CASES, "many_rows"])
def test_a_yardstick_rounds_twice_and_repeats_its_bits_on_a_gpu(name: str) -> None:
    case = BACKWARD_CASES.get(name, _MANY_ROWS)
    problem = case.problem()
    assert cublaslt.why_not_yardstick(problem, device.current()) is None
    _check_every_algorithm(
        case,
        u_pulled_back=oracle.roundoff(problem.dtype("d")),
        slope_error=cublaslt.SLOPE_ERROR,
    )


@pytest.mark.gpu
def test_every_device_has_a_context_of_its_own() -> None:
    case = KernelCase(m=72, n=80, k=96, extras=("bias",))
    problem = case.problem()
    [config, *_] = cublaslt.KERNEL.configs(problem, device.current())
    run = jax.jit(lambda x: cublaslt.KERNEL.run(problem, config, x))
    for target in reversed(jax.devices()):
        outputs = run(jax.device_put(case.arrays(), target))
        assert outputs[0].devices() == {target}
        kernel_answers.check(problem, case.arrays(), outputs, u_curved=kernel_answers.U_CURVED)
