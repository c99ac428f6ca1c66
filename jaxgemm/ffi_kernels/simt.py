"""The ladder without Tensor Cores: five kernels, from naive to warp tiles, that multiply float32.

What each adds to the one before stands at the head of its file in ffi/kernels/. They are lessons
and yardsticks: `auto` leaves them to whoever names one, because cuBLAS, which answers for float32
in their place, is faster.
"""

import dataclasses
import functools
from typing import Any

import jax

from jaxgemm.device import Device
from jaxgemm.ffi_kernels import call, instances, library, limits
from jaxgemm.kernel import Kernel, Operands
from jaxgemm.problem import Problem

_CAPABILITIES = (8, 0), (12, 1)


@dataclasses.dataclass(frozen=True)
class Config(instances.Config):
    """The choice of an instance.

    Attributes:
      mma_family: "", as in `Device.tflops`: it multiplies without Tensor Cores.
    """

    mma_family: str = ""


def _why_not(kernel: str, problem: Problem, device: Device) -> str | None:
    return (
        limits.why_not_device(device, *_CAPABILITIES)
        or limits.why_not_problem(problem, kernel)
        or library.why_not()
    )


def _configs(kernel: str, problem: Problem, device: Device) -> tuple[Config, ...]:
    del device
    dtype = problem.dtype("a").name
    return tuple(
        Config(row.name, row.cta_tile, row.stages, row.smem_bytes)
        for row in instances.of_kernel(kernel)
        if row.dtype == dtype
    )


def _run(kernel: str, problem: Problem, config: Any, operands: Operands) -> tuple[jax.Array, ...]:
    return call.run(problem, kernel, config.instance, operands)


def _rung(name: str, efficiency: float) -> Kernel:
    return Kernel(
        name=name,
        version=1,
        why_not=functools.partial(_why_not, name),
        configs=functools.partial(_configs, name),
        run=functools.partial(_run, name),
        efficiency=efficiency,
        why_not_auto=limits.why_not_auto_lesson,
    )


# Shares of the rate of FMAs, as expected from what each asks of the memories.
KERNELS: tuple[Kernel, ...] = (
    _rung("cuda.warptiled", 0.77),
    _rung("cuda.register_blocked", 0.4),
    _rung("cuda.tiled", 0.13),
    _rung("cuda.coalesced", 0.08),
    _rung("cuda.naive", 0.02),
)
