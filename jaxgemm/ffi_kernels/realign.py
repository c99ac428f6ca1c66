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
        *leading, columns = problem.shape(name)
        num_rows, row_bytes = math.prod(leading), columns * problem.dtype(name).itemsize
        # XLA's buffers begin at multiples of 16 bytes, and so do slices of them made of rows; but a
        # single row can be a slice of a vector that begins anywhere.
        if row_bytes % _ROW_BYTES or num_rows == 1:
            num_bytes += num_rows * math.ceil(row_bytes / _ROW_BYTES) * _ROW_BYTES
    return num_bytes
