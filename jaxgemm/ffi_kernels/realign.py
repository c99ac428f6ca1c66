"""Room for copies of operands whose rows do not begin at multiples of 16 bytes."""

import math

from jaxgemm.problem import Problem

# As kTmaAlignment in ffi/parts/tensor_map.cuh.
_ROW_BYTES = 16


def workspace_bytes(problem: Problem) -> int:
    """What `RealignOperands` in ffi/parts/realign.cuh needs for a and b."""
    if problem.k == 0:
        return 0
    num_bytes = 0
    for name in ("a", "b"):
        *rows, columns = problem.shape(name)
        row_bytes = columns * problem.dtype(name).itemsize
        if row_bytes % _ROW_BYTES:
            num_bytes += math.prod(rows) * (row_bytes // _ROW_BYTES + 1) * _ROW_BYTES
    return num_bytes
