"""Which of many records count, and what the sentences under a table make of them."""

import dataclasses
import json
import pathlib
from typing import Any

import pytest

from benchmarks import (
    bounds,
    captured,
    environment,
    footnotes,
    loads,
    measured,
    records,
    tables,
    untuned,
)
from jaxgemm import device, registry
from jaxgemm.tuning import cache, cost, encoding
from tests.benchmark_helpers import TIMELESS, captured_records, counted_record, record_of
from tests.kernel_cases import KernelCase
from tests.tuning_fakes import entry_of, product, tables_of

_PAIR = ("jaxgemm", "jnp.dot")
_ROW = "sq_1024_bf16"


def _run(
    folder: pathlib.Path, hour: int, commit: str, command: str, *impls: str, **changes: Any
) -> None:
    """Adds the records of one run of one row."""
    fields = {"row": _ROW, **changes}
    for impl in impls:
        time = f"2026-11-30T{hour:02}:00:00Z"
        record = record_of(impl=impl, commit=commit, command=command, time=time, **fields)
        records.append(folder / "nvidia_h200" / "a.jsonl", record)


def _loaded(folder: pathlib.Path) -> measured.Results:
    return measured.load(folder / "nvidia_h200")


def _table(folder: pathlib.Path, suite: str = "readme") -> str:
    text = tables.of_marker(f"{suite}-h200", [_loaded(folder)])
    assert text is not None
    return text


def test_times_of_two_runs_do_not_stand_side_by_side(tmp_path: pathlib.Path) -> None:
    _run(tmp_path, 1, "old", "first", *_PAIR, "torch.mm")
    _run(tmp_path, 2, "new", "second", *_PAIR)
    _run(tmp_path, 1, "old", "first", "jaxgemm", row="other")
    found = _loaded(tmp_path).found
    assert {r.impl: r.commit for r in found if r.row == _ROW} == dict.fromkeys(_PAIR, "new")
    assert [r.commit for r in found if r.row == "other"] == ["old"]


@pytest.mark.parametrize("larger_first", [True, False])
def test_of_one_commit_the_run_with_most_implementations_counts(
    tmp_path: pathlib.Path, larger_first: bool
) -> None:
    hours = (1, 2) if larger_first else (2, 1)
    _run(tmp_path, hours[0], "new", "all", *_PAIR, "torch.mm", "cublaslt-best")
    _run(tmp_path, hours[1], "new", "again", *_PAIR)
    loaded = _loaded(tmp_path)
    assert {r.command for r in loaded.found} == {"all"}
    assert len(loaded.found) == 4
    assert {(a.command, b.command) for a, b in loaded.repeated} == {("all", "again")}
    assert len(loaded.repeated) == 2


def test_of_runs_with_as_many_implementations_the_last_counts(tmp_path: pathlib.Path) -> None:
    for hour, command in enumerate(("first", "second", "third"), 1):
        _run(tmp_path, hour, "new", command, *_PAIR)
    loaded = _loaded(tmp_path)
    assert {r.command for r in loaded.found} == {"third"}
    assert {b.command for _, b in loaded.repeated} == {"second"}


def test_spread_is_over_all_rows_of_which_the_config_is_the_same(tmp_path: pathlib.Path) -> None:
    for hour, factor in ((1, 1.0), (2, 1.02)):
        for row, config in ((_ROW, "one"), ("odd_130", "one"), ("odd_k588", f"of {hour}")):
            changes = {"row": row, "ratio": 1.5 * factor, "config": config}
            _run(tmp_path, hour, "new", f"run {hour}", *_PAIR, **changes)
    text = footnotes.spread(_loaded(tmp_path))
    assert text is not None
    assert "gave 2 ratios of jaxgemm" in text
    assert "differ by 2.0 % in the median and by 2.0 % at most" in text
    assert text.endswith("1 more are left out, because that run chose another config for them.")
    assert footnotes.spread(measured.Results("cpu", ())) is None


def test_spread_tells_apart_where_xla_took_another_kernel(tmp_path: pathlib.Path) -> None:
    for hour in (1, 2):
        for row, factor in ((_ROW, 1.01), ("odd_130", 1.5)):
            command, ratio = f"run {hour}", 2.0 * factor ** (hour - 1)
            _run(tmp_path, hour, "new", command, "jaxgemm", row=row, ratio=ratio)
            kernels = ("nvjet", *([str(hour)] if row == "odd_130" else []))
            _run(tmp_path, hour, "new", command, "jnp.dot", row=row, kernels=kernels)
    text = footnotes.spread(_loaded(tmp_path))
    assert text is not None
    assert "gave 1 ratios of jaxgemm" in text
    assert "by 1.0 % at most (`sq_1024_bf16`). 1 more, for which XLA took another" in text
    assert text.endswith("by 50.0 % at most (`odd_130`).")


def test_spread_counts_both_regimes_of_a_row(tmp_path: pathlib.Path) -> None:
    for hour, factors in ((1, (1.0, 1.0)), (2, (1.02, 1.04))):
        for regime, factor in zip(("burst", "sustained"), factors, strict=True):
            _run(tmp_path, hour, "new", f"run {hour}", *_PAIR, regime=regime, ratio=1.5 * factor)
    text = footnotes.spread(_loaded(tmp_path))
    assert text is not None
    assert "gave 2 ratios of jaxgemm" in text
    assert "differ by 3.0 % in the median and by 4.0 % at most" in text
    assert "left out" not in text


def test_a_cell_without_a_time_says_why(tmp_path: pathlib.Path) -> None:
    _run(tmp_path, 1, "new", "all", *_PAIR, "xla.best", "cublaslt-best", "jax.pallas")
    # The run knows torch, which has no answer here, a wrong one, or none of this row.
    wrong = {"status": "wrong", "reason": "error is 2 times its bound", **TIMELESS}
    _run(tmp_path, 2, "new", "all", *_PAIR, row="sq_2048_bf16")
    _run(tmp_path, 2, "new", "all", "torch.mm", row="sq_2048_bf16", **wrong)
    _run(tmp_path, 3, "new", "all", "torch.mm", *_PAIR, row="sq_4096_bf16")
    _run(tmp_path, 4, "new", "few", *_PAIR, row="sq_8192_bf16")
    text = _table(tmp_path)
    cells = {
        line.split("|")[1].strip(" `"): [cell.strip() for cell in line.split("|")[7:11]]
        for line in text.splitlines()
        if line.startswith("| `")
    }
    assert cells == {
        _ROW: ["11.0", "11.0", "11.0", "n/a"],
        "sq_2048_bf16": ["n/a", "n/a", "n/a", "wrong"],
        "sq_4096_bf16": ["n/a", "n/a", "n/a", "11.0"],
        "sq_8192_bf16": ["", "", "", ""],
    }
    for said in ("n/a, the impl", "wrong, its answer", "empty, the run"):
        assert said in text
    assert "failed, " not in text


def test_of_the_forms_of_jnp_dot_the_baseline_is_shown(tmp_path: pathlib.Path) -> None:
    for impl, us in (("jaxgemm", 2.0), ("jnp.dot", 4.0), ("jnp.dot[f32acc]", 3.0)):
        _run(tmp_path, 1, "new", "run", impl, median_us=us, tflops=1.0)
    for impl, us in (("torch.mm", 6.0), ("torch._addmm_activation", 5.0)):
        _run(tmp_path, 1, "new", "run", impl, median_us=us)
    assert "| 2.0 | 1 | 4.0 | 5.0 |" in _table(tmp_path)


def test_gradients_of_a_row_do_not_stand_beside_its_forward_pass(tmp_path: pathlib.Path) -> None:
    _run(tmp_path, 1, "new", "gradients", *_PAIR, mode="vjp", median_us=1.0)
    _run(tmp_path, 2, "new", "forward", *_PAIR)
    _run(tmp_path, 3, "new", "whole", *_PAIR, row="mlp_up_grad", mode="forward_and_vjp")
    rows = _loaded(tmp_path).of_suite("readme")
    assert {row: [r.mode for r in some] for row, some in rows.items()} == {
        _ROW: ["forward"] * 2,
        "mlp_up_grad": ["forward_and_vjp"] * 2,
    }


def test_the_outcome_of_a_suite_is_counted(tmp_path: pathlib.Path) -> None:
    outcomes = {
        "sq_1024_bf16": (2.0, 1.9, 2.1),
        "sq_2048_bf16": (0.5, 0.4, 0.6),
        # 3 %, but it may as well be nothing.
        "sq_4096_bf16": (1.03, 0.9, 1.1),
    }
    for row, (ratio, low, high) in outcomes.items():
        ratios = {"ratio": ratio, "ratio_low": low, "ratio_high": high}
        _run(tmp_path, 1, "abcdef0123456", "run", "jaxgemm", row=row, **ratios)
        _run(tmp_path, 1, "abcdef0123456", "run", "jnp.dot", row=row, median_us=11.0 * ratio)
        _run(tmp_path, 1, "abcdef0123456", "run", "torch.mm", row=row, median_us=5.5)
        # Our own kernels are no others.
        _run(tmp_path, 1, "abcdef0123456", "run", "cuda.sm90.dense", row=row, median_us=1.0)
    text = _table(tmp_path)
    assert "3 of 16 rows of this suite, against the baseline 1 faster, 1 tied, 1 slower." in text
    assert "1.03× (tie)" in text
    assert "Speed-up over the baseline, 3 rows: geometric mean 1.01×, least 0.50× (`sq_2048" in text
    assert "over the fastest of several others, 3 rows: geometric mean 0.50×, least 0.50×" in text
    assert "commit abcdef012;" in text


def test_a_row_on_which_jaxgemm_fails_is_named(tmp_path: pathlib.Path) -> None:
    _run(tmp_path, 1, "new", "run", *_PAIR)
    _run(tmp_path, 1, "new", "run", "jnp.dot", row="sq_2048_bf16")
    failed = {"status": "failed", "reason": "no memory", **TIMELESS}
    _run(tmp_path, 1, "new", "run", "jaxgemm", row="sq_2048_bf16", **failed)
    _run(tmp_path, 1, "new", "run", "jnp.dot", mode="vjp")
    _run(tmp_path, 1, "new", "run", "jaxgemm", mode="vjp", **failed)
    assert "No time of jaxgemm: `sq_2048_bf16` (failed: no memory)." in _table(tmp_path)


def test_a_failure_is_forgotten_when_the_run_goes_on_and_has_a_time(tmp_path: pathlib.Path) -> None:
    failed = {"status": "failed", "reason": "no memory", **TIMELESS}
    _run(tmp_path, 1, "new", "run", *_PAIR, **failed)
    _run(tmp_path, 1, "new", "run", "torch.mm", **failed)
    _run(tmp_path, 2, "new", "run", *_PAIR)
    assert [r.impl for r in _loaded(tmp_path).refused] == ["torch.mm"]
    assert "No time of jaxgemm" not in _table(tmp_path)


def test_what_others_are_held_against_is_no_outcome(tmp_path: pathlib.Path) -> None:
    for row, ratio in (("sq_1024_bf16", 1.0), ("sq_2048_bf16", 0.5)):
        ratios = dict.fromkeys(("ratio", "ratio_low", "ratio_high"), ratio)
        names = {"row": f"{row} beside sq_1024_bf16", "baseline": "sq_1024_bf16"}
        _run(tmp_path, 1, "new", "run", "jaxgemm", suite="side_by_side", **names, **ratios)
    text = _table(tmp_path, "side_by_side")
    assert "2 rows of this suite, against the baseline 0 faster, 0 tied, 1 slower." in text
    assert "over the baseline, 1 row: geometric mean 0.50×, least 0.50×" in text


def test_kernels_that_stand_beside_themselves_have_lines_of_their_own(
    tmp_path: pathlib.Path,
) -> None:
    names = {"row": "gelu beside plain", "baseline": "plain", "suite": "side_by_side"}
    _run(tmp_path, 1, "new", "auto", "jaxgemm", **names, median_us=11.0)
    _run(tmp_path, 2, "new", "kernel", "cuda.sm90.dense", **names, median_us=12.0)
    text = _table(tmp_path, "side_by_side")
    assert "| `gelu beside plain` | 64×64×64 | NN, bf16 | 11.0 |" in text
    assert "| `gelu beside plain, cuda.sm90.dense` | 64×64×64 | NN, bf16 | 12.0 |" in text


def test_conditions_are_those_of_the_records() -> None:
    uniform = record_of(inputs="uniform over [-127, 127]")
    assert "operands are random (uniform)" in footnotes.conditions([uniform])
    alone = record_of(alternated=False)
    text = footnotes.conditions([record_of(), alone])
    assert "operands are random (normal)" in text
    assert "those of the baseline but for `jaxgemm` of `some_row`." in text


def test_times_that_the_wall_clock_contradicts_are_named(tmp_path: pathlib.Path) -> None:
    checked = {"check": "graph", "graph_us": 12.0, "check_cupti_us": 11.0}
    _run(tmp_path, 1, "new", "run", "jaxgemm", **checked, clocks_agree=False)
    _run(tmp_path, 1, "new", "run", "jnp.dot", **checked, clocks_agree=True)
    _run(tmp_path, 1, "new", "run", "torch.mm")
    said = "Of 2 of 3 medians kernel times were held against the wall clock; more than 5 % apart: "
    assert f"{said}1 (`jaxgemm` of `{_ROW}`)." in _table(tmp_path)
    found = _loaded(tmp_path).found
    agreeing = [dataclasses.replace(r, clocks_agree=r.check and True) for r in found]
    assert f"{said}none." in footnotes.conditions(agreeing)


def test_commits_of_a_table_are_named_with_their_rows() -> None:
    some = [record_of(row=str(i), commit="a" * 40 if i else "b" * 12 + "+") for i in range(3)]
    assert "commits aaaaaaaaa (2 rows), bbbbbbbbb+ (1 row);" in footnotes.conditions(some)


def test_records_name_the_tuning_tables_in_force() -> None:
    one, other = entry_of(product(k=64)), entry_of(product(k=128))
    slower = dataclasses.replace(one, time_us=11.0)
    same = environment.digest(tables_of(user=(one, other)))
    assert environment.digest(tables_of(user=(other, one))) == same
    changed = (tables_of(shipped=(one, other)), tables_of(user=(one,)), tables_of((slower, other)))
    assert len({same, *map(environment.digest, changed)}) == 4
    record = record_of()
    assert record.versions["tables"] == environment.digest(cache.current(device.current()))
    assert f"tables {record.versions['tables']}" in footnotes.conditions([record])


def test_short_calls_are_compared_by_the_clock_of_a_graph() -> None:
    ours, baseline = captured_records()
    text = captured.table(measured.Results("nvidia_h200", (ours, baseline)))
    assert text is not None
    assert "| `short` | 64×64×64 | NN, bf16 | 9.0 | 27.0 | jnp.dot | 3.00× | 2.50× |" in text
    # The baseline may be long enough for both clocks.
    long = dataclasses.replace(baseline, reason="", clocks_agree=True)
    assert captured.table(measured.Results("nvidia_h200", (ours, long))) is not None
    # Not one alone, nor where the host was slower, nor where clocks agree or should.
    slow = dataclasses.replace(ours, reason="clocks are not compared: the host may be slower")
    agreed = dataclasses.replace(ours, reason="", clocks_agree=True)
    wrong = dataclasses.replace(long, clocks_agree=False)
    for some in ((ours,), (slow, baseline), (agreed, baseline), (ours, wrong)):
        assert captured.table(measured.Results("nvidia_h200", some)) is None


def test_counters_stand_beside_what_is_expected() -> None:
    text = bounds.table(measured.Results("nvidia_h200", (), (counted_record(),)))
    assert text is not None
    head, _, line = (
        [cell.strip() for cell in x.strip("|").split("|")] for x in text.splitlines()[:3]
    )
    cells = dict(zip(head, line, strict=True))
    assert cells["form"] == "cuda.sm90.dense 128x256x64/m2"
    amounts = [cells[f"{what}, GB"] for what in ("at least", "DRAM", "asked for", "L2")]
    assert amounts == ["1.5", "2", "3", "4"]
    assert (cells["last wave, %"], cells["Tensor Cores, %"], cells["L1, %"]) == ("75", "91", "")
    ladder = dataclasses.replace(counted_record(), suite="ladder")
    assert bounds.table(measured.Results("nvidia_h200", (), (ladder,))) is None


def test_either_way_of_loading_is_shown_by_its_fastest_config(tmp_path: pathlib.Path):
    path = tmp_path / "loads_by_threads.jsonl"
    problem = encoding.to_json(KernelCase(100, 101, 103, "NT").problem())
    times = {"m_copies": 9.0, "n_copies": 8.0, "o_threads": 20.0, "p_threads": 10.0, "q": None}
    records = [
        {"kernel": "k", "problem": problem, "config": {"instance": name}, "time_us": time_us}
        for name, time_us in times.items()
    ]
    records.append({**records[0], "kernel": "xla.reference", "config": {}, "time_us": 24.0})
    path.write_text("".join(json.dumps(x) + "\n" for x in records))
    meta = {"device": "NVIDIA H200", "versions": {"jax": "0.11.2"}, "kernel_commit": "abc"}
    path.with_suffix(".meta.json").write_text(json.dumps({**meta, "time": "2026-12-01T01:45"}))
    text = loads.table(measured.load(tmp_path).loads)
    assert text is not None
    assert "| 100×101×103 | NT | 8 | 10 | 1.25× | 24 |" in text
    assert text.endswith("NVIDIA H200, jax 0.11.2; commit abc; 2026-12-01.")
    assert loads.table(None) is None


def test_the_choice_of_the_cost_model_is_held_against_what_a_tuner_timed(tmp_path: pathlib.Path):
    (kernel,) = [k for k in registry.kernels() if k.name == "pallas.hopper.dense"]
    h200, problem = device.named("nvidia_h200"), KernelCase(4096, 4096, 4096).problem()
    ranked = cost.ranked(problem, kernel.configs(problem, h200), h200, kernel.efficiency)
    times = {0: 150.0, 1: 120.0, 2: 130.0}
    path = tmp_path / "tuning_times.jsonl"
    common = {"kernel": kernel.name, "problem": encoding.to_json(problem)}
    with path.open("w") as file:
        for index, time_us in times.items():
            config = encoding.to_json(ranked[index][0])
            line = {**common, "config": config, "time_us": time_us}
            file.write(json.dumps({**line, "kernel_version": kernel.version}) + "\n")
            # Another version does not count.
            file.write(json.dumps({**line, "kernel_version": 0, "time_us": 1.0}) + "\n")
    text = untuned.table(path, "nvidia_h200")
    assert text is not None
    assert "| 150.0 |" in text
    assert "| 120.0 | 25.0 % |" in text
    assert text.endswith("The choice costs 25.0 % in geometric mean over 1 problems.")
    assert untuned.table(None, "nvidia_h200") is None
