"""How calls are timed, and what compilers and profilers say of them."""

import dataclasses
import os
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import machine_code, ncu
from jaxgemm.tuning import clocks, cupti, resources, timing
from jaxgemm.tuning.times import Times, ratio


def test_the_interval_of_a_ratio_holds_it_and_is_reproducible():
    rng = np.random.default_rng(1)
    slow = Times(tuple(rng.normal(200, 4, 40)), "wall")
    fast = Times(tuple(rng.normal(100, 2, 40)), "wall")
    found = ratio(fast, slow)
    assert found == ratio(fast, slow)
    assert found.low < found.value < found.high
    assert found.low == pytest.approx(2, rel=0.05)
    assert not found.tie
    inverse = ratio(slow, fast)
    assert inverse.value == pytest.approx(1 / found.value)


def test_drift_of_the_clocks_is_not_taken_for_uncertainty_of_a_ratio():
    drift = np.linspace(100, 200, 40)
    slow, fast = Times(tuple(1.05 * drift), "cupti"), Times(tuple(drift), "cupti")
    found = ratio(fast, slow)
    assert found.low == pytest.approx(1.05)
    assert found.high == pytest.approx(1.05)
    for change in ({"alternated": False}, {"in_turns": True}):
        apart = ratio(dataclasses.replace(fast, **change), slow)
        assert apart.low < 0.95
        assert apart.high > 1.15


def test_power_is_not_told_of_a_time_shorter_than_its_period():
    sampler = clocks.Sampler()
    times_s = np.arange(30) / 100
    sampler._samples += [clocks._Sample(time_s, 1500.0, 300.0, 40.0, 0x4) for time_s in times_s]
    short, long = sampler.state(0.0, 0.05), sampler.state(0.0, 0.2)
    assert (short.power_w, short.sm_mhz, short.throttle) == (None, 1500.0, ("power cap",))
    assert long.power_w == 300.0


@pytest.mark.parametrize(("factor", "tie"), [(1.019, True), (0.981, True), (1.03, False)])
def test_less_than_two_per_cent_is_a_tie(factor: float, tie: bool):
    one, other = Times((100.0,) * 9, "wall"), Times((100.0 / factor,) * 9, "wall")
    assert ratio(other, one).tie == tie


def test_percentiles_are_those_of_the_samples():
    times = Times(tuple(map(float, range(1, 102))), "wall")
    assert (times.median_us, times.percentile_us(10), times.percentile_us(99)) == (51, 11, 100)


def test_inputs_rotate_through_enough_memory():
    avals = {
        "a": jax.ShapeDtypeStruct((64, 64), jnp.float32),
        "n": jax.ShapeDtypeStruct((), jnp.int32),
    }
    sets = timing.inputs(avals, total_bytes=100_000, fixed={"n": 3}, scale={"a": 0.5})
    assert sum(x["a"].nbytes for x in sets) > 100_000
    assert all(x["n"] == 3 for x in sets)
    assert float(jnp.std(sets[0]["a"])) == pytest.approx(0.5, rel=0.1)
    assert not jnp.array_equal(sets[0]["a"], sets[1]["a"])
    assert jnp.array_equal(sets[0]["a"], timing.inputs(avals, total_bytes=1)[0]["a"] * 0.5)
    assert len(timing.inputs(avals, total_bytes=1)) == 2


def test_random_numbers_begin_again_where_they_end(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(timing, "_random", lambda *_: np.arange(7, dtype=np.float32))
    a, b = (jax.ShapeDtypeStruct(shape, "float32") for shape in ((4, 5), (3,)))
    avals = {"a": a, "b": b}
    sets = timing.inputs(avals, total_bytes=1)
    drawn = np.concatenate([np.ravel(x[name]) for x in sets for name in avals])
    np.testing.assert_array_equal(drawn, np.arange(46) % 7)


def test_operands_have_no_random_numbers_in_common(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(timing, "_POOL_SIZE", 61)
    aval = jax.ShapeDtypeStruct((8, 8), jnp.float32)
    # A seed of its own: pools are kept.
    operands = timing.inputs({"a": aval, "b": aval}, total_bytes=1, seed=61)[0]
    a, b = (set(np.ravel(x).tolist()) for x in operands.values())
    assert len(a) == len(b) == 61
    assert not a & b


def test_a_cpu_is_timed_by_the_wall_clock():
    x = jnp.ones((8, 8))
    calls = {name: timing.compile_for(jnp.add, x, x) for name in "ab"}
    times = timing.measure({n: lambda x, f=f: f(x, x) for n, f in calls.items()}, [x, x])
    assert {t.clock for t in times.values()} == {"wall"}


class _Device:
    """Kernels that are launched, and what CUPTI would say of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.launched: list[tuple[str, float]] = []
        self.sets: list[Any] = []
        self.num_records = 0
        monkeypatch.setattr(cupti, "record", self._record)
        monkeypatch.setattr(timing, "_marker", lambda: lambda: self.launched.append(("mark", 1.0)))
        monkeypatch.setattr(timing, "_REST_SECONDS", 0)
        monkeypatch.setattr(jax, "default_backend", lambda: "gpu")

    def candidate(self, *kernels: tuple[str, float]) -> Callable[[Any], None]:
        def call(x: Any) -> None:
            self.launched += kernels
            self.sets.append(x)

        return call

    def _record(
        self, run: Callable[[], Any], warm_up: Callable[[], Any] | None = None
    ) -> list[tuple[str, float]]:
        self.num_records += 1
        (warm_up or run)()
        self.launched, self.sets = [], []
        run()
        return list(self.launched)


@pytest.mark.parametrize("regime", ["burst", "sustained"])
def test_all_kernels_of_a_call_count(regime: timing.Regime, monkeypatch: pytest.MonkeyPatch):
    device = _Device(monkeypatch)
    calls = {
        "one": device.candidate(("gemm", 100.0)),
        "split": device.candidate(("gemm", 80.0), ("reduce", 40.0)),
    }
    times = timing.measure(calls, range(3), regime=regime, iterations=20)
    assert {name: t.median_us for name, t in times.items()} == {"one": 100, "split": 120}
    assert times["split"].kernels == ("gemm", "reduce")
    assert {t.clock for t in times.values()} == {"cupti"}
    assert all(t.alternated for t in times.values())


def test_the_kernels_of_all_candidates_are_seen_at_once(monkeypatch: pytest.MonkeyPatch):
    device = _Device(monkeypatch)
    calls = {name: device.candidate((name, 50.0), ("reduce", 5.0)) for name in "abcd"}
    timing.measure(calls, range(3), iterations=10)
    # The marker, one call of each, and the launches that are timed.
    assert device.num_records == 3
    # Unless one of them runs the marker's kernel.
    calls["e"] = device.candidate(("gemm", 40.0), ("mark", 2.0))
    times = timing.measure(calls, range(3), iterations=10)
    assert times["e"].kernels == ("gemm", "mark")
    assert {n: t.median_us for n, t in times.items()} == dict.fromkeys("abcd", 55) | {"e": 42}


def test_no_call_finds_its_operands_in_the_cache(monkeypatch: pytest.MonkeyPatch):
    device = _Device(monkeypatch)
    calls = {name: device.candidate((name, 50.0)) for name in "abcd"}
    timing.measure(calls, range(6), iterations=10)
    assert all(device.sets[i] != device.sets[i + 1] for i in range(len(device.sets) - 1))
    assert set(device.sets) == set(range(6))


def test_kernels_that_cannot_be_told_apart_are_timed_one_by_one(monkeypatch: pytest.MonkeyPatch):
    device = _Device(monkeypatch)
    other = iter(range(10**6))

    def moody(x: Any) -> None:
        device.launched.append((f"kernel_{next(other)}", 70.0))

    calls = {"moody": moody, "steady": device.candidate(("gemm", 50.0))}
    times = timing.measure(calls, range(3), iterations=10)
    assert {name: t.median_us for name, t in times.items()} == {"moody": 70, "steady": 50}
    assert not any(t.alternated for t in times.values())


def test_a_sustained_turn_counts_from_its_middle_on(monkeypatch: pytest.MonkeyPatch):
    device = _Device(monkeypatch)
    number = iter(range(10**6))

    def call(x: Any) -> None:
        device.launched.append(("gemm", float(next(number))))

    measured = timing.measure({"one": call}, range(3), regime="sustained", iterations=10)
    # Turns of ten calls, the first turn right after the warm-up.
    first = measured["one"].samples_us[0] - 5
    later = [first + turn + i for turn in (0, 10) for i in range(5, 10)]
    assert list(measured["one"].samples_us) == later


def test_ptxas_is_read():
    log = "Used 168 registers\n8 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads"
    found = resources.parse(f"{log}\nsmem_scratch_bytes=229376\n")
    assert found == resources.Resources(168, 16, 8, 229376)
    assert resources.parse("nothing was compiled") is None
    with resources.watch() as said:
        os.write(1, b"Used 40 registers, and nothing of it is printed\n")
    assert said() == resources.Resources(40, 0, 0, 0)


def test_machine_code_is_read(monkeypatch: pytest.MonkeyPatch):
    usage = """
Fatbin elf code:
================
arch = sm_80
 Function _Zplain:
  REG:99 STACK:0 SHARED:0 LOCAL:0 CONSTANT[0]:896 TEXTURE:0 SURFACE:0 SAMPLER:0
Fatbin elf code:
================
arch = sm_90a
 Function _Zplain:
  REG:168 STACK:0 SHARED:1024 LOCAL:0 CONSTANT[2]:28 CONSTANT[0]:2176 TEXTURE:0 SAMPLER:0
 Function _Zstacked:
  REG:40 STACK:16 SHARED:0 LOCAL:8 CONSTANT[0]:896 TEXTURE:0 SURFACE:0 SAMPLER:0
Fatbin elf code:
================
arch = sm_120
 Function _Zplain:
  REG:77 STACK:0 SHARED:0 LOCAL:0 CONSTANT[0]:896 TEXTURE:0 SURFACE:0 SAMPLER:0
"""
    monkeypatch.setattr(machine_code, "_of_library", lambda: machine_code.parse(usage, "90a"))
    plain = {"registers": 168, "stack_bytes": 0, "spill_bytes": 0}
    assert machine_code.facts(["nvjet", "_Zplain"]) == plain
    assert machine_code.facts(["_Zplain", "_Zstacked"]) == {"registers": 168, "stack_bytes": 24}
    assert machine_code.facts(["nvjet"]) == {}
    assert machine_code.parse(usage, "86") == {"_Zplain": (99, 0)}
    assert machine_code.parse(usage.replace("sm_120", "sm_86"), "86") == {"_Zplain": (77, 0)}


def test_counters_of_all_kernels_of_a_call_add_up():
    head = '"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"'
    lines = [
        '"0","gemm","dram__bytes_read.sum","byte","1,000"',
        '"0","gemm","lts__t_sectors_op_read.sum","sector","3"',
        '"0","gemm","sm__warps_active.avg.pct_of_peak_sustained_active","%","n/a"',
        '"0","gemm","launch__registers_per_thread","register/thread","168"',
        '"1","reduce","dram__bytes_write.sum","byte","24"',
        '"1","reduce","launch__registers_per_thread","register/thread","32"',
        '"1","reduce","something.else","","1"',
    ]
    found = ncu.parse("\n".join(["==PROF== connected", head, *lines]))
    assert found == {"dram_bytes": 1024, "l2_bytes": 96, "registers": 168}
    with pytest.raises(ValueError, match="no kernel"):
        ncu.parse("==PROF== disconnected")
