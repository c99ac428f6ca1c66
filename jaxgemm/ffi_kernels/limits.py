"""Reasons to decline a problem that all CUDA kernels share; each is None where all is well."""

import math
from collections.abc import Iterator, Sequence

from jaxgemm.device import Device
from jaxgemm.ffi_kernels import instances
from jaxgemm.ffi_kernels.instances import Instance
from jaxgemm.problem import Problem

# As kMaxBatchAxes in ffi/abi/params.h.
_MAX_BATCH_AXES = 4
# What the epilogue reads and writes: the cases of LoadElement in ffi/parts/elements.cuh.
_DTYPES = ("float32", "bfloat16", "float16")
# Kernels round sizes up to whole tiles, and count 4-byte elements by halves, in 32-bit integers.
_MAX_SIZE = 2**30 - 1
# What ffi/abi/buffers.cc takes.
MAX_DIMENSION = 2**31 - 1
_MAX_CTAS = 2**31 - 1


def why_not_problem(problem: Problem, kernel: str, max_tiles: int = _MAX_CTAS) -> str | None:
    """Why no instance of a kernel computes a problem, whatever the device."""
    return next((x for x in _reasons(problem, kernel, max_tiles) if x is not None), None)


def why_not_device(device: Device, oldest: tuple[int, int], newest: tuple[int, int]) -> str | None:
    """Why a kernel cannot be compiled for a device."""
    if device.platform != "cuda":
        return f"{device.name} is not a CUDA device"
    if oldest <= device.compute_capability <= newest:
        return None
    first, last = (".".join(map(str, x)) for x in (oldest, newest))
    needed = first if first == last else f"{first} to {last}"
    capability = ".".join(map(str, device.compute_capability))
    return f"{device.name} has compute capability {capability}: this kernel needs {needed}"


def why_not_auto_lesson() -> str:
    """Why `auto` does not choose a rung of the ladder."""
    return "a lesson: `auto` leaves it to those who name it"


def why_not_shape(problem: Problem) -> str | None:
    """Why a problem is not a product of whole matrices, or of a batch of them."""
    spec = problem.spec
    if spec.ragged is not None:
        return f"{spec.ragged} is divided into groups: this kernel needs whole matrices"
    if spec.gated:
        return "b_up is present: this kernel multiplies by one b"
    return _why_not_batch(problem)


def why_not_tf32(problem: Problem) -> str | None:
    """Why a problem's float32 operands may not be multiplied as TF32."""
    if problem.dtype("a").name == "float32" and problem.spec.precision == "highest":
        return "precision is highest: Tensor Cores round float32 to TF32, with 10 bits of mantissa"
    return None


def why_not_sizes(problem: Problem, max_size: int) -> str | None:
    """Why a problem is too long along an axis."""
    for label, size in problem.sizes:
        if size > max_size:
            return f"{label} = {size}: this kernel takes at most {max_size}; split the problem"
    return None


def _reasons(problem: Problem, kernel: str, max_tiles: int) -> Iterator[str | None]:
    spec = problem.spec
    yield why_not_shape(problem)
    if spec.pullback:
        yield "z is given: this kernel does not multiply by the slope of an activation"
    if spec.sum_dtype is not None:
        yield "d_sum is asked for: this kernel does not add up the rows of d"
    yield why_not_sizes(problem, _MAX_SIZE)
    yield _why_not_inside(problem)
    rows = instances.of_kernel(kernel)
    known = tuple(dict.fromkeys(row.dtype for row in rows))
    dtype = problem.dtype("a").name
    if dtype not in known:
        yield f"a is {dtype}: this kernel needs {' or '.join(known)}"
    if problem.dtype("b").name != dtype:
        yield f"b is {problem.dtype('b')}: this kernel needs {dtype}, as a is"
    extras = tuple(name for name in ("c", "bias") if problem.has(name))
    for name in (*extras, *spec.outputs):
        if problem.dtype(name).name not in _DTYPES:
            yield f"{name} is {problem.dtype(name)}: this kernel needs {' or '.join(_DTYPES)}"
    yield _why_not_grid(problem, rows, max_tiles)


def _why_not_batch(problem: Problem) -> str | None:
    axes = problem.spec.batch
    for index, names in enumerate(axes):
        if "d" not in names:
            return (
                f"batch axis {index} of {problem.size[f'b{index}']} is summed over: this kernel"
                " sums over k only; fold the axis into k"
            )
    if len(axes) > _MAX_BATCH_AXES:
        return f"there are {len(axes)} batch axes: this kernel takes {_MAX_BATCH_AXES}; merge some"
    return None


def _why_not_inside(problem: Problem) -> str | None:
    """Kernels count an operand's rows, and elements from row to row, in 32-bit integers."""
    for name in (*problem.spec.operands, *problem.spec.outputs):
        inside = problem.spec.inside_labels(name)
        if not inside:
            continue
        rows, columns = math.prod(problem.shape(name)[:-1]), problem.shape(name)[-1]
        apart = math.prod(problem.size[label] for label in inside) * columns
        if max(rows, apart) > _MAX_SIZE:
            return (
                f"{name} has {rows} rows in all, {apart} elements apart within a matrix: between"
                f" rows of others this kernel takes at most {_MAX_SIZE} of either; split the batch"
            )
    return None


def _why_not_grid(problem: Problem, rows: Sequence[Instance], max_tiles: int) -> str | None:
    for row in rows:
        tile_m, tile_n, _ = row.cta_tile
        tiles = math.ceil(problem.m / tile_m) * math.ceil(problem.n / tile_n) * problem.batch_size
        if tiles > max_tiles:
            return f"d has {tiles} tiles: this kernel takes {max_tiles}; split the batch"
    return None
