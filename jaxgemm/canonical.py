"""The same GEMM with as few batch axes as a free reshape can leave.

Transforms only ever add batch axes to a spec. Just before a kernel is chosen, axes are merged
with their neighbours, and folded into m (a row is a row, whichever example it is from), into n, or
into k (summing over examples is contracting over them), wherever the memory already lies that way.
"""

import dataclasses
import itertools
from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxgemm.kernel import Operands
from jaxgemm.problem import Problem

# With `batch_invariant`, which kernels accept a problem must not depend on the number of rows, so
# rows are padded to what every kernel's alignment asks for.
_ROW_PADDING = 64
# No dimension is made longer than this by folding: kernels count rows and columns in 32 bits.
_MAX_FOLDED = 2**30 - 1


def fold(problem: Problem) -> Problem:
    """The problem with batch axes merged and folded; every operand keeps its element order."""
    ones = [i for i in range(len(problem.spec.batch)) if problem.size[f"b{i}"] == 1]
    problem = _without_axes(problem, ones)
    while (found := _foldable(problem)) is not None:
        axis, label = found
        size = problem.size | {label: _folded_size(problem, axis, label)}
        problem = _without_axes(dataclasses.replace(problem, sizes=tuple(size.items())), [axis])
    return problem


def _without_axes(problem: Problem, gone: list[int]) -> Problem:
    """The problem without some batch axes; those that are left are counted anew."""
    kept = [i for i in range(len(problem.spec.batch)) if i not in gone]
    size = {label: x for label, x in problem.size.items() if not label.startswith("b")}
    size |= {f"b{new}": problem.size[f"b{old}"] for new, old in enumerate(kept)}
    spec = problem.spec.without_axes(gone)
    return Problem(spec, tuple(sorted(size.items())), problem.dtypes)


def _folded_size(problem: Problem, axis: int, label: str) -> int:
    return problem.size[label] * problem.size[f"b{axis}"]


def _foldable(problem: Problem) -> tuple[int, str] | None:
    """The first batch axis that is one with another label and may become it, and that label.

    They are one where every operand or output that has one of them has the other next to it, on
    the same side everywhere.
    """
    spec = problem.spec
    labels = [spec.labels(name) for name in dict.fromkeys((*spec.operands, *spec.outputs))]
    axes = [f"b{i}" for i in range(len(spec.batch))]
    others = [*axes, *("mnk" if spec.ragged is None else ())]
    for axis, other in itertools.product(axes, others):
        if _folded_size(problem, axes.index(axis), other) > _MAX_FOLDED:
            continue
        both = [own for own in labels if axis in own or other in own]
        for pair in ((axis, other), (other, axis)):
            if all(pair in itertools.pairwise(own) for own in both):
                return axes.index(axis), other
    return None


def pad_rows(problem: Problem) -> Problem:
    """The problem with the rows that `batch_invariant` adds; any other problem as it is."""
    if not problem.spec.batch_invariant or problem.spec.ragged is not None:
        return problem
    size = {**problem.size, "m": -(-problem.m // _ROW_PADDING) * _ROW_PADDING}
    return dataclasses.replace(problem, sizes=tuple(sorted(size.items())))


def canonical(problem: Problem) -> Problem:
    """The problem that kernels are asked about."""
    return pad_rows(fold(problem))


def evaluate(
    problem: Problem,
    operands: Operands,
    run: Callable[[Problem, dict[str, jax.Array]], tuple[jax.Array, ...]],
) -> tuple[jax.Array, ...]:
    """The outputs of a problem, by `run` of the canonical one."""
    folded = fold(problem)
    padded = pad_rows(folded)
    inputs = {}
    for name, x in operands.items():
        x = x.reshape(folded.shape(name))
        if x.shape != padded.shape(name):
            x = jnp.pad(x, [(0, p - s) for p, s in zip(padded.shape(name), x.shape, strict=True)])
        inputs[name] = x
    outputs = run(padded, inputs)
    return tuple(
        x[tuple(map(slice, folded.shape(name)))].reshape(problem.shape(name))
        for name, x in zip(problem.spec.outputs, outputs, strict=True)
    )
