"""Kernel times against the wall clock, with a device and a host whose times are known."""

import itertools
import types
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from jaxgemm.tuning import cupti, graphs, stamp, timing
from jaxgemm.tuning.graphs import AGREEMENT, GAP_US, Check
from jaxgemm.tuning.timing import Compiled

# Times of one kernel that are just long enough to be compared, and just too short.
LONG_US, SHORT_US = 1.01 * GAP_US / AGREEMENT, 0.99 * GAP_US / AGREEMENT


@pytest.mark.parametrize(
    ("wall_us", "cupti_us", "host_us", "num_kernels", "agrees"),
    [
        (104.0, 100.0, 1.0, 1, True),
        (96.0, 100.0, 1.0, 1, True),
        (106.0, 100.0, 1.0, 1, False),
        (94.0, 100.0, 1.0, 1, False),
        (2 * SHORT_US, SHORT_US, 1.0, 1, None),
        (2 * LONG_US, LONG_US, 1.0, 1, False),
        (4 * LONG_US, 2 * LONG_US, 1.0, 2, False),
        (2 * LONG_US, LONG_US, 1.0, 2, None),
        (200.0, 100.0, 90.0, 1, None),
        (200.0, None, 1.0, 1, None),
    ],
)
def test_clocks_agree_within_a_bound_where_nothing_else_explains_a_difference(
    wall_us: float, cupti_us: float | None, host_us: float, num_kernels: int, agrees: bool | None
) -> None:
    check = Check("graph", wall_us, cupti_us, host_us, num_kernels)
    assert check.agrees is agrees
    assert (check.incomparable is None) == (agrees is not None)


class _Result:
    """Is there when the device has got so far."""

    def __init__(self, device: "_Device", end_us: float) -> None:
        self._device, self._end_us = device, end_us

    def block_until_ready(self) -> None:
        self._device.now_us = max(self._device.now_us, self._end_us)

    def is_ready(self) -> bool:
        return self._device.now_us >= self._end_us


class _Device:
    """A host and a device that runs kernels one after the other, and what CUPTI says of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_us = self.free_us = 0.0
        self.kernels: list[tuple[str, float]] = []
        self.sets: list[Any] = []
        # Of each run that is recorded: when it began on a device at rest, on which sets.
        self.rests_us: list[float] = []
        self.launched: list[list[Any]] = []
        # How long what keeps the device busy takes, each time, and is said to take.
        self.burns_us, self.said_us = itertools.repeat(20000.0), 20000.0
        self.captured = True
        clock = types.SimpleNamespace(perf_counter=lambda: self.now_us / 1e6, sleep=self._rest)
        monkeypatch.setattr(graphs, "time", clock)
        monkeypatch.setattr(cupti, "record", self._record)
        monkeypatch.setattr(graphs, "compile_chain", self._chain)
        monkeypatch.setattr(graphs, "_burn", lambda: (self.burn, self.said_us))
        monkeypatch.setattr(stamp, "stamp", self._stamp)
        monkeypatch.setattr(stamp, "elapsed_us", lambda start_us, end_us: end_us - start_us)
        monkeypatch.setattr(jax, "default_backend", lambda: "gpu")

    def call(
        self, *kernels_us: float, error: float = 0.0, gap_us: float = 1.0, host_us: float = 10.0
    ) -> Callable[[Any], _Result]:
        """Launches kernels that really take longer than CUPTI says, by the share `error`."""

        def launch(x: Any) -> _Result:
            self.now_us += host_us
            self.sets.append(x)
            for time_us in kernels_us:
                self.kernels.append(("kernel", time_us))
                begin = max(self.free_us + gap_us, self.now_us)
                self.free_us = begin + time_us * (1 + error)
            return _Result(self, self.free_us)

        return launch

    def burn(self) -> _Result:
        """Keeps the device busy."""
        self.free_us = max(self.free_us, self.now_us) + next(self.burns_us)
        return _Result(self, self.free_us)

    def _stamp(self) -> float:
        """When the device is done with what was launched."""
        self.free_us = max(self.free_us, self.now_us)
        return self.free_us

    def wait(self) -> None:
        """As torch waits: for everything."""
        self.now_us = max(self.now_us, self.free_us)

    def _rest(self, seconds: float) -> None:
        assert self.free_us <= self.now_us, "a rest begins when the device is idle"
        self.rests_us.append(1e6 * seconds)
        self.now_us += 1e6 * seconds

    def _record(
        self, run: Callable[[], Any], warm_up: Callable[[], Any] | None = None
    ) -> list[tuple[str, float]]:
        for part in (warm_up or run, run):
            self.kernels, self.sets = [], []
            part()
            self.launched.append(self.sets)
        return list(self.kernels)

    def _chain(self, call: Compiled, sets: Sequence[Any]) -> tuple[Any, bool]:
        """The host launches a chain in the time of one call."""
        del sets

        def launch(several: Sequence[Any]) -> Any:
            start_us = self.now_us
            for operands in several:
                self.now_us = start_us
                result = call(operands)
            return result

        return launch, self.captured


def _compiled(call: Callable[[Any], Any]) -> Compiled:
    return Compiled(call, call, {})


@pytest.mark.parametrize("kernels_us", [(35.0,), (60.0, 70.0), (5000.0,)])
def test_a_graph_agrees_unless_cupti_is_wrong(
    kernels_us: tuple[float, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    device = _Device(monkeypatch)
    honest = graphs.check(_compiled(device.call(*kernels_us)), range(50))
    assert honest is not None
    assert (honest.launched, honest.agrees, honest.num_kernels) == ("graph", True, len(kernels_us))
    assert honest.cupti_us == pytest.approx(sum(kernels_us))
    assert honest.wall_us == pytest.approx(sum(kernels_us) + len(kernels_us))
    liar = graphs.check(_compiled(device.call(*kernels_us, error=0.1)), range(50))
    assert liar is not None
    assert liar.agrees is False


def test_both_runs_are_in_equal_conditions(monkeypatch: pytest.MonkeyPatch) -> None:
    device = _Device(monkeypatch)
    graphs.check(_compiled(device.call(100.0)), range(50))
    *_, wall, by_cupti = device.launched
    assert wall == by_cupti
    assert len(device.rests_us) == 2
    assert len(set(device.rests_us)) == 1
    # Every chain begins where the one before it ended, so all sets take turns.
    assert wall[:60] == [*range(50), *range(10)]


def test_a_call_so_short_that_gaps_count_is_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    device = _Device(monkeypatch)
    shortest = graphs.GAP_US / graphs.AGREEMENT
    assert graphs.check(_compiled(device.call(0.99 * shortest)), range(128)) is None
    assert graphs.check(_compiled(device.call(1.01 * shortest)), range(128)) is not None
    # Each kernel has a gap.
    assert graphs.check(_compiled(device.call(shortest, 0.9 * shortest)), range(128)) is None


@pytest.mark.parametrize(
    ("host_us", "burns_us", "said_us", "wall_us", "reason"),
    [
        # What the kernels really take, and a gap of a microsecond for each.
        (10.0, (20000.0,), 20000.0, 1.5 * (3.0 + 5.0) + 2, graphs.GAPS_COUNT),
        (1000.0, (20000.0,), 20000.0, 1.5 * (3.0 + 5.0) + 2, graphs.GAPS_COUNT),
        # What was enqueued too late does not count.
        (1000.0, (20000.0, 100.0, 100.0), 20000.0, 1.5 * (3.0 + 5.0) + 2, graphs.GAPS_COUNT),
        # Nothing keeps the device busy for so long: the time is the host's.
        (1000.0, (100.0,), 100.0, 1000.0 / 32, "the host may be the slower one"),
        (1000.0, (100.0,), 20000.0, 1000.0 / 32, "the host may be the slower one"),
    ],
)
def test_a_short_call_is_timed_in_a_graph_where_asked_and_not_judged(
    host_us: float,
    burns_us: tuple[float, ...],
    said_us: float,
    wall_us: float,
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device = _Device(monkeypatch)
    device.burns_us, device.said_us = itertools.cycle(burns_us), said_us
    call = device.call(3.0, 5.0, error=0.5, host_us=host_us)
    check = graphs.check(_compiled(call), range(50), short=True)
    assert check is not None
    assert (check.launched, check.agrees) == ("graph", None)
    assert check.incomparable == reason
    assert check.wall_us == pytest.approx(wall_us, rel=0.01)


def test_a_chain_that_is_not_a_graph_is_called_so(monkeypatch: pytest.MonkeyPatch) -> None:
    device = _Device(monkeypatch)
    device.captured = False
    check = graphs.check(_compiled(device.call(100.0)), range(3))
    assert check is not None
    assert (check.launched, check.agrees) == ("chain", True)


def test_a_chain_of_other_kernels_is_not_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    device = _Device(monkeypatch)
    both = device.call(90.0, 10.0)
    monkeypatch.setattr(graphs, "compile_chain", lambda *args: (lambda several: both(0), True))
    check = graphs.check(_compiled(device.call(100.0)), range(3))
    assert check is not None
    assert (check.cupti_us, check.agrees) == (None, None)


@pytest.mark.parametrize(
    ("error", "host_us", "agrees"), [(0.0, 10.0, True), (0.1, 10.0, False), (0.1, 200.0, None)]
)
def test_another_library_is_launched_call_by_call(
    error: float, host_us: float, agrees: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = _Device(monkeypatch)
    call = device.call(100.0, error=error, host_us=host_us)
    check = graphs.check(call, range(3), device.wait)
    assert check is not None
    assert (check.launched, check.agrees) == ("calls", agrees)
    assert len(device.rests_us) == 2


def test_a_cpu_has_nothing_to_check() -> None:
    assert graphs.check(lambda x: x, [1, 2]) is None


def test_a_chain_keeps_every_call_and_their_order() -> None:
    key = jax.random.key(0)
    sets = [{"a": jax.random.normal(k, (8, 8))} for k in jax.random.split(key, 5)]
    call = timing.compile_for(lambda x: jnp.dot(x["a"], x["a"]), sets[0])
    chain, captured = graphs.compile_chain(call, sets)
    assert captured is False
    for operands, result in zip(sets, chain(sets), strict=True):
        assert jnp.array_equal(result, call(operands))
    # On equal operands too, XLA has to multiply as often.
    once = jax.jit(call.function)
    lowered = jax.jit(lambda x: graphs.calls_in_order(once, [x] * 5)).lower(sets[0])
    assert lowered.as_text().count("stablehlo.optimization_barrier") == 4
    text = jax.jit(lambda xs: graphs.calls_in_order(once, xs)).lower(sets).compile().as_text()
    assert text is not None
    assert text.count(" dot(") == 5


def test_a_graph_is_one_command_buffer_and_nothing_else() -> None:
    graph = (
        "000: kCommandBuffer [source | sink]\n    001: kCustomCall [source | sink] kCustomCall\n"
    )
    assert graphs.is_graph(graph)
    assert not graphs.is_graph(graph + "002: kGemm [source | sink]\n")
    assert not graphs.is_graph("000: kCustomKernel gemm_fusion_dot\n001: kCustomKernel gelu\n")
    assert not graphs.is_graph("")
