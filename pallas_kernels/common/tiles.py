"""How tiles lie in shared memory, and which matrices TMA copies can address."""

from collections.abc import Iterable, Iterator
from typing import Any

import jax.experimental.pallas.mosaic_gpu as plgpu
import numpy as np

from jaxgemm.problem import Problem

# Widths of a row of a swizzle atom, powers of two; the wider, the fewer bank conflicts.
_MIN_SWIZZLE_BYTES, _MAX_SWIZZLE_BYTES = 32, 128
# Rows of a swizzle atom; a TMA copy addresses whole atoms.
ATOM_ROWS = 8
# Strides in global memory are multiples of this.
_STRIDE_BYTES = 16


def atom_widths(itemsizes: Iterable[int]) -> Iterator[int]:
    """Elements in a row of a swizzle atom, widest first, for elements of all these sizes in bytes.

    One number for all of them, whose atoms may then differ in bytes.
    """
    itemsizes = tuple(itemsizes)
    columns = _MAX_SWIZZLE_BYTES // max(itemsizes)
    while columns * min(itemsizes) >= _MIN_SWIZZLE_BYTES:
        yield columns
        columns //= 2


def atom_columns(sizes: Iterable[int], itemsizes: Iterable[int]) -> int | None:
    """The widest atom that tiles rows of all these sizes.

    A row that is shorter than the atom is as good as a multiple of it: the rest reads as zero.
    """
    sizes = tuple(sizes)
    fits = (
        columns
        for columns in atom_widths(itemsizes)
        if all(size % columns == 0 or size < columns for size in sizes)
    )
    return next(fits, None)


def swizzled(shape: tuple[int, ...], dtype: np.dtype, columns: int) -> Any:
    """Shared memory for tiles (…, m, n) in swizzle atoms of `columns` elements a row."""
    return plgpu.SMEM(
        shape,
        dtype,
        transforms=(
            plgpu.TilingTransform((ATOM_ROWS, columns)),  # pyright: ignore[reportAbstractUsage]
            plgpu.SwizzleTransform(columns * dtype.itemsize),  # pyright: ignore[reportAbstractUsage]
        ),
    )


def why_not_tma(problem: Problem, name: str) -> str | None:
    """Why TMA cannot copy tiles of a matrix operand or output; None where it can."""
    row_label, column_label = problem.spec.core_labels(name)[-2:]
    rows, columns = problem.size[row_label], problem.size[column_label]
    itemsize = problem.dtype(name).itemsize
    if columns * itemsize % _STRIDE_BYTES:
        return (
            f"{column_label} = {columns}: TMA needs rows of {name} of a multiple of"
            f" {_STRIDE_BYTES} bytes; for {problem.dtype(name)} make {column_label} a multiple"
            f" of {_STRIDE_BYTES // itemsize}"
        )
    if rows > ATOM_ROWS and rows % ATOM_ROWS:
        return (
            f"{row_label} = {rows}: TMA copies {ATOM_ROWS} rows of {name} at a time; make"
            f" {row_label} a multiple of {ATOM_ROWS}"
        )
    return None


def contiguous_size(problem: Problem, name: str) -> tuple[str, int]:
    """Label and size of the last dimension of an operand or output."""
    label = problem.spec.core_labels(name)[-1]
    return label, problem.size[label]
