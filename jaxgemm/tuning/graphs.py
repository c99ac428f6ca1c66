"""Whether kernel times agree with a clock that has nothing to do with CUPTI.

    check = graphs.check(call, sets)        # call: from `compile_for`
    check.agrees, check.wall_us, check.cupti_us

Calls of a compiled function are chained into one executable, each on operands of its own, and XLA
is told to capture it as one CUDA graph, so that the host launches a chain and not a call and the
kernels of a chain follow each other within about a microsecond. The chain runs twice in equal
conditions: after the same rest, as often, on the same operands.

    wall    the time between the ends of two chains, of which the next is always enqueued; what the
            host needs to notice an end is in both and cancels
    CUPTI   the sum of all kernels of a chain

Both are medians over the chains, for one call. What JAX cannot trace is launched call by call
instead, in both runs alike. The two are compared only where the gaps between kernels are too short
to explain a difference, and where the host keeps the device busy. Where gaps count, the wall clock
of a graph is a time of its own: what a call costs between others, with kernels that overlap counted
once. The host needs longer to launch such graphs than the device to run them. So they are enqueued
behind other work, each between two kernels that read the device's clock (`stamp.py`).
"""

import dataclasses
import functools
import itertools
import math
import pathlib
import re
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import lax

from jaxgemm.tuning import cupti, launches, stamp
from jaxgemm.tuning.cupti import Record
from jaxgemm.tuning.launches import Call, Candidate
from jaxgemm.tuning.timing import Compiled

# CUPTI sums and the wall clock must agree this well.
AGREEMENT = 0.05
# The device needs up to this long from one kernel to the next.
GAP_US = 1.5
# A host that needs more of the time of a launch than this may not keep the device busy.
_HOST_SHARE = 0.8
# A chain lasts this long if as many calls as it may have, and sets, are enough.
_CHAIN_US = 2000.0
_MAX_CALLS = 32
_RUN_SECONDS = 0.02
_REST_SECONDS = 0.05

# Everything that XLA can put into a command buffer, even a single kernel, one after the other.
_CAPTURE = {
    "xla_gpu_enable_command_buffer": (
        "FUSION,CUBLAS,CUBLASLT,CUDNN,CUSTOM_CALL,CONDITIONAL,WHILE,DYNAMIC_SLICE_FUSION"
    ),
    "xla_gpu_graph_min_graph_size": 1,
    "xla_gpu_command_buffer_scheduling_mode": "SERIALIZE",
}
# How many graphs of short calls are timed by the device's clock, how many of these must have been
# enqueued in time, and how much longer the work before each takes than the host needs to launch it.
_STAMPED, _FEWEST_STAMPED = 24, 5
_BURN_FACTOR = 4
# JAX lets 32 launches wait: of work before them, this many.
_MAX_WAITING = 28
# Elements of what keeps the device busy meanwhile, and its steps: about 8 ms on an H200.
_BURN_ELEMENTS, _BURN_STEPS = 1 << 26, 64
# Why times of short calls are not compared.
GAPS_COUNT = "gaps between kernels count"
_THUNKS = "thunk_sequence_after_thunk_passes.txt"


@dataclasses.dataclass(frozen=True)
class Check:
    """Times of one call by two clocks.

    Attributes:
      launched: "graph": many calls in a captured CUDA graph; "chain": many calls in an executable
        that XLA did not capture as a whole; "calls": one by one.
      wall_us: wall clock of a call.
      cupti_us: the sum of its kernels; None if CUPTI saw others than in a single call.
      host_us: what the host needed to launch a call.
      num_kernels: of a call.
    """

    launched: Literal["graph", "chain", "calls"]
    wall_us: float
    cupti_us: float | None
    host_us: float
    num_kernels: int

    @property
    def incomparable(self) -> str | None:
        """Why the two times cannot be compared, None where they can."""
        if self.cupti_us is None:
            return "CUPTI saw other kernels than in a single call"
        if self.host_us > _HOST_SHARE * self.cupti_us:
            return "the host may be the slower one"
        if _gaps_count(self.num_kernels, self.cupti_us):
            return GAPS_COUNT
        return None

    @property
    def agrees(self) -> bool | None:
        """Whether both times are the same within `AGREEMENT`; None where that says nothing."""
        if self.incomparable is not None:
            return None
        assert self.cupti_us is not None
        return abs(self.wall_us / self.cupti_us - 1) <= AGREEMENT


def _gaps_count(num_kernels: int, time_us: float) -> bool:
    return num_kernels * GAP_US > AGREEMENT * time_us


def check(
    call: Call,
    sets: Sequence[Any],
    wait: Callable[[], None] | None = None,
    *,
    short: bool = False,
) -> Check | None:
    """The check of one candidate of `timing.measure`.

    None where there is no CUPTI, and for calls so short that gaps between kernels count: these
    cost a compilation each and check nothing. `short` times them nonetheless.

    Raises:
      RuntimeError: CUPTI saw no kernel, or another profiler holds it; or whatever compiling and
        running a chain raises.
    """
    if jax.default_backend() != "gpu":
        return None
    entry = Candidate("check", call, sets, wait)
    kernels = cupti.record(lambda: entry.wait(entry.launch(0)))
    time_us = sum(time_us for _, time_us in kernels)
    is_short = _gaps_count(len(kernels), time_us)
    if is_short and not short:
        return None
    if not isinstance(call, Compiled) or wait is not None:
        num_launches = launches.count(_RUN_SECONDS, time_us, 10, 200)
        pace, records = _twice(lambda: _burst(entry, num_launches))
        return _checked("calls", 1, pace, records, kernels)
    num_calls = min(_MAX_CALLS, len(sets), max(2, math.ceil(_CHAIN_US / max(time_us, 0.1))))
    chain, captured = compile_chain(call, sets[:num_calls])
    num_chains = launches.count(_RUN_SECONDS, num_calls * time_us, 5, 64)
    windows = [_window(sets, index * num_calls, num_calls) for index in range(len(sets))]
    chained = Candidate("chain", chain, windows)
    # A graph is built by the first chains.
    for index in range(3):
        chained.wait(chained.launch(index))
    pace, records = _twice(lambda: _paced(chained, num_chains))
    if is_short:
        pace = _stamped(chained, pace)
    kind = "graph" if captured else "chain"
    return _checked(kind, num_calls, pace, records, kernels)


def calls_in_order(call: Call, sets: Sequence[Any]) -> list[Any]:
    """The results of a call on each set, which XLA neither merges, reorders nor leaves out."""
    results: list[Any] = []
    for operands in sets:
        if results:
            # XLA may move nothing of this call ahead of the one before it.
            operands, results[-1] = lax.optimization_barrier((operands, results[-1]))
        results.append(call(operands))
    return results


def compile_chain(call: Compiled, sets: Sequence[Any]) -> tuple[Call, bool]:
    """One executable of a call on each set, and whether it is one CUDA graph.

    XLA does not say what it captured but in the list of what the executable does, which it writes
    to a folder.
    """
    # What is under jit on its own is traced and lowered once, not for every set.
    once = jax.jit(call.function)

    def chain(sets: list[Any]) -> list[Any]:
        return calls_in_order(once, sets)

    with tempfile.TemporaryDirectory() as folder:
        options = {**call.options, **_CAPTURE, "xla_dump_to": folder}
        compiled = jax.jit(chain).lower(list(sets)).compile(compiler_options=options)
        dumps = pathlib.Path(folder).glob(f"*jit_chain.{_THUNKS}")
        return compiled, any(is_graph(dump.read_text()) for dump in dumps)


def is_graph(thunks: str) -> bool:
    """Whether all that an executable does is to launch one command buffer."""
    return re.findall(r"^\d+: (\w+)", thunks, re.MULTILINE) == ["kCommandBuffer"]


def _window(sets: Sequence[Any], start: int, size: int) -> list[Any]:
    return [sets[(start + i) % len(sets)] for i in range(size)]


@dataclasses.dataclass(frozen=True)
class _Pace:
    """Medians of the time between the ends of two launches and of what the host needs for one."""

    wall_us: float
    host_us: float
    num_launches: int


def _twice(run: Callable[[], _Pace]) -> tuple[_Pace, list[Record]]:
    """Runs twice after equal rests, first without CUPTI: that run's pace, the other's kernels."""
    paces = []

    def rested() -> None:
        time.sleep(_REST_SECONDS)
        paces.append(run())

    records = cupti.record(rested)
    return paces[0], records


def _paced(entry: Candidate, num_launches: int) -> _Pace:
    """Waits for each launch when the next is enqueued, so that the device always has work."""
    ends, host = [], []
    result = entry.launch(0)
    for index in range(1, num_launches):
        start = time.perf_counter()
        following = entry.launch(index)
        host.append(time.perf_counter() - start)
        entry.wait(result)
        ends.append(time.perf_counter())
        result = following
    entry.wait(result)
    ends.append(time.perf_counter())
    between = [end - start for start, end in itertools.pairwise(ends)]
    return _Pace(1e6 * statistics.median(between), 1e6 * statistics.median(host), num_launches)


def _stamped(entry: Candidate, slow: _Pace) -> _Pace:
    """The pace of launches by the device's clock, each of which waits behind other work.

    It is `slow`, the pace that waits for the host, where the host cannot enqueue so much.
    """
    burn, burn_us = _burn()
    num_burns = max(1, math.ceil(_BURN_FACTOR * slow.host_us / burn_us))
    if num_burns > _MAX_WAITING:
        return slow
    # Always on the same operands: before it launches a graph on other memory the host has to change
    # it, and for that waits for the device. A launch that is late all the same, because its results
    # got other memory, say, does not count. Other work drives operands out of the cache.
    paces = [_between_stamps(entry, burn, num_burns) for _ in range(_STAMPED)]
    known = [us for us in paces if us is not None]
    if len(known) < _FEWEST_STAMPED:
        return slow
    return _Pace(statistics.median(known), 0.0, slow.num_launches)


def _between_stamps(entry: Candidate, burn: Callable[[], Any], num_burns: int) -> float | None:
    """From the end of other work to that of a launch; None if the other work ended too early."""
    burnt = [burn() for _ in range(num_burns)][-1]
    start = stamp.stamp()
    result = entry.launch(0)
    end = stamp.stamp()
    is_late = burnt.is_ready()
    entry.wait(result)
    return None if is_late else stamp.elapsed_us(start, end)


@functools.cache
def _burn() -> tuple[Callable[[], Any], float]:
    """Something that keeps the device busy for long and is launched at once, and for how long."""

    def scale(x: jax.Array) -> jax.Array:
        return lax.fori_loop(0, _BURN_STEPS, lambda _, x: 0.5 * x + 1, x)

    x = jnp.ones(_BURN_ELEMENTS, jnp.float32)
    compiled = jax.jit(scale).lower(x).compile()

    def burn() -> Any:
        return compiled(x)

    burn().block_until_ready()
    start = time.perf_counter()
    burn().block_until_ready()
    return burn, 1e6 * (time.perf_counter() - start)


def _burst(entry: Candidate, num_launches: int) -> _Pace:
    """Launches all, then waits: for libraries that can only wait for the device as a whole.

    The host's share is that of the first few: later ones wait for room in the queue.
    """
    few = min(8, num_launches)
    start = enqueued = time.perf_counter()
    result = None
    for index in range(num_launches):
        result = entry.launch(index)
        if index + 1 == few:
            enqueued = time.perf_counter()
    entry.wait(result)
    end = time.perf_counter()
    return _Pace(1e6 * (end - start) / num_launches, 1e6 * (enqueued - start) / few, num_launches)


def _checked(
    launched: Literal["graph", "chain", "calls"],
    num_calls: int,
    pace: _Pace,
    records: list[Record],
    kernels: list[Record],
) -> Check:
    """The check of launches of `num_calls` calls each, of which one has these kernels."""
    per_launch = num_calls * len(kernels)
    cupti_us = None
    if len(records) == pace.num_launches * per_launch:
        parts = itertools.batched(records, per_launch)
        cupti_us = statistics.median(sum(us for _, us in part) for part in parts) / num_calls
    wall_us, host_us = pace.wall_us / num_calls, pace.host_us / num_calls
    return Check(launched, wall_us, cupti_us, host_us, len(kernels))
