"""The choice of a kernel and its config: (problem, device, policy, tables) → plan. Pure, cached.

A policy's backend says which kernels may answer. Among those that accept the problem, the one
that answers is, in this order, the one with a config that was measured to be the fastest

    tuned cache             by this user, for this problem
    shipped table           by whoever made the package, for this problem
    nearest tuned problem   for one with the same spec and dtypes, and sizes nearly as large

or, where nothing like it was measured, the one with the cheapest estimate ("cost model"). Nothing
can be estimated of libraries, XLA's and cuBLASLt: they answer where they were measured to be faster
than the others, for this problem or the nearest, cuBLASLt where tiles would leave half of the
device without work, and the XLA reference where nothing else does, or only tiles that would be half
empty. Of the epilogue of a backward pass XLA does a part (`remainder.py`) if then a kernel of ours
answers, and no library was measured to be faster.
"""

import dataclasses
import functools
from collections.abc import Iterable
from typing import Any

from jaxgemm import registry, remainder, traffic
from jaxgemm.device import Device
from jaxgemm.errors import UnsupportedProblem
from jaxgemm.kernel import Kernel
from jaxgemm.policy import Policy
from jaxgemm.problem import Problem
from jaxgemm.tuning import cache, cost
from jaxgemm.tuning.cache import Tables
from jaxgemm.tuning.times import TIE

# In the order in which they decide.
TUNED, SHIPPED, NEAREST, MODEL = SOURCES = (
    "tuned cache",
    "shipped table",
    "nearest tuned problem",
    "cost model",
)
# What decides where nothing has to.
ONLY = "only kernel"
# A neighbour's sizes differ by no more than this in all: one of them by half, say.
_FARTHEST = 1.0
# What libraries are good at, such as few rows, changes less with size than what one config is.
_FARTHEST_OF_LIBRARIES = 3.0
# Its config is not taken if it is expected to cost this much more than the cheapest: then there
# is another number of waves, and what was best there is not best here.
_DEAREST_TRANSFER = 1.05
# A library was faster if it took this much less: otherwise it is a tie, and ours answers.
_FASTER = 1 + TIE
_UNMEASURED = (
    "a library: `auto` takes it where it was measured to be faster, see `jaxgemm.tune`, or where"
    " tiles would leave half of the device without work"
)
_NOT_TIMED = (
    "no config of it was ever timed: `auto` takes it where a table says so; see `jaxgemm.tune`"
)
# Tiles of which this part or less is used are not taken on the word of an estimate; nor, where a
# library other than XLA answers, are waves of tiles.
_HALF_FULL = 0.5
# What two configs must agree in if one is to stand for the other.
_ESSENTIALS = ("cta_tile", "cluster_size", "split_k")


@dataclasses.dataclass(frozen=True)
class Choice:
    """A kernel with the config that it would run with.

    Attributes:
      kernel: it.
      config: its config.
      estimate: what the cost model expects.
      source: what chose the config: one of `SOURCES`.
      measured_us: what the config was measured to take for this problem.
      neighbour: the similar problem for which the config was measured.
      scaled_us: for a library, what another kernel is expected to take, times the ratio of what
        both took for the neighbour.
    """

    kernel: Kernel
    config: Any
    estimate: cost.Estimate
    source: str = MODEL
    measured_us: float | None = None
    neighbour: Problem | None = None
    scaled_us: float | None = None

    @property
    def time_us(self) -> float:
        """The best guess of what it takes."""
        known = (self.measured_us, self.scaled_us, self.estimate.time_us)
        return next(time for time in known if time is not None)


@dataclasses.dataclass(frozen=True)
class Plan:
    """What runs, what would run if that failed, and why the others do not.

    Attributes:
      problem: what the choices compute: what was asked, or what XLA leaves of it (`remainder.py`).
      choices: kernels that accept the problem, best first; the XLA reference comes last, unless it
        was measured to be faster, or the tiles of others would be half empty.
      chosen_by: what decided: one of `SOURCES`, or `ONLY` where no other may answer.
      reasons: kernel name → why it declines.
    """

    problem: Problem
    device: Device
    choices: tuple[Choice, ...]
    chosen_by: str
    reasons: tuple[tuple[str, str], ...]

    @property
    def kernel(self) -> Kernel:
        """The kernel that runs."""
        return self.choices[0].kernel


@functools.lru_cache(maxsize=4096)
def plan(problem: Problem, device: Device, policy: Policy, tables: Tables | None = None) -> Plan:
    """Decides which kernel answers a canonical problem.

    Args:
      problem: what is asked.
      device: what it runs on.
      policy: which kernels may answer.
      tables: what was measured; None means the tables of this process, `cache.current`, which
        change only with `forget`.

    Raises:
      UnsupportedProblem: no kernel that the policy allows accepts it, with each reason; or the
        policy is strict and only the XLA reference does.
      ValueError: the policy names a backend that does not exist.
    """
    tables = cache.current(device) if tables is None else tables
    simpler = remainder.simpler(problem)
    if simpler is None:
        return _plan(problem, device, policy, tables)
    try:
        part = plan(simpler, device, policy, tables)
    except UnsupportedProblem:
        return _plan(problem, device, policy, tables)
    try:
        whole = _plan(problem, device, policy, tables)
    except UnsupportedProblem:
        return part
    return part if _is_better(part, whole) else whole


def _is_better(part: Plan, whole: Plan) -> bool:
    """Whether XLA should do what `part` lacks: unless ours does it all, or a faster library."""
    first, other = whole.choices[0], part.choices[0]
    if not first.kernel.is_black_box or first.kernel is other.kernel:
        return False
    if other.kernel.is_black_box:
        return first.kernel is registry.kernels()[-1]
    if first.measured_us is None or other.measured_us is None:
        return True
    # XLA reads d once more.
    rest_us = whole.problem.bytes_of("d") / (whole.device.dram_gbps * 1e3)
    return first.measured_us * _FASTER > other.measured_us + rest_us


def _plan(problem: Problem, device: Device, policy: Policy, tables: Tables) -> Plan:
    allowed = registry.selected(policy.backend)
    reasons = {kernel.name: kernel.why_not(problem, device) for kernel in allowed}
    choices = [
        _choice(kernel, problem, device, tables)
        for kernel in allowed
        if reasons[kernel.name] is None
    ]
    choices = [_with_neighbour(choice, choices, problem, device, tables) for choice in choices]
    declined = {name: reason for name, reason in reasons.items() if reason is not None}
    passed_over = registry.passed_over(policy.backend)
    for kernel in (k for k in registry.kernels() if k.name in passed_over):
        # What cannot answer anyway need not be built, say.
        declined[kernel.name] = kernel.why_not(problem, device) or passed_over[kernel.name]
    reference = registry.kernels()[-1]
    only_reference = all(choice.kernel is reference for choice in choices)
    strict = policy.strict and policy.backend == "auto" and device.platform == "cuda"
    if strict and only_reference:
        declined[reference.name] = "accepts it, but the policy is strict: only kernels may answer"
        choices = []
    if not choices:
        raise UnsupportedProblem(f"{problem} on {device.name}", declined)
    libraries_first = policy.backend == "auto" and _leaves_half_idle(problem, choices)
    if policy.backend == "auto":
        unknown = [c for c in choices if c.kernel is not reference and _is_unknown(c)]
        for choice in unknown:
            is_library = choice.kernel.is_black_box
            if is_library and libraries_first:
                continue
            declined[choice.kernel.name] = _UNMEASURED if is_library else _NOT_TIMED
            choices.remove(choice)
    rivals = [c for c in choices if not c.kernel.is_black_box and c.measured_us is not None]
    first = min((SOURCES.index(c.source) for c in rivals), default=0)
    choices.sort(key=lambda c: _preference(problem, c, first, strict and c.kernel is reference))
    if libraries_first:
        choices.sort(key=lambda c: not c.kernel.is_black_box or c.kernel is reference)
    alone = len(choices) == 1 and choices[0].source == MODEL
    chosen_by = ONLY if alone else choices[0].source
    return Plan(problem, device, tuple(choices), chosen_by, tuple(declined.items()))


def _is_unknown(choice: Choice) -> bool:
    """Whether nothing but an estimate speaks for what is known by timing it only."""
    is_known_by_timing = choice.kernel.is_black_box or _is_only_measured(choice.config)
    return is_known_by_timing and choice.source == MODEL


def _is_only_measured(config: Any) -> bool:
    return getattr(config, "only_measured", False)


def is_mostly_empty(problem: Problem, choice: Choice) -> bool:
    """Whether nothing but an estimate speaks for tiles that a problem does not half fill.

    What such tiles leave out is waited for all the same: with 1 to 32 rows XLA was up to 1.6 times
    faster than tiles of 64 (H200, bfloat16, n = k = 4096: the shipped table). Where bits must not
    depend on the number of rows, it does not matter.
    """
    is_guess = choice.source == MODEL and not choice.kernel.is_black_box
    is_half_full = choice.estimate.edge_utilisation > _HALF_FULL
    return is_guess and not is_half_full and not problem.spec.batch_invariant


def _leaves_half_idle(problem: Problem, choices: list[Choice]) -> bool:
    """Whether nothing was measured, and the tiles of ours would do half of a device's work or less.

    A library has smaller tiles and divides contractions. cuBLASLt was faster than ours for all 14
    problems of this kind in the shipped table (H200, bfloat16, 2026-11-30), by up to 1.44 times.
    XLA was not: for 512 x 512 x 512 it took 1.5 times as long. Where rows are not aligned,
    libraries are slow.
    """
    ours = [choice.estimate for choice in choices if not choice.kernel.is_black_box]
    if not ours or any(choice.source != MODEL for choice in choices):
        return False
    used = max(estimate.edge_utilisation * estimate.tail_utilisation for estimate in ours)
    return used <= _HALF_FULL and all(_alignment(problem))


def _preference(
    problem: Problem, choice: Choice, first: int, is_forbidden: bool
) -> tuple[int, int, float]:
    """Least is best; `first` is the first source in which kernels of ours were measured.

    Who timed a library only has not found it faster than what others measured of ours.
    """
    source, is_library = SOURCES.index(choice.source), choice.kernel.is_black_box
    # The last one but for others that may not answer, or hardly.
    rank = (
        3 if is_forbidden else 2 if is_mostly_empty(problem, choice) else int(_is_unknown(choice))
    )
    if is_library:
        return rank, max(source, first), choice.time_us * _FASTER
    return rank, source, choice.time_us


def forget() -> None:
    """Forgets plans and the tables of this process, which are then read again.

    Functions that are compiled already keep their kernels.
    """
    plan.cache_clear()
    cache.forget()


def _choice(kernel: Kernel, problem: Problem, device: Device, tables: Tables) -> Choice:
    """The config that a kernel would run with."""
    configs = kernel.configs(problem, device)
    assert configs, f"{kernel.name} accepts {problem} but has no config for it"
    for table, source in ((tables.user, TUNED), (tables.shipped, SHIPPED)):
        entry = table.find(problem, kernel)
        config = None if entry is None else _stored(configs, entry)
        # A config that the kernel does not list any more is not run.
        if entry is not None and config is not None:
            estimate = cost.estimate(problem, config, device, kernel.efficiency)
            return Choice(kernel, config, estimate, source, entry.time_us)
    ranked = cost.ranked(problem, configs, device, kernel.efficiency)
    if kernel.is_black_box:
        return Choice(kernel, *ranked[0])
    # What an estimate is good enough for, if there is any.
    ranked = [pair for pair in ranked if not _is_only_measured(pair[0])] or ranked
    transferred = _transferred(kernel, ranked, problem, device, tables)
    return transferred or Choice(kernel, *ranked[0])


def _with_neighbour(
    choice: Choice, choices: list[Choice], problem: Problem, device: Device, tables: Tables
) -> Choice:
    """The choice of a library, with what is known of it: for this problem, or for the nearest."""
    rivals = [other for other in choices if not other.kernel.is_black_box]
    if not choice.kernel.is_black_box or not rivals:
        return choice
    if any(rival.measured_us is not None for rival in rivals):
        return choice
    # A time that nothing can be compared with says nothing.
    choice = Choice(choice.kernel, choice.config, choice.estimate)
    for entry in tables.nearest(problem, choice.kernel, _FARTHEST_OF_LIBRARIES):
        if _alignment(entry.problem) != _alignment(problem):
            continue
        times = [
            (rival.time_us, measured.time_us)
            for rival in rivals
            if (measured := tables.find(entry.problem, rival.kernel)) is not None
        ]
        if not times:
            continue
        ratio = entry.time_us / min(measured_us for _, measured_us in times)
        if ratio * _FASTER >= 1:
            return choice
        return dataclasses.replace(
            choice,
            config=_stored(choice.kernel.configs(problem, device), entry) or choice.config,
            source=NEAREST,
            neighbour=entry.problem,
            scaled_us=ratio * min(expected_us for expected_us, _ in times),
        )
    return choice


def _alignment(problem: Problem) -> tuple[bool, ...]:
    """Whether rows of a, b and d are multiples of 16 bytes: where not, libraries are slow."""
    return tuple(traffic.row_bytes(problem, name) % 16 == 0 for name in ("a", "b", "d"))


def _stored(configs: Iterable[Any], entry: cache.Entry) -> Any | None:
    """The config that an entry names, if it is one of these."""
    return next((c for c in configs if cache.config_text(c) == entry.config), None)


def _transferred(
    kernel: Kernel,
    ranked: list[tuple[Any, cost.Estimate]],
    problem: Problem,
    device: Device,
    tables: Tables,
) -> Choice | None:
    """The config most like the one that was the fastest for the nearest problem, if it fits."""
    affordable_us = ranked[0][1].time_us * _DEAREST_TRANSFER
    for entry in tables.nearest(problem, kernel, _FARTHEST):
        if kernel.why_not(entry.problem, device) is not None:
            continue
        measured = _stored(kernel.configs(entry.problem, device), entry)
        alike = [pair for pair in ranked if measured is not None and _alike(pair[0], measured)]
        if not alike:
            continue
        config, estimate = min(alike, key=lambda pair: _num_differing(pair[0], measured))
        if estimate.time_us <= affordable_us:
            return Choice(kernel, config, estimate, NEAREST, neighbour=entry.problem)
    return None


def _alike(one: Any, other: Any) -> bool:
    """Whether configs agree in what a choice is about."""
    return all(getattr(one, name) == getattr(other, name) for name in _ESSENTIALS)


def _num_differing(one: Any, other: Any) -> int:
    """How many fields differ: those that follow from sizes, such as how many stages fit."""
    names = [field.name for field in dataclasses.fields(one)]
    return sum(getattr(one, name) != getattr(other, name, None) for name in names)
