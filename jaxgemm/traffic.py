"""What a problem moves, for kernels that order their tiles by it."""

import math

from jaxgemm.device import Device
from jaxgemm.problem import Problem

# Operands of one matrix of d that stay in the L2 cache whatever the order of tiles: a part of it.
_L2_PART = 3


def num_matrices(problem: Problem, name: str) -> int:
    """How many matrices an operand or output holds: the product of its own batch axes."""
    return math.prod(problem.size[label] for label in problem.spec.batch_labels(name))


def row_bytes(problem: Problem, name: str) -> int:
    """Bytes of a row of an operand or output, as it is stored."""
    return problem.shape(name)[-1] * problem.dtype(name).itemsize


def writes_dominate(problem: Problem, device: Device) -> bool:
    """Whether tiles that are computed together should form whole rows of d.

    Strips keep operands in L2. Where those fit anyway and d is larger, long rows are written
    faster: 8192 x 8192 x 64 takes 38.2 us instead of 41.2 with tiles of 128 x 256, and 36.5 instead
    of 40.4 with 128 x 64 (H200, benchmarks/results/nvidia_h200/strips.jsonl).
    """
    multiplied = [name for name in ("a", "b", "b_up") if problem.has(name)]
    operands = sum(_matrix_bytes(problem, name) for name in multiplied)
    written = sum(_matrix_bytes(problem, name) for name in problem.spec.outputs)
    return operands < min(written, device.l2_bytes // _L2_PART)


def _matrix_bytes(problem: Problem, name: str) -> int:
    return problem.bytes_of(name) // max(1, num_matrices(problem, name))
