"""Room for copies of operands whose rows do not begin at multiples of 16 bytes."""

import math

from jaxgemm import traffic
from jaxgemm.problem import Problem

# As kTmaAlignment in ffi/parts/tensor_map.cuh: the bytes of a unit.
_UNIT_BYTES = 16
# As in `UnitsPerRow` in ffi/parts/realign.cuh: the units of a cache line, and how many lines a row
# has at least where those of its copy begin with one.
_LINE_UNITS = 8
_FEWEST_LINES = 8
# The units of one operand are counted in a 32-bit integer.
_MAX_UNITS = 2**31 - 1


def why_not(problem: Problem) -> str | None:
    """Why the operands of a problem cannot be copied, where they must be."""
    for name in ("a", "b"):
        units = _copied_units(problem, name)
        if units > _MAX_UNITS:
            return (
                f"{name} has rows of {problem.shape(name)[-1]} elements, which must be copied to"
                f" begin at multiples of {_UNIT_BYTES} bytes: {units} units of them are more than"
                f" the {_MAX_UNITS} of this kernel; split the problem"
            )
    return None


def workspace_bytes(problem: Problem) -> int:
    """What `RealignOperands` in ffi/parts/realign.cuh needs for a and b."""
    return _UNIT_BYTES * sum(_copied_units(problem, name) for name in ("a", "b"))


def is_aligned(problem: Problem, name: str) -> bool:
    """Whether all rows of an operand or output are known to begin at multiples of 16 bytes.

    XLA's buffers do, and so do slices of them made of rows; but a single row can be a slice of a
    vector that begins anywhere.
    """
    num_rows = math.prod(problem.shape(name)[:-1])
    return traffic.row_bytes(problem, name) % _UNIT_BYTES == 0 and num_rows != 1


def _copied_units(problem: Problem, name: str) -> int:
    """The units of an operand's copy; 0 where it needs none."""
    if problem.k == 0 or is_aligned(problem, name):
        return 0
    num_rows = math.prod(problem.shape(name)[:-1])
    units = math.ceil(traffic.row_bytes(problem, name) / _UNIT_BYTES)
    if units >= _FEWEST_LINES * _LINE_UNITS:
        units = math.ceil(units / _LINE_UNITS) * _LINE_UNITS
    return num_rows * units
