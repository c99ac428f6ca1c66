"""The same GEMM with as few batch axes as a free reshape can leave.

Transforms only ever add batch axes to a spec. Just before a kernel is chosen, axes are merged
with their neighbours, and folded into m (a row is a row, whichever example it is from) or into k
(summing over examples is contracting over them), wherever the memory already lies that way.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxgemm.kernel import Operands
from jaxgemm.problem import Problem
from jaxgemm.spec import GemmSpec

# With `batch_invariant`, which kernels accept a problem must not depend on the number of rows, so
# rows are padded to what every kernel's alignment asks for.
_ROW_PADDING = 64


def fold(problem: Problem) -> Problem:
    """The problem with batch axes merged and folded; every operand keeps its element order."""
    spec, size = problem.spec, dict(problem.size)
    axes: list[tuple[tuple[str, ...], int]] = []
    for i, names in enumerate(spec.batch):
        length = size.pop(f"b{i}")
        if length == 1:
            continue
        if axes and axes[-1][0] == names:
            length *= axes.pop()[1]
        axes.append((names, length))
    while axes and (label := _absorbed_by(spec, axes[-1][0])):
        size[label] *= axes.pop()[1]
    size |= {f"b{i}": length for i, (_, length) in enumerate(axes)}
    spec = spec.replace(batch=tuple(names for names, _ in axes))
    return Problem(spec, tuple(sorted(size.items())), problem.dtypes)


def _absorbed_by(spec: GemmSpec, names: tuple[str, ...]) -> str | None:
    """The label that an innermost batch axis can be folded into without moving data."""
    if spec.ragged is not None:
        return None
    rows = {"a", "d", *({"c", "z"} & {*spec.operands})}
    if set(names) == rows and spec.a_contract == 1:
        return "m"
    if names == ("a", "b") and spec.a_contract == 0 and spec.b_contract == 0:
        return "k"
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
