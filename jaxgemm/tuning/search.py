"""`tune`: measures the configs of every kernel that accepts a problem, and keeps the fastest.

For each distinct canonical problem: list the configs of all kernels that accept it; drop those
that the cost model expects to be far from the best (none of a library, whose cost nothing tells);
run the rest and the reference, compare them with what `gate.py` computes (a wrong one has no time);
time the right ones in alternation by the protocol of `timing.py`; write the fastest of each kernel,
and the reference, to the user's table. Nothing is tuned unless this is called: `jit` never is
slow because of it, and dispatch stays a pure function of the tables.
"""

import dataclasses
import functools
import importlib
import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.extend import core

from jaxgemm import canonical, dispatch, registry, remainder
from jaxgemm import device as devices
from jaxgemm.kernel import Kernel, Operands
from jaxgemm.policy import Policy
from jaxgemm.problem import Problem
from jaxgemm.tuning import cache, compiling, cost, gate, timing
from jaxgemm.tuning.found import Candidate, Tuned, Tuning
from jaxgemm.tuning.times import ratio

# The name of the primitive in jaxprs; what defines it is in a layer below this one.
PRIMITIVE = "gemm"
# A config is timed if its estimate is within this factor of the lowest, or among the lowest few.
_KEPT_FACTOR, _KEPT_AT_LEAST = 1.15, 5

# Whether a config should not even be tried.
Reject = Callable[[Kernel, Problem, Any], bool]


def tune(
    function: Callable[..., Any] | Problem,
    *args: Any,
    backend: str = "auto",
    regime: timing.Regime = "burst",
    max_seconds: float | None = None,
    folder: Path | None = None,
    save: bool = True,
    reject: Reject | None = None,
    **kwargs: Any,
) -> Tuning:
    """Measures which kernel and config is the fastest for every GEMM of a function.

    The function is traced, not run: its GEMMs are run on their own, on random operands. Later
    calls, traced after this, use what was found; functions that are compiled already do not.

    Args:
      function: anything JAX can trace, as in `explain`; or one `Problem`.
      *args: its arguments: arrays or `jax.ShapeDtypeStruct`s.
      backend: which kernels to try, as the argument of `gemm`.
      regime: "burst": with clocks as after a rest; "sustained": as under lasting load.
      max_seconds: no new problem is begun after this time.
      folder: where the user's table is kept; None means the user's cache folder.
      save: whether to write that table.
      reject: says of a config that it is not worth trying, because its compiled code spills
        registers, say. None, the default: what the cost model keeps is tried.
      **kwargs: its keyword arguments. Those that hold arrays are traced.

    Returns:
      A `Tuning`: print it, or read its `rows`.

    Raises:
      ValueError: the backend is unknown; or whatever tracing the function raises.

    Example:
      >>> import jax, jax.numpy as jnp, jaxgemm
      >>> x = jax.ShapeDtypeStruct((4096, 4096), jnp.bfloat16)
      >>> print(jaxgemm.tune(jaxgemm.gemm, x, x))  # doctest: +SKIP
    """
    kernels = registry.selected(backend)
    if isinstance(function, Problem):
        problems = [canonical.canonical(function)]
    else:
        problems = problems_of(function, *args, **kwargs)
    problems = _with_parts(problems)
    target, path = devices.current(), None
    deadline = time.monotonic() + (float("inf") if max_seconds is None else max_seconds)
    rows: list[Tuned] = []
    for problem in progress(problems):
        if rows and time.monotonic() > deadline:
            break
        row = tune_problem(problem, kernels, regime=regime, reject=reject)
        rows.append(row)
        if save and (entries := row.entries()):
            # Each as soon as it is known: an interrupted search keeps what it found.
            path = cache.save(entries, target.name, folder)
            dispatch.forget()
    return Tuning(target, tuple(rows), path, tuple(problems[len(rows) :]))


def traced(function: Callable[..., Any], *args: Any, **kwargs: Any) -> list[tuple[Problem, Policy]]:
    """The canonical problem and the policy of every GEMM of a function, in its order."""
    arrays = {k: v for k, v in kwargs.items() if hasattr(v, "shape")}
    static = {k: v for k, v in kwargs.items() if k not in arrays}
    jaxpr = jax.make_jaxpr(lambda xs, named: function(*xs, **named, **static))(args, arrays)
    return [
        (
            canonical.canonical(Problem.of(e.params["spec"], [v.aval for v in e.invars])),
            e.params["policy"],
        )
        for e in gemms(jaxpr.jaxpr)
    ]


def problems_of(function: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Problem]:
    """The distinct canonical problems of a function, in the order in which they first occur."""
    found = (problem for problem, _ in traced(function, *args, **kwargs))
    return list({cache.key_of(problem): problem for problem in found}.values())


def _with_parts(problems: Iterable[Problem]) -> list[Problem]:
    """The problems, each with what is left of it where XLA does a part: dispatch compares these."""
    found: dict[Problem, Problem] = {}
    for problem in problems:
        part: Problem | None = problem
        while part is not None:
            found.setdefault(cache.key_of(part), part)
            part = remainder.simpler(part)
    return list(found.values())


def gemms(jaxpr: Any) -> Iterator[Any]:
    """Every equation of the primitive in a jaxpr and in those inside it."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == PRIMITIVE:
            yield equation
            continue
        for leaf in jax.tree.leaves(equation.params, is_leaf=_is_jaxpr):
            if isinstance(leaf, core.ClosedJaxpr):
                yield from gemms(leaf.jaxpr)
            elif isinstance(leaf, core.Jaxpr):
                yield from gemms(leaf)


def _is_jaxpr(x: Any) -> bool:
    return isinstance(x, core.ClosedJaxpr | core.Jaxpr)


def progress(items: Sequence[Any]) -> Iterable[Any]:
    """The items, with a progress bar on a terminal where rich is installed."""
    if not sys.stderr.isatty():
        return items
    try:
        rich = importlib.import_module("rich.progress")
        console = importlib.import_module("rich.console").Console(stderr=True)
    except ImportError:
        return items
    return rich.track(items, description="tuning", console=console)


# One problem.


def tune_problem(
    problem: Problem,
    kernels: Sequence[Kernel],
    *,
    regime: timing.Regime = "burst",
    reject: Reject | None = None,
    fixed: Mapping[str, Any] | None = None,
) -> Tuned:
    """Measures one canonical problem on the device that is there.

    Args:
      problem: it.
      kernels: which to try; the reference among them is only measured for comparison.
      regime: as in `tune`.
      reject: as in `tune`.
      fixed: operand → array, for those that are not random: sizes of groups, which are equal
        unless they are given.
    """
    target, reference = devices.current(), registry.kernels()[-1]
    listed = [
        Candidate(kernel, config, estimate.time_us)
        for kernel in kernels
        if kernel is not reference and kernel.why_not(problem, target) is None
        for config, estimate in cost.ranked(
            problem, kernel.configs(problem, target), target, kernel.efficiency
        )
    ]
    kept = [c for c in prune(listed) if not (reject and reject(c.kernel, problem, c.config))]
    (config,) = reference.configs(problem, target)[:1]
    estimate = cost.estimate(problem, config, target, reference.efficiency)
    baseline = Candidate(reference, config, estimate.time_us)
    if not kept:
        return Tuned(problem, (), len(listed), baseline)
    sets = operand_sets(problem, fixed)
    answers = functools.cache(lambda: answers_of(problem, sets[0]))
    calls: dict[str, timing.Call] = {}
    checked = []
    for index, (candidate, call) in enumerate(_compiled(problem, [*kept, baseline], sets[0])):
        fault = candidate.fault if call is None else _wrong(call, sets[0], answers)
        checked.append(dataclasses.replace(candidate, fault=fault))
        if call is not None and fault is None:
            calls[_label(index, candidate)] = call
    *tried, baseline = _timed(checked, calls, sets, regime)
    return Tuned(problem, _ordered(tried), len(listed) - len(kept), baseline)


def prune(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Those that may be the fastest, lowest estimate first.

    A kernel whose estimates are all too high keeps its best config: an estimate of another kind
    of kernel may be further off than those of two configs of one kernel. Of a library, of which
    nothing can be estimated, all are kept.
    """
    ordered = sorted(candidates, key=lambda c: c.estimate_us)
    libraries = [c for c in ordered if c.kernel.is_black_box]
    ordered = [c for c in ordered if not c.kernel.is_black_box]
    limit = _KEPT_FACTOR * ordered[0].estimate_us if ordered else 0.0
    kept, seen = [], set()
    for rank, candidate in enumerate(ordered):
        first = candidate.kernel.name not in seen
        if first or rank < _KEPT_AT_LEAST or candidate.estimate_us <= limit:
            kept.append(candidate)
        seen.add(candidate.kernel.name)
    return [*kept, *libraries]


def operand_sets(problem: Problem, fixed: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
    """Random operands, so scaled that results are near 1, larger in all than twice the L2."""
    avals = {
        name: jax.ShapeDtypeStruct(problem.shape(name), problem.dtype(name))
        for name in problem.spec.operands
    }
    constants = dict(fixed or {})
    if problem.has("group_sizes"):
        total = problem.m if problem.spec.ragged == "m" else problem.k
        share, rest = divmod(total, max(1, problem.num_groups))
        equal = np.full(problem.num_groups, share, problem.dtype("group_sizes"))
        equal[:rest] += 1
        constants.setdefault("group_sizes", equal)
    if problem.has("row_start"):
        constants.setdefault("row_start", np.zeros((), problem.dtype("row_start")))
    size = 1 / math.sqrt(max(1, problem.k))
    scale = {} if problem.dtype("b").itemsize == 1 else {"b": size, "b_up": size}
    return timing.inputs(avals, total_bytes=timing.rotation_bytes(), scale=scale, fixed=constants)


def _compiled(
    problem: Problem, candidates: Sequence[Candidate], operands: Operands
) -> list[tuple[Candidate, timing.Call | None]]:
    """Each candidate with its call; or with a fault, if compiling it failed."""
    runs = [functools.partial(c.kernel.run, problem, c.config) for c in candidates]
    return [
        (dataclasses.replace(candidate, fault=_said(found)), None)
        if isinstance(found, Exception)
        else (candidate, found[0])
        for candidate, found in zip(
            candidates, compiling.compile_together(runs, operands), strict=True
        )
    ]


def _wrong(
    call: timing.Call, operands: Operands, answers: Callable[[], tuple[gate.Answer, ...]]
) -> str | None:
    """Why a call has no time: it fails, or its outputs are wrong."""
    try:
        outputs = jax.block_until_ready(call(operands))
        error = max(x.error(output) for x, output in zip(answers(), outputs, strict=True))
    except Exception as failure:  # a kernel that breaks is a fault of the kernel, whatever it is
        return _said(failure)
    # Not `error > 1`, which NaN would pass.
    return None if error <= 1 else f"wrong: its error is {error:.3g} times the bound"


def answers_of(problem: Problem, operands: Operands) -> tuple[gate.Answer, ...]:
    """What each output of a problem should be."""
    return tuple(
        gate.answer_of_sum(problem, operands)
        if name == "d_sum"
        else gate.answer(*of_output(problem, operands, name))
        for name in problem.spec.outputs
    )


def of_output(problem: Problem, operands: Operands, name: str) -> tuple[Problem, Operands]:
    """A problem whose d is one output of this one, and its operands: z is d without activation."""
    if name == "d":
        return problem, operands
    spec = problem.spec.without_sum()
    plain = spec.restricted({*spec.operands} - {"b_up"}).replace(
        activation=None,
        clamp=None,
        save_preactivation=False,
        out_dtype=spec.residual_dtype,
    )
    kinds = tuple((x, kind) for x, kind in problem.dtypes if x != "b_up")
    weights = operands["b_up" if name == "z_up" else "b"]
    chosen = {x: operands[x] for x in plain.operands} | {"b": weights}
    return dataclasses.replace(problem, spec=plain, dtypes=kinds), chosen


def _timed(
    candidates: Sequence[Candidate],
    calls: Mapping[str, timing.Call],
    sets: Sequence[Operands],
    regime: timing.Regime,
) -> list[Candidate]:
    """The candidates, with the times of those that have a call under their label."""
    try:
        measured = timing.measure(calls, sets, regime=regime) if calls else {}
    except Exception as failure:  # whatever broke, the problems after this one can be tuned
        return [c if c.fault else dataclasses.replace(c, fault=_said(failure)) for c in candidates]
    return [
        dataclasses.replace(candidate, times=measured.get(_label(index, candidate)))
        for index, candidate in enumerate(candidates)
    ]


def _label(index: int, candidate: Candidate) -> str:
    """Two configs may have the same short name."""
    return f"{index} {candidate.name}"


def _said(failure: BaseException) -> str:
    return f"{type(failure).__name__}: {failure}"


def _ordered(candidates: Sequence[Candidate]) -> tuple[Candidate, ...]:
    """Fastest first. Those that cannot be told from the fastest are in the order of estimates.

    So that noise does not decide, and two searches find the same.
    """
    timed = [(c.times, c) for c in candidates if c.times is not None]
    others = [c for c in candidates if c.times is None]
    timed.sort(key=lambda pair: pair[0].median_us)
    tied, rest = [], []
    for measured, candidate in timed:
        slower = ratio(measured, timed[0][0])
        (tied if slower.tie and slower.high >= 1 else rest).append(candidate)
    tied.sort(key=lambda c: (c.kernel.is_black_box, c.estimate_us))
    return (*tied, *rest, *others)
