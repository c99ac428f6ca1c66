"""Benchmarks: what they measure, what they refuse to time, what they write."""

import csv
import dataclasses
import io
import json
import math
import os
import pathlib
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import (
    cases,
    compare,
    console,
    counters,
    environment,
    fields,
    groups,
    implementations,
    manifest,
    measured,
    pictures,
    records,
    report,
    tables,
)
from benchmarks.records import Record
from benchmarks.runner import Options, Runner
from benchmarks.variants import Implementation, compiled
from jaxgemm.tuning import cupti, gate, resources, timing
from jaxgemm.tuning.graphs import Check
from jaxgemm.tuning.times import Times, ratio

_ROOT = pathlib.Path(__file__).parents[1]
ROWS = {row.name: row for row in manifest.rows()}


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        cwd=_ROOT,
        env={**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""},
    )


def _record(**changes: Any) -> Record:
    row = manifest.Row("some_row", 64, 64, 64, suites="dense")
    shared = {name: getattr(row, name) for name in ("m", "n", "k", "batch", "groups")}
    shared |= {name: getattr(row, name) for name in ("trans_a", "trans_b", "epilogue")}
    shared |= {n: getattr(row, n) for n in ("a_dtype", "b_dtype", "compute_dtype", "out_dtype")}
    times = Times((10.0, 11.0, 12.0), "wall")
    base = {"row": "some_row", "suite": "dense", "mode": "forward", "regime": "burst"}
    base |= {"impl": "jaxgemm", "status": "ok", "baseline": "jnp.dot"}
    return Record(
        **{**shared, **base, **fields.stamp(), **fields.timed(times, times, 1, 1), **changes}
    )


# The manifest.


def test_every_row_of_the_manifest_is_a_case_or_has_a_reason():
    unsupported = {}
    for row in manifest.rows():
        try:
            case = cases.of(row)
        except cases.Unsupported as reason:
            unsupported[row.name] = str(reason)
            continue
        assert case.problem.n == (row.n // 2 if case.problem.spec.gated else row.n)
        assert case.flops <= 2 * row.m * row.n * row.k * row.batch
        with jax.enable_x64(row.a_dtype == "float64"):
            d = jax.eval_shape(cases.call(case), case.avals("forward"))
        assert case.avals("vjp")["d_bar"].shape == d.shape
        assert d.dtype.name == row.out_dtype
    assert len(unsupported) == 18
    assert all(unsupported.values())


def test_manifest_names_what_is_wrong():
    head = ",".join(field.name for field in dataclasses.fields(manifest.Row))
    with pytest.raises(ValueError, match="columns"):
        manifest.parse(["name,m", "x,1"])
    values = {f.name: "0" for f in dataclasses.fields(manifest.Row)} | {"name": "x", "m": "many"}
    with pytest.raises(ValueError, match="line 2"):
        manifest.parse([head, ",".join(values.values())])
    values |= {"m": "1", "mode": ""}
    with pytest.raises(ValueError, match="one row"):
        manifest.parse([head, *[",".join(values.values())] * 2])


def test_suites_filters_and_sweeps_select_rows():
    assert len(manifest.select(["readme"], None)) >= 14
    assert [r.name for r in manifest.select(["all"], "^smoke_swiglu$")] == ["smoke_swiglu"]
    with pytest.raises(ValueError, match="--suite"):
        manifest.select(["nothing"], None)
    swept = manifest.sweep("64:192:64", "", "32", a_dtype="float32")
    assert [(r.m, r.n, r.k) for r in swept] == [(64, 64, 32), (128, 128, 32), (192, 192, 32)]
    with pytest.raises(ValueError, match="first:last:step"):
        manifest.span("1:2:3:4")


@pytest.mark.parametrize("row", [r for r in manifest.rows() if r.distribution], ids=str)
def test_distributions_deal_at_most_all_rows(row: manifest.Row):
    if not row.layout.startswith("ragged"):
        return
    total = row.m if row.layout == "ragged_m" else row.k
    sizes = groups.sizes(row.distribution, total, row.groups)
    assert sizes.dtype == np.int32
    assert (sizes >= 0).all()
    assert sizes.sum() <= total
    np.testing.assert_array_equal(sizes, groups.sizes(row.distribution, total, row.groups))


# Records.


def test_a_record_survives_being_written_and_read(tmp_path: pathlib.Path):
    record = _record(throttle=("power cap",), tags=("x",))
    records.append(tmp_path / "nested" / "a.jsonl", record)
    assert records.read(tmp_path / "nested" / "a.jsonl") == (record,)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"surprise": 1}, "surprise"),
        ({"m": "64"}, "m = '64'"),
        ({"m": True}, "m = True"),
        ({"median_us": math.nan}, "finite"),
        ({"status": "fine"}, "status"),
        ({"median_us": None}, "should have all of"),
        ({"status": "wrong"}, "should have no time"),
        ({"kernels": "one"}, "kernels"),
        ({"versions": {"jax": 11}}, "versions"),
        ({"check": "guess", "graph_us": 1.0}, "check 'guess'"),
        ({"check": "graph"}, "should have graph_us"),
        ({"check": "calls"}, "should have wall_us"),
        ({"graph_us": 1.0}, "should have check"),
        ({"check": "graph", "graph_us": 1.0, "clocks_agree": True}, "should have check_cupti_us"),
    ],
)
def test_invalid_records_are_refused(changes: dict[str, Any], message: str):
    good = json.loads(records.to_json(_record()))
    with pytest.raises(ValueError, match=message):
        records.validate({**good, **changes})


def test_a_check_that_breaks_is_a_reason(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(cupti, "record", lambda run: run())

    def broken(x: Any) -> None:
        raise RuntimeError("no memory")

    found = fields.checked(broken, [1, 2])
    assert found == {"reason": "clocks are not compared: RuntimeError: no memory"}


@pytest.mark.parametrize("launched", records.CHECKS)
def test_a_check_is_recorded_and_only_disagreement_is_shown(launched: Any):
    for wall_us, cupti_us, agrees in (
        (110.0, 100.0, False),
        (101.0, 100.0, True),
        (9.0, 5.0, None),
    ):
        found = fields.of_check(Check(launched, wall_us, cupti_us, 1.0, 1))
        record = _record(**found)
        assert records.from_json(records.to_json(record)) == record
        assert (record.check, record.clocks_agree) == (launched, agrees)
        assert (record.wall_us if launched == "calls" else record.graph_us) == wall_us
        assert ("gaps between kernels" in record.reason) == (agrees is None)
        assert ("CLOCKS DISAGREE" in console.line(record)) == (agrees is False)


def test_a_record_without_a_field_or_a_reason_is_refused(tmp_path: pathlib.Path):
    good = json.loads(records.to_json(_record()))
    with pytest.raises(ValueError, match="commit"):
        records.validate({name: x for name, x in good.items() if name != "commit"})
    timeless = {name: x for name, x in good.items() if not name.endswith("_us")}
    with pytest.raises(ValueError, match="reason"):
        records.validate({**timeless, "status": "failed"})
    (tmp_path / "a.jsonl").write_text(records.to_json(_record()) + "\n[]\n")
    with pytest.raises(ValueError, match=r"a\.jsonl:2"):
        records.read(tmp_path / "a.jsonl")


# Timing.


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
        monkeypatch.setattr(cupti, "record", self._record)
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


def test_counters_of_all_kernels_of_a_call_add_up():
    head = '"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"'
    lines = [
        '"0","gemm","dram__bytes.sum","byte","1,000"',
        '"0","gemm","launch__registers_per_thread","register/thread","168"',
        '"1","reduce","dram__bytes.sum","byte","24"',
        '"1","reduce","launch__registers_per_thread","register/thread","32"',
        '"1","reduce","something.else","","1"',
    ]
    found = counters.parse("\n".join(["==PROF== connected", head, *lines]))
    assert found == {"dram_bytes": 1024, "registers": 168}
    with pytest.raises(ValueError, match="no kernel"):
        counters.parse("==PROF== disconnected")


# The gate.


@pytest.mark.parametrize(
    "name",
    [
        "smoke_bf16",
        "smoke_odd_nt",
        "smoke_bias_gelu",
        "smoke_alpha_beta",
        "smoke_swiglu",
        "smoke_interleaved",
        "smoke_int8",
        "smoke_grouped",
    ],
)
def test_the_gate_lets_right_results_through_and_one_wrong_element_not(name: str):
    case = cases.of(ROWS[name])
    operands = case.inputs("forward")[0]
    d = case.stored(jax.jit(cases.call(case))(operands))
    logical = case.logical(operands)
    assert gate.error(case.problem, logical, d) <= 1
    wide = d.astype(jnp.float32)
    moved = jnp.max(jnp.abs(wide)) / 2
    wrong = wide.at[(0,) * d.ndim].add(moved).astype(d.dtype)
    assert gate.error(case.problem, logical, wrong) > 1
    if name == "smoke_bias_gelu":
        assert gate.error(case.problem, logical, wrong, stepwise=True) > 1
    if jnp.issubdtype(d.dtype, jnp.floating):
        missing = d.at[(-1,) * d.ndim].set(jnp.nan)
        assert gate.error(case.problem, logical, missing) == math.inf
    assert gate.error(case.problem, logical, wide.astype(jnp.float16)) == math.inf


@pytest.mark.parametrize("name", ["smoke_odd_tn", "smoke_grad", "smoke_swiglu", "smoke_grouped"])
def test_the_gate_judges_gradients(name: str):
    case = cases.of(ROWS[name])
    x = case.inputs("vjp")[0]
    variant = compiled(cases.call(case), case, "vjp", x)
    d, gradients = variant.outputs(variant.call(variant.prepare(x)))
    assert d is None
    assert set(gradients) == set(case.differentiable)
    operands = {n: x[n] for n in case.problem.spec.operands}
    assert gate.gradient_error(case.problem, operands, x["d_bar"], gradients) <= 1
    for operand in gradients:
        wrong = {**gradients, operand: gradients[operand] * 1.5}
        assert gate.gradient_error(case.problem, operands, x["d_bar"], wrong) > 1


# The runner.


def _fake(name: str, function: Callable[..., Any], reason: str | None = None) -> Implementation:
    def variants(case: Any, mode: str, sample: Any) -> Any:
        yield compiled(function, case, mode, sample)

    return Implementation(name, lambda case, mode: reason, variants)


def _crash(x: Any) -> Any:
    raise RuntimeError("no such instruction")


_FAKES = [
    _fake("wrong", lambda x: x["a"] @ x["b"] + 1),
    _fake("crashing", _crash),
    _fake("missing", _crash, "libmissing.so cannot be loaded"),
    _fake("right", lambda x: x["a"] @ x["b"]),
]


def test_a_wrong_a_crashing_and_a_missing_one_do_not_stop_the_others(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(implementations, "select", lambda names: _FAKES)
    names = ("wrong", "crashing", "missing", "right")
    runner = Runner(Options(backends=names, iterations=3))
    row = manifest.Row("r", 16, 16, 16, a_dtype="float32", b_dtype="float32", out_dtype="float32")
    ((name, found),) = runner.run([row])
    assert name == "r"
    assert {r.impl: r.status for r in found} == {
        "wrong": "wrong",
        "crashing": "failed",
        "missing": "unsupported",
        "right": "ok",
    }
    by_name = {r.impl: r for r in found}
    assert by_name["wrong"].median_us is None
    assert "its bound" in by_name["wrong"].reason
    assert "no such instruction" in by_name["crashing"].reason
    assert "libmissing.so" in by_name["missing"].reason
    for record in found:
        records.from_json(records.to_json(record))


def test_a_run_with_a_failure_ends_with_exit_code_1_and_keeps_the_rest(tmp_path: pathlib.Path):
    script = (
        "from absl import app\n"
        "from benchmarks import gemm, implementations\n"
        "from tests import test_benchmarks\n"
        "implementations.select = lambda names: test_benchmarks._FAKES\n"
        "app.run(gemm.main)\n"
    )
    out = tmp_path / "a.jsonl"
    flags = ("--m=16,32", "--dtype=float32", "--iterations=3", f"--out={out}")
    done = _run("-c", script, *flags)
    assert done.returncode == 1, done.stderr
    assert "4 failed or wrong" in done.stderr
    assert [r.status for r in records.read(out)].count("ok") == 2


def test_an_interrupt_keeps_what_is_measured(tmp_path: pathlib.Path):
    script = (
        "from absl import app\n"
        "from benchmarks import gemm, runner\n"
        "first = runner.Runner._row\n"
        "def row(self, row):\n"
        "    if row.m == 32: raise KeyboardInterrupt\n"
        "    return first(self, row)\n"
        "runner.Runner._row = row\n"
        "app.run(gemm.main)\n"
    )
    out = tmp_path / "a.jsonl"
    done = _run("-c", script, "--m=16,32", "--iterations=3", f"--out={out}")
    assert done.returncode == 130, done.stderr
    assert "interrupted after 1 of 2 rows" in done.stderr
    assert {r.m for r in records.read(out)} == {16}


def test_time_that_is_up_stops_before_the_next_row():
    done = _run("-m", "benchmarks.gemm", "--m=16,32", "--max_seconds=0")
    assert done.returncode == 0, done.stderr
    assert "time was up after 0 of 2 rows" in done.stderr


def test_unsupported_rows_are_reported():
    ((_, (record,)),) = Runner(Options()).run([ROWS["mxfp8_4096"]])
    assert record.status == "unsupported"
    assert "scales of mx32_e8m0" in record.reason


def test_smoke_prints_a_right_table(tmp_path: pathlib.Path):
    out = tmp_path / "a.jsonl"
    wanted = "--filter=square|swiglu|odd_tn|grouped_wgrad"
    done = _run("-m", "benchmarks.gemm", "--suite=smoke", wanted, f"--out={out}", "--iterations=9")
    assert done.returncode == 0, done.stderr
    found = records.read(out)
    assert {r.row for r in found} == {
        "smoke_square", "smoke_swiglu", "smoke_odd_tn", "smoke_grouped_wgrad"
    }  # fmt: skip
    for r in found:
        assert r.status == "ok"
        assert r.clock == "wall"
        case = cases.of(ROWS[r.row])
        assert r.tflops == pytest.approx(case.flops / r.median_us / 1e6, rel=1e-3)
        assert f"{r.median_us:.2f}" in done.stdout
        if r.impl == r.baseline:
            assert r.ratio == 1
    square = ROWS["smoke_square"]
    assert cases.of(square).total_bytes("forward") == 3 * 4 * 256**2
    assert cases.of(square).total_flops("forward_and_vjp") == 3 * 2 * 256**3
    assert len(done.stdout.splitlines()) == len(found) + 1


def test_other_formats_are_for_programs():
    found = [_record(row="a"), _record(row="b")]
    shown = {}
    for kind in ("json", "csv"):
        stream = io.StringIO()
        printer = console.Printer(kind, stream)
        for record in found:
            printer.show(record)
        shown[kind] = stream.getvalue().splitlines()
    assert [records.from_json(line) for line in shown["json"]] == found
    assert [line["row"] for line in csv.DictReader(shown["csv"])] == ["a", "b"]


def test_wrong_flags_are_said_in_a_line():
    done = _run("-m", "benchmarks.gemm", "--suite=nothing")
    assert done.returncode != 0
    assert "--suite: ['nothing'] should be among" in done.stdout + done.stderr
    done = _run("-m", "benchmarks.gemm", "--m=16", "--backends=nothing")
    assert done.returncode == 2
    assert done.stderr.startswith("--backends: 'nothing' is unknown")


def test_list_measures_nothing():
    done = _run("-m", "benchmarks.gemm", "--suite=readme", "--list")
    assert done.returncode == 0
    assert "sq_8192_bf16" in done.stdout
    assert "jnp.dot[f32acc]" in done.stdout


# Comparing and reporting.


def test_compare_finds_what_became_slower():
    before = [_record(row="a"), _record(row="b"), _record(row="c")]
    after = [_record(row="a"), _record(row="b", median_us=22.0), _record(row="d")]
    found = compare.compare(before, after)
    assert [(c.key[0], c.verdict) for c in found] == [("a", "tie"), ("b", "slower")]
    text = compare.table(found)
    assert "2 compared: 0 faster, 1 tie, 1 slower" in text


def _results(folder: pathlib.Path) -> pathlib.Path:
    """Made-up records of rows that pictures and tables show."""
    device = folder / "nvidia_h200"
    wanted = [r for r in manifest.rows() if {"readme", "sawtooth", "decode"} & {*r.suites.split()}]
    wanted += manifest.sweep("512:2048:512", "4096", "4096")
    wanted += [
        manifest.Row(f"grouped_{g}_balanced", 4096, 64, 64, suites="grouped_sweep", groups=g)
        for g in (1, 8)
    ]
    for row in wanted:
        shared = {n: getattr(row, n) for n in ("m", "n", "k", "batch", "groups", "epilogue")}
        shared |= {"row": row.name, "suite": row.family, "mode": row.mode or "forward"}
        for index, impl in enumerate(("jaxgemm", "jnp.dot", "torch.mm")):
            rates = {"tflops": 100.0 + index, "gbps": 1000.0, "ratio": 1.0 + 0.05 * index}
            records.append(device / "a.jsonl", _record(impl=impl, **shared, **rates))
    ceiling = _record(row="ceiling_read", suite="ceiling", gbps=4000.0)
    records.append(device / "ceilings.jsonl", ceiling)
    return folder


def test_report_writes_between_its_markers_only(tmp_path: pathlib.Path):
    devices = report.load(_results(tmp_path / "results"))
    before = "# Title\n\n<!-- table:dense-h200 -->\nold\n<!-- end -->\n\ntext | <!-- end -->\n"
    unknown = "<!-- table:dense-b200 -->\nkept\n<!-- end -->\n"
    target = tmp_path / "target"
    (target / "docs").mkdir(parents=True)
    (target / "README.md").write_text(before + unknown)
    assert report.write_tables(target, devices, check=True) == ["README.md"]
    assert (target / "README.md").read_text() == before + unknown
    assert report.write_tables(target, devices, check=False) == ["README.md"]
    after = (target / "README.md").read_text()
    assert after.startswith("# Title\n\n<!-- table:dense-h200 -->\n")
    assert after.endswith("<!-- end -->\n\ntext | <!-- end -->\n" + unknown)
    assert "old" not in after
    assert "8192×8192×8192" in after
    assert environment.commit() in after
    assert report.write_tables(target, devices, check=False) == []


def test_a_table_shows_the_last_measurement(tmp_path: pathlib.Path):
    path = tmp_path / "nvidia_h200" / "a.jsonl"
    for time, rate in (("2026-01-02", 2.0), ("2026-01-03", 3.0), ("2026-01-01", 1.0)):
        records.append(path, _record(row="sq_1024_bf16", time=time, tflops=rate))
    (only,) = measured.load(path.parent).found
    assert only.tflops == 3
    (path.parent / "other.jsonl").write_text("of another kind")
    (path.parent / "other.meta.json").write_text("{}")
    text = tables.of_marker("dense-h200", report.load(tmp_path))
    assert text is not None
    assert "2026-01-03" in text


def test_pictures_are_drawn_where_there_is_data(tmp_path: pathlib.Path):
    devices = report.load(_results(tmp_path / "results"))
    names = report.draw(tmp_path, devices)
    drawn = {pathlib.Path(n).stem.removeprefix("nvidia_h200_") for n in names}
    assert drawn == set(pictures.PICTURES) - {"speedup_grouped"}
    assert all((tmp_path / "docs" / "pictures" / name).stat().st_size > 5000 for name in names)
    empty = measured.Results("cpu", ())
    assert not any(picture(empty) for picture in pictures.PICTURES.values())
