"""Tensor Cores as on Ampere: bfloat16 and float16, and float32 in TF32, with mma.sync."""

import jax

from jaxgemm.device import Device
from jaxgemm.ffi_kernels import call, instances, library, limits, realign
from jaxgemm.kernel import Kernel, Operands
from jaxgemm.problem import Problem

_NAME = "cuda.mma_sync"
_CAPABILITIES = (8, 0), (12, 1)


def _why_not(problem: Problem, device: Device) -> str | None:
    return (
        limits.why_not_device(device, *_CAPABILITIES)
        or limits.why_not_problem(problem, _NAME)
        or limits.why_not_tf32(problem)
        or realign.why_not(problem)
        or library.why_not()
    )


def _configs(problem: Problem, device: Device) -> tuple[instances.Config, ...]:
    dtype = problem.dtype("a").name
    return tuple(
        instances.Config(row.name, row.cta_tile, row.stages, row.smem_bytes)
        for row in instances.of_kernel(_NAME)
        if row.dtype == dtype and row.smem_bytes <= device.smem_bytes
    )


def _run(problem: Problem, config: instances.Config, operands: Operands) -> tuple[jax.Array, ...]:
    num_bytes = realign.workspace_bytes(problem)
    return call.run(problem, _NAME, config.instance, operands, workspace_bytes=num_bytes)


KERNEL = Kernel(
    name=_NAME,
    version=1,
    why_not=_why_not,
    configs=_configs,
    run=_run,
    # Share of the rate of wgmma: on Hopper mma.sync is issued at under two thirds of it.
    efficiency=0.5,
    why_not_auto=limits.why_not_auto_lesson,
)
