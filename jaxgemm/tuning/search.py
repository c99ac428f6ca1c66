"""`tune`: measures the configs of every kernel that accepts a problem, and keeps the fastest.

For each distinct canonical problem: list the configs of all kernels that accept it; drop those
that the cost model expects to be far from the best; run the rest, compare them with the reference
(a wrong one has no time); time the right ones in alternation by the protocol of `timing.py`; write
each kernel's fastest to the user's table. Nothing is tuned unless this is called: `jit` never is
slow because of it, and dispatch stays a pure function of the tables.
"""

import dataclasses
import datetime
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

from jaxgemm import canonical, dispatch, registry
from jaxgemm import device as devices
from jaxgemm.device import Device
from jaxgemm.kernel import Kernel, Operands
from jaxgemm.problem import Problem
from jaxgemm.tuning import cache, cost, gate, timing
from jaxgemm.tuning.times import Times, ratio

# The name of the primitive in jaxprs; what defines it is in a layer below this one.
PRIMITIVE = "gemm"
# A config is timed if its estimate is within this factor of the lowest, or among the lowest few.
KEPT_FACTOR, KEPT_AT_LEAST = 1.5, 4

# Why a config should not be timed, from its compiled code; None if it should.
Resources = Callable[[Kernel, Problem, Any], str | None]


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A config that was tried.

    Attributes:
      kernel: its kernel.
      config: it.
      estimate_us: what the cost model expects.
      times: what it took, None if it has no time.
      fault: why it has none.
    """

    kernel: Kernel
    config: Any
    estimate_us: float
    times: Times | None = None
    fault: str | None = None

    @property
    def name(self) -> str:
        """Kernel and config in a word each."""
        return f"{self.kernel.name} {cost.short(self.config)}"


@dataclasses.dataclass(frozen=True)
class Tuned:
    """What was found for one problem.

    Attributes:
      problem: it.
      candidates: what was tried, fastest first, then those without a time.
      num_pruned: configs that were not tried because their estimate is too high.
      reference: the XLA reference, for comparison.
    """

    problem: Problem
    candidates: tuple[Candidate, ...]
    num_pruned: int
    reference: Candidate

    @property
    def best(self) -> Candidate | None:
        """The fastest, None if there is none that is right."""
        return next((c for c in self.candidates if c.times is not None), None)

    @property
    def untuned(self) -> Candidate | None:
        """What the cost model alone would have chosen, of those that have a time."""
        timed = [c for c in self.candidates if c.times is not None]
        return min(timed, key=lambda c: c.estimate_us, default=None)

    @property
    def faults(self) -> tuple[Candidate, ...]:
        """Those that are wrong, or failed."""
        return tuple(c for c in self.candidates if c.fault is not None)

    def entries(self) -> list[cache.Entry]:
        """The fastest of each kernel, for a table."""
        found: dict[str, cache.Entry] = {}
        for candidate in self.candidates:
            kernel, measured = candidate.kernel, candidate.times
            if measured is not None and kernel.name not in found:
                found[kernel.name] = cache.Entry(
                    kernel.name,
                    kernel.version,
                    cache.key_of(self.problem),
                    cache.config_text(candidate.config),
                    round(measured.median_us, 3),
                    _how(measured),
                )
        return list(found.values())


def _how(measured: Times) -> tuple[tuple[str, str], ...]:
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    mhz = measured.state.sm_mhz
    clock = {} if mhz is None else {"sm_mhz": f"{mhz:.0f}"}
    found = {"clock": measured.clock, "jax": jax.__version__, "time": now, **clock}
    return tuple(sorted(found.items()))


@dataclasses.dataclass(frozen=True)
class Tuning:
    """What `tune` found. Print it for a table.

    Attributes:
      device: what was measured.
      rows: one a distinct problem.
      path: the user's table, None if nothing was written.
      skipped: problems that there was no time for.
    """

    device: Device
    rows: tuple[Tuned, ...]
    path: Path | None = None
    skipped: tuple[Problem, ...] = ()

    def __str__(self) -> str:
        cells = [("us", "vs reference", "vs untuned", "tried", "faults", "best", "problem")]
        cells += [_cells(row) for row in self.rows]
        lines = [cost.columns(cells)]
        lines += [
            f"fault    {c.name} for {row.problem}: {c.fault}"
            for row in self.rows
            for c in row.faults
        ]
        lines += [f"skipped  {problem}: there was no time left" for problem in self.skipped]
        lines += [f"saved    {self.path}"] if self.path else []
        return "\n".join(lines)


def _cells(row: Tuned) -> tuple[str, ...]:
    best, untuned = row.best, row.untuned
    counts = (str(len(row.candidates)), str(len(row.faults)))
    if best is None or best.times is None:
        return ("-", "-", "-", *counts, "none", str(row.problem))
    us = best.times.median_us
    ratios = [
        "-" if other is None or other.times is None else f"x{other.times.median_us / us:.3f}"
        for other in (row.reference, untuned)
    ]
    return (f"{us:.2f}", *ratios, *counts, best.name, str(row.problem))


def tune(
    function: Callable[..., Any] | Problem,
    *args: Any,
    backend: str = "auto",
    regime: timing.Regime = "burst",
    max_seconds: float | None = None,
    folder: Path | None = None,
    save: bool = True,
    resources: Resources | None = None,
    **kwargs: Any,
) -> Tuning:
    """Measures which kernel and config is the fastest for every GEMM of a function.

    The function is traced, not run: its GEMMs are run on their own, on random operands. Later
    calls, traced after this, use what was found; functions that are compiled already do not.

    Args:
      function: anything JAX can trace, as in `explain`; or one canonical `Problem`.
      *args: its arguments: arrays or `jax.ShapeDtypeStruct`s.
      backend: which kernels to try, as the argument of `gemm`.
      regime: "burst": with clocks as after a rest; "sustained": as under lasting load.
      max_seconds: no new problem is begun after this time.
      folder: where the user's table is kept; None means the user's cache folder.
      save: whether to write that table.
      resources: says of a config, from its compiled code, why it is not worth timing: spilled
        registers, say. None, the default: every config is.
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
        problems: list[Problem] = [function]
    else:
        problems = problems_of(function, *args, **kwargs)
    target, path = devices.current(), None
    deadline = time.monotonic() + (float("inf") if max_seconds is None else max_seconds)
    rows: list[Tuned] = []
    for problem in progress(problems):
        if rows and time.monotonic() > deadline:
            break
        row = tune_problem(problem, kernels, regime=regime, resources=resources)
        rows.append(row)
        if save and (entries := row.entries()):
            # Each as soon as it is known: an interrupted search keeps what it found.
            path = cache.save(entries, target.name, folder)
            dispatch.forget()
    return Tuning(target, tuple(rows), path, tuple(problems[len(rows) :]))


def problems_of(function: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Problem]:
    """The distinct canonical problems of a function, in the order in which they first occur."""
    arrays = {k: v for k, v in kwargs.items() if hasattr(v, "shape")}
    static = {k: v for k, v in kwargs.items() if k not in arrays}
    jaxpr = jax.make_jaxpr(lambda xs, named: function(*xs, **named, **static))(args, arrays)
    found = (
        canonical.canonical(Problem.of(e.params["spec"], [v.aval for v in e.invars]))
        for e in gemms(jaxpr.jaxpr)
    )
    return list({cache.key_of(problem): problem for problem in found}.values())


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
    resources: Resources | None = None,
    fixed: Mapping[str, Any] | None = None,
) -> Tuned:
    """Measures one canonical problem on the device that is there.

    Args:
      problem: it.
      kernels: which to try; the reference among them is only measured for comparison.
      regime: as in `tune`.
      resources: as in `tune`.
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
    kept = prune(listed)
    (config,) = reference.configs(problem, target)[:1]
    estimate = cost.estimate(problem, config, target, reference.efficiency)
    baseline = Candidate(reference, config, estimate.time_us)
    sets = operand_sets(problem, fixed)
    calls: dict[str, timing.Call] = {}
    checked = []
    for index, candidate in enumerate([*kept, baseline]):
        call, fault = _checked(problem, candidate, sets[0], resources)
        checked.append(dataclasses.replace(candidate, fault=fault))
        if call is not None:
            calls[str(index)] = call
    *tried, baseline = _timed(checked, calls, sets, regime)
    return Tuned(problem, _ordered(tried), len(listed) - len(kept), baseline)


def prune(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Those that may be the fastest, lowest estimate first.

    A kernel whose estimates are all too high keeps its best config: an estimate of another kind
    of kernel may be further off than those of two configs of one kernel.
    """
    ordered = sorted(candidates, key=lambda c: c.estimate_us)
    limit = KEPT_FACTOR * ordered[0].estimate_us if ordered else 0.0
    kept, seen = [], set()
    for rank, candidate in enumerate(ordered):
        first = candidate.kernel.name not in seen
        if first or rank < KEPT_AT_LEAST or candidate.estimate_us <= limit:
            kept.append(candidate)
        seen.add(candidate.kernel.name)
    return kept


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


def _checked(
    problem: Problem, candidate: Candidate, operands: Operands, resources: Resources | None
) -> tuple[timing.Call | None, str | None]:
    """The compiled call of a candidate whose result is right, or None and why there is none."""
    kernel, config = candidate.kernel, candidate.config
    try:
        if resources is not None and (reason := resources(kernel, problem, config)) is not None:
            return None, reason
        call = timing.compile_for(lambda xs: kernel.run(problem, config, xs), operands)
        outputs = jax.block_until_ready(call(operands))
        error = max(
            gate.error(*of_output(problem, operands, name), output)
            for name, output in zip(problem.spec.outputs, outputs, strict=True)
        )
    except Exception as failure:  # a kernel that breaks is a fault of the kernel, whatever it is
        return None, _said(failure)
    # Not `error > 1`, which NaN would pass.
    if not error <= 1:
        return None, f"wrong: its error is {error:.3g} times the bound"
    return call, None


def of_output(problem: Problem, operands: Operands, name: str) -> tuple[Problem, Operands]:
    """A problem whose d is one output of this one, and its operands: z is d without activation."""
    if name == "d":
        return problem, operands
    spec = problem.spec
    names = tuple(x for x in spec.operands if x != "b_up")
    batch = tuple(tuple(x for x in axis if x != "b_up") for axis in spec.batch)
    plain = spec.replace(
        operands=names,
        batch=batch,
        activation=None,
        save_preactivation=False,
        out_dtype=spec.residual_dtype,
    )
    kinds = tuple((x, kind) for x, kind in problem.dtypes if x != "b_up")
    weights = operands["b_up" if name == "z_up" else "b"]
    chosen = {x: operands[x] for x in names} | {"b": weights}
    return dataclasses.replace(problem, spec=plain, dtypes=kinds), chosen


def _timed(
    candidates: Sequence[Candidate],
    calls: Mapping[str, timing.Call],
    sets: Sequence[Operands],
    regime: timing.Regime,
) -> list[Candidate]:
    """The candidates, with the times of those that have a call under their index."""
    try:
        measured = timing.measure(calls, sets, regime=regime) if calls else {}
    except Exception as failure:  # whatever broke, the problems after this one can be tuned
        return [c if c.fault else dataclasses.replace(c, fault=_said(failure)) for c in candidates]
    return [
        dataclasses.replace(candidate, times=measured.get(str(index)))
        for index, candidate in enumerate(candidates)
    ]


def _said(failure: Exception) -> str:
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
    return (*sorted(tied, key=lambda c: c.estimate_us), *rest, *others)
