"""Reasons to decline a problem that several kernels share; each is None where all is well."""

import math
from collections.abc import Iterable, Sequence

from jaxgemm import epilogue
from jaxgemm.device import Device
from jaxgemm.problem import Problem

# Indices in a kernel are int32.
_MAX_INDEX = 2**31 - 1


def first(reasons: Iterable[str | None]) -> str | None:
    """The first reason there is."""
    return next((reason for reason in reasons if reason is not None), None)


def device_is_not(device: Device, capability: tuple[int, int], what: str) -> str | None:
    """The device lacks the instructions."""
    if device.compute_capability == capability:
        return None
    return (
        f"{device.name} has compute capability {'.'.join(map(str, device.compute_capability))}:"
        f" {what} needs {'.'.join(map(str, capability))}"
    )


def is_grouped(problem: Problem) -> str | None:
    """The spec asks for a product for each group."""
    if problem.spec.ragged is not None:
        return f"{problem.spec.ragged} is divided into groups: this kernel needs whole matrices"
    return None


def dtypes_are_not(problem: Problem, name: str, accepted: Sequence[str]) -> str | None:
    """An operand or output has a dtype for which there is no code."""
    dtype = problem.dtype(name).name
    if dtype in accepted:
        return None
    return f"{name} is {dtype}: this kernel needs {' or '.join(accepted)}"


def has_unknown_activation(problem: Problem) -> str | None:
    """The activation has no form that Mosaic compiles."""
    function = problem.spec.function
    form = "mosaic_pullback" if problem.spec.pullback else "mosaic"
    if function is None or getattr(function, form) is not None:
        return None
    known = [row.name for row in epilogue.ACTIVATIONS.values() if getattr(row, form) is not None]
    name = problem.spec.activation
    return f"activation {name} cannot be compiled by Mosaic: it needs one of {', '.join(known)}"


def asks_for_sum(problem: Problem) -> str | None:
    """The spec asks for the sum of the rows of d."""
    if problem.spec.sum_dtype is not None:
        return "d_sum is asked for: this kernel does not add up the rows of d"
    return None


def sums_over_batch(problem: Problem) -> str | None:
    """A batch axis is contracted."""
    for index, names in enumerate(problem.spec.batch):
        if "d" not in names:
            return (
                f"batch axis {index} of {problem.size[f'b{index}']} is summed over: this kernel"
                " sums over k only; fold the axis into k"
            )
    return None


def has_bad_size(problem: Problem) -> str | None:
    """A dimension is empty, or so long that an index overflows."""
    for label, size in problem.sizes:
        if size == 0:
            return f"{label} = 0: this kernel needs at least one element along every dimension"
        if size > _MAX_INDEX:
            return f"{label} = {size}: indices are int32; split {label} into parts below 2^31"
    num_rows = math.prod(problem.shape("d")[:-1])
    if num_rows > _MAX_INDEX:
        return f"d has {num_rows} rows over all batch axes: indices are int32; split the batch"
    return None
