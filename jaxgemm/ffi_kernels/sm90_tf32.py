"""The Hopper kernel for float32 in TF32, also where a or b is not contiguous along k.

wgmma reads elements of 4 bytes from shared memory along k only, which is why
`pallas.hopper.dense` multiplies NT alone. Here the other operand goes through registers, so one of
them may be contiguous along m or n, as b is in NN.
"""

import dataclasses
import functools

from jaxgemm.device import Device
from jaxgemm.ffi_kernels import instances, library, limits, realign, sm90
from jaxgemm.kernel import Kernel
from jaxgemm.problem import Problem

_NAME = "cuda.sm90.tf32"
_CAPABILITY = (9, 0)
# Lying the other way, tiles of 64 x 128 can be twice as many.
_MAX_TILES = sm90.MAX_TILES // 2


def _why_not(problem: Problem, device: Device) -> str | None:
    return (
        limits.why_not_device(device, _CAPABILITY, _CAPABILITY)
        or why_not_problem(problem)
        or realign.why_not(problem)
        or library.why_not()
    )


def why_not_problem(problem: Problem) -> str | None:
    """Why it does not compute a problem, whatever the device."""
    return (
        limits.why_not_problem(problem, _NAME, _MAX_TILES)
        or limits.why_not_tf32(problem)
        or _why_not_layout(problem)
    )


def _why_not_layout(problem: Problem) -> str | None:
    if problem.spec.a_contract == 1 or problem.spec.b_contract == 1:
        return None
    return (
        "layout TN of float32: wgmma reads 4-byte elements along k only, and one operand from"
        " registers; a must be (m, k), or b (n, k)"
    )


def _configs(problem: Problem, device: Device) -> tuple[sm90.Config, ...]:
    return tuple(
        sm90.config_of(_lying(row, problem), problem, device) for row in instances.of_kernel(_NAME)
    )


def _lying(row: instances.Instance, problem: Problem) -> instances.Instance:
    """An instance with its tile as it lies in d.

    Its row has that of NN, where b goes through registers; elsewhere a does.
    """
    if problem.spec.b_contract == 0:
        return row
    (tile_m, tile_n, tile_k), (cluster_m, cluster_n) = row.cta_tile, row.cluster
    return dataclasses.replace(
        row, cta_tile=(tile_n, tile_m, tile_k), cluster=(cluster_n, cluster_m)
    )


KERNEL = Kernel(
    name=_NAME,
    version=1,
    why_not=_why_not,
    configs=_configs,
    run=functools.partial(sm90.run, _NAME),
    # Each stage waits for its fragments too.
    efficiency=0.94,
    why_not_auto=library.why_not_built,
)
