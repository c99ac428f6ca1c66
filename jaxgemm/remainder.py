"""What XLA does of the epilogue of a backward pass where a kernel takes only a part of it.

Where a kernel does not sum the rows of d, XLA adds them up afterwards. Where it does not multiply
by act'(z) either, it computes the product alone, in the accumulator dtype, and XLA does the rest
and rounds once. That product is a plain GEMM, which every kernel knows.
"""

from collections.abc import Callable

import jax

from jaxgemm import canonical, reference
from jaxgemm.kernel import Operands
from jaxgemm.problem import Problem, Shaped

_Outputs = tuple[jax.Array, ...]


def simpler(problem: Problem) -> Problem | None:
    """The canonical problem that is left when XLA does one more step; None if it does none."""
    part = _part(problem)
    return None if part is None else canonical.canonical(part)


def _part(problem: Problem) -> Problem | None:
    spec = problem.spec
    if spec.sum_dtype is not None:
        spec = spec.without_sum()
    elif spec.pullback:
        spec, _ = spec.product(problem.accumulator).without_lone_axes()
    else:
        return None
    return Problem.of(spec, [Shaped(problem.shape(n), problem.dtype(n)) for n in spec.operands])


def evaluate(
    problem: Problem,
    computed: Problem,
    operands: Operands,
    run: Callable[[Problem, Operands], _Outputs],
) -> _Outputs:
    """The outputs of a canonical problem, by `run` of one that `simpler` leaves of it, or of it."""
    if problem == computed:
        return run(problem, operands)
    part = _part(problem)
    assert part is not None, (problem, computed)
    named = {name: operands[name] for name in part.spec.operands}
    outputs = canonical.evaluate(part, named, lambda p, xs: evaluate(p, computed, xs, run))
    spec, acc = problem.spec, problem.accumulator
    if spec.sum_dtype is not None:
        return (*outputs, reference.sum_of_rows(spec, outputs[0].astype(acc)))
    _, labels = spec.product(acc).without_lone_axes()
    product = reference.align(outputs[0], labels, spec.labels("d"))
    return reference.finish(spec, [product], operands)
