"""How a time is measured: the one protocol, used by the tuner and by the benchmarks.

    sets = inputs(avals, total_bytes=rotation_bytes())
    calls = {"a": compile_for(f, sets[0]), "b": compile_for(g, sets[0])}
    measured = measure(calls, sets)
    times.ratio(measured["a"], measured["b"])

Callables are compiled ahead of time and take one dict of operands, from a rotation that is larger
than twice the last-level cache, so that no call finds its operands there. On a GPU a time is the
sum, by CUPTI, over all kernels of a call, also where one starts before the last has ended, which
the sum then counts twice. Launches of all candidates alternate (A B C C B A …), so they share the
state of the card. Two regimes:

    burst      after a rest, a few launches: clocks are high
    sustained  each candidate back to back for a quarter of a second, in two turns each, after a
               tenth of a second each as a warm-up: in the first half of a turn the card settles
               at the clock that its power limit allows for that candidate; the later half counts

`graphs.py` checks such sums against the wall clock of captured CUDA graphs. On a CPU the time is
the wall clock of a call, dispatch included, for short calls the mean of up to 32; `Times.clock`
says which.

Check a candidate with `gate.py` before it is timed: a wrong one has no time.
"""

import dataclasses
import functools
import itertools
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from jaxgemm import device
from jaxgemm.tuning import clocks, cupti, launches
from jaxgemm.tuning.cupti import Record
from jaxgemm.tuning.launches import Call, Candidate
from jaxgemm.tuning.times import Times

Operands = Mapping[str, Any]
Regime = Literal["burst", "sustained"]

# On a CPU: what a sample should last, so that the scheduler's whims average out.
_SHORTEST_SAMPLE_US = 500.0
_MAX_SETS = 128
# A prime, so that rows of no matrix repeat.
_POOL_SIZE = 16_777_213
_REST_SECONDS = 0.2
_BURST_SECONDS = 0.1
_TURN_SECONDS = 0.25
_TURNS = 2
# How much of a turn each candidate takes before the turns.
_WARM_UP = 0.4
_PACE_LAUNCHES = 8
_WALL_SECONDS = 0.5


def rotation_bytes() -> int:
    """More than twice the last-level cache of the device that is there."""
    return 2 * device.current().l2_bytes + 1


def inputs(
    avals: Mapping[str, Any],
    *,
    total_bytes: int,
    seed: int = 0,
    scale: Mapping[str, float] | None = None,
    fixed: Mapping[str, Any] | None = None,
) -> list[dict[str, jax.Array]]:
    """Sets of random operands which together take at least `total_bytes`, and at least two sets.

    Args:
      avals: operand → anything with shape and dtype.
      total_bytes: the size that the rotation should exceed; there are never more than 128 sets.
      seed: of the random numbers: the same seed gives the same sets.
      scale: operand → standard deviation, where it is not 1. Integers are uniform over [-127, 127].
      fixed: operand → array, for those that are not random: the same in every set.
    """
    scale, fixed = dict(scale or {}), dict(fixed or {})
    set_bytes = sum(math.prod(x.shape) * jnp.dtype(x.dtype).itemsize for x in avals.values())
    num_sets = min(_MAX_SETS, max(2, math.ceil(total_bytes / max(1, set_bytes))))
    constants = {name: jnp.asarray(x) for name, x in fixed.items()}
    start, sets = 0, []
    for _ in range(num_sets):
        operands = {}
        for index, (name, aval) in enumerate(avals.items()):
            if name in constants:
                operands[name] = constants[name]
                continue
            pool = _random((seed, index), jnp.dtype(aval.dtype), scale.get(name, 1.0))
            # A copy: sets that shared memory of the host would share its caches.
            operands[name] = jnp.array(_taken(pool, start, aval.shape))
            start += math.prod(aval.shape)
        sets.append(operands)
    return jax.block_until_ready(sets)


@functools.lru_cache(maxsize=8)
def _random(seed: tuple[int, ...], dtype: np.dtype, std: float) -> np.ndarray:
    """Random numbers, drawn on the host: what draws them on a GPU is compiled for every shape."""
    rng = np.random.default_rng(seed)
    if jnp.issubdtype(dtype, jnp.integer):
        return rng.integers(-127, 128, _POOL_SIZE).astype(dtype)
    wide = np.float64 if dtype.name == "float64" else np.float32
    return (std * rng.standard_normal(_POOL_SIZE, wide)).astype(dtype)


def _taken(pool: np.ndarray, start: int, shape: Sequence[int]) -> np.ndarray:
    """An array from a place in a pool on, and from its beginning again where it ends."""
    size, start = math.prod(shape), start % len(pool)
    if start + size <= len(pool):
        return pool[start : start + size].reshape(shape)
    return np.resize(np.concatenate([pool[start:], pool[:start]]), shape)


@dataclasses.dataclass(frozen=True)
class Compiled:
    """A compiled function that remembers what it was compiled from.

    Attributes:
      executable: is called.
      function: what JAX traced.
      options: of XLA.
    """

    executable: Callable[..., Any]
    function: Callable[..., Any]
    options: Mapping[str, Any]

    def __call__(self, *args: Any) -> Any:
        """Starts the work."""
        return self.executable(*args)


@dataclasses.dataclass(frozen=True)
class Lowered:
    """A function that is traced and lowered for some arguments; compiling it needs no Python."""

    lowered: Any
    function: Callable[..., Any]

    def compile(self, options: Mapping[str, Any] | None = None) -> Compiled:
        """The executable, with XLA's options."""
        options = dict(options or {})
        executable = self.lowered.compile(compiler_options=options or None)
        return Compiled(executable, self.function, options)


def lower_for(function: Callable[..., Any], *args: Any) -> Lowered:
    """`function`, traced and lowered for arguments like these."""
    return Lowered(jax.jit(function).lower(*args), function)


def compile_for(
    function: Callable[..., Any], *args: Any, options: Mapping[str, Any] | None = None
) -> Compiled:
    """`function`, compiled ahead of time for arguments like these, with XLA's options."""
    return lower_for(function, *args).compile(options)


def measure(
    candidates: Mapping[str, Call],
    sets: Sequence[Any] | Mapping[str, Sequence[Any]],
    *,
    regime: Regime = "burst",
    iterations: int | None = None,
    waits: Mapping[str, Callable[[], None]] | None = None,
) -> dict[str, Times]:
    """The times of candidates whose launches alternate.

    Args:
      candidates: name → a callable that takes one element of its sets, starts the work and
        returns without waiting for it. Best compiled ahead of time.
      sets: the arguments to rotate through, in common or for each candidate.
      regime: "burst" or "sustained".
      iterations: timed calls of each candidate; None: what fits into a few hundredths of a second,
        10 to 200. For "sustained", of each of two turns; None: what takes a quarter of a second.
      waits: candidate → a function that waits for the device, for candidates whose work JAX
        does not order among its own (another library's stream). The device is idle before and
        after each of their launches.

    Raises:
      RuntimeError: CUPTI saw no kernel, or another profiler holds it.
    """
    if not isinstance(sets, Mapping):
        sets = dict.fromkeys(candidates, sets)
    entries = [
        Candidate(name, call, sets[name], (waits or {}).get(name))
        for name, call in candidates.items()
    ]
    for entry in entries:
        entry.wait(entry.call(entry.sets[0]))
    if jax.default_backend() != "gpu":
        return _wall_times(entries, regime, iterations)
    kernels = _kernels(entries)
    with clocks.Sampler() as sampler:
        if regime == "burst":
            return _burst(entries, kernels, iterations, sampler)
        return _sustained(entries, kernels, iterations, sampler)


def trial_us(
    call: Call, sets: Sequence[Any], *, iterations: int, wait: Callable[[], None] | None = None
) -> float:
    """A quick median time of one candidate, to rank many: neither rested, alternated nor checked.

    `wait` is that of `measure`.
    """
    entry = Candidate("trial", call, sets, wait)
    if jax.default_backend() != "gpu":
        _wall_us(entry, 0)
        return statistics.median(_wall_us(entry, index) for index in range(iterations))
    return statistics.median(_alone(entry, iterations))


def _kernels(entries: list[Candidate]) -> dict[str, list[Record]]:
    """The kernels of one call of each, told apart by a marker that runs after each."""
    mark = _marker()
    marks = [name for name, _ in cupti.record(mark)]

    def run() -> None:
        for entry in entries:
            entry.wait(entry.launch(1))
            mark()

    records = cupti.record(run)
    ends = [i for i, (name, _) in enumerate(records) if name == marks[-1]]
    parts = [records[i:j] for i, j in itertools.pairwise([0, *(end + 1 for end in ends)])]
    if len(ends) == len(entries) and all(len(part) > len(marks) for part in parts):
        return {e.name: part[: -len(marks)] for e, part in zip(entries, parts, strict=True)}
    # One of them runs what the marker runs, or nothing.
    return {e.name: cupti.record(lambda e=e: e.wait(e.launch(1))) for e in entries}


def _marker() -> Callable[[], Any]:
    """Runs a kernel that no candidate has, and waits for it."""
    zero = jnp.uint8(0)
    compiled = jax.jit(lambda x: x ^ jnp.uint8(85)).lower(zero).compile()
    return lambda: compiled(zero).block_until_ready()


def _burst(
    entries: list[Candidate],
    kernels: dict[str, list[Record]],
    iterations: int | None,
    sampler: clocks.Sampler,
) -> dict[str, Times]:
    alone = {name: sum(time_us for _, time_us in records) for name, records in kernels.items()}
    # All of it is run twice, the first time as a warm-up.
    rounds = iterations or launches.count(_BURST_SECONDS / 2, sum(alone.values()), 8, 200)
    order = _alternating(entries, rounds)
    spans: list[tuple[float, float]] = []

    def run() -> None:
        start = time.perf_counter()
        _launch_all(order)
        spans.append((start, time.perf_counter()))

    time.sleep(_REST_SECONDS)
    records = cupti.record(run)
    samples, alternated = _split(order, kernels, records), True
    if samples is None:
        time.sleep(_REST_SECONDS)
        samples, alternated = {e.name: _alone(e, rounds) for e in entries}, False
    state = sampler.state(*spans[-1])
    return {e.name: _times(samples[e.name], kernels[e.name], state, alternated) for e in entries}


def _alternating(entries: list[Candidate], rounds: int) -> list[Candidate]:
    """A B C C B A A B C …: drift of the clocks falls on all alike."""
    forth = (entries, entries[::-1])
    return list(itertools.chain.from_iterable(forth[i % 2] for i in range(rounds)))


def _launch_all(order: list[Candidate]) -> None:
    """Launches in this order. Each takes the next set, so no launch follows one on its own set."""
    result, last = None, order[0]
    for index, entry in enumerate(order):
        if entry is not last and (entry.foreign_wait or last.foreign_wait):
            last.wait(result)
        result, last = entry.launch(index), entry
    last.wait(result)


def _split(
    order: list[Candidate], kernels: dict[str, list[Record]], records: list[Record]
) -> dict[str, list[float]] | None:
    """The sum of each launch, by position; None if the names are not those that were seen alone."""
    samples: dict[str, list[float]] = {entry.name: [] for entry in order}
    position = 0
    for entry in order:
        names = [name for name, _ in kernels[entry.name]]
        part = records[position : position + len(names)]
        if [name for name, _ in part] != names:
            return None
        samples[entry.name].append(sum(time_us for _, time_us in part))
        position += len(names)
    return samples if position == len(records) else None


def _alone(entry: Candidate, num_launches: int) -> list[float]:
    """The sum of each launch of one candidate, which all have as many kernels."""
    records = cupti.record(lambda: _launch_all([entry] * num_launches))
    per_launch, left = divmod(len(records), num_launches)
    if left:
        raise RuntimeError(
            f"{entry.name}: CUPTI saw {len(records)} kernels of {num_launches} equal launches"
        )
    parts = itertools.batched(records, per_launch)
    return [sum(time_us for _, time_us in part) for part in parts]


def _times(
    samples: list[float], kernels: list[Record], state: clocks.State, alternated: bool
) -> Times:
    names = tuple(name for name, _ in kernels)
    return Times(tuple(samples), "cupti", names, state, alternated)


def _sustained(
    entries: list[Candidate],
    kernels: dict[str, list[Record]],
    iterations: int | None,
    sampler: clocks.Sampler,
) -> dict[str, Times]:
    """Turns of a quarter of a second each, after a shorter one for each as a warm-up."""
    turns = {
        entry.name: iterations or launches.count(_TURN_SECONDS, _pace_us(entry), 20, 20000)
        for entry in entries
    }
    order = [entry for entry in entries * _TURNS for _ in range(turns[entry.name])]
    spans: dict[str, tuple[float, float]] = {}

    def warm_up() -> None:
        for entry in entries:
            _launch_all([entry] * math.ceil(turns[entry.name] * _WARM_UP))

    def run() -> None:
        for entry in entries * _TURNS:
            start = time.perf_counter()
            _launch_all([entry] * turns[entry.name])
            spans[entry.name] = (start, time.perf_counter())

    samples = _split(order, kernels, cupti.record(run, warm_up))
    if samples is None:
        raise RuntimeError("CUPTI saw other kernels in a turn than in a single call")
    times = {}
    for entry in entries:
        turn = turns[entry.name]
        later = [s for i, s in enumerate(samples[entry.name]) if i % turn >= turn // 2]
        start, end = spans[entry.name]
        state = sampler.state((start + end) / 2, end)
        found = _times(later, kernels[entry.name], state, True)
        times[entry.name] = dataclasses.replace(found, in_turns=True)
    return times


def _pace_us(entry: Candidate) -> float:
    """How long a call takes among others, whatever limits it."""
    start = time.perf_counter()
    _launch_all([entry] * _PACE_LAUNCHES)
    return 1e6 * (time.perf_counter() - start) / _PACE_LAUNCHES


def _wall_times(
    entries: list[Candidate], regime: Regime, iterations: int | None
) -> dict[str, Times]:
    """Wall clock of calls, each waited for, in alternation; short ones several at a time."""
    seconds = 4 * _WALL_SECONDS if regime == "sustained" else _WALL_SECONDS
    longest = max(_wall_us(entry, 1) for entry in entries)
    calls = math.ceil(_SHORTEST_SAMPLE_US / max(longest, _SHORTEST_SAMPLE_US / 32))
    order = _alternating(entries, iterations or launches.count(seconds, calls * longest, 9, 1000))
    samples: dict[str, list[float]] = {entry.name: [] for entry in entries}
    for index, entry in enumerate(order):
        several = [_wall_us(entry, index * calls + i) for i in range(calls)]
        samples[entry.name].append(statistics.fmean(several))
    return {name: Times(tuple(values), "wall") for name, values in samples.items()}


def _wall_us(entry: Candidate, index: int) -> float:
    start = time.perf_counter()
    entry.wait(entry.launch(index))
    return 1e6 * (time.perf_counter() - start)
