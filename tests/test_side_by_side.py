"""Rows that are measured against one another."""

import dataclasses
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
import pytest

from benchmarks import manifest, records, side_by_side
from benchmarks.cases import Case, Operands
from benchmarks.records import Record
from benchmarks.variants import Implementation, Variant, compiled
from tests.benchmark_helpers import run_python


def test_ratios_are_those_of_the_first_row_in_one_alternation(tmp_path: pathlib.Path):
    out = tmp_path / "a.jsonl"
    wanted = "--filter=^smoke_(bias_gelu|alpha_beta|residual_f32out)$"
    flags = (wanted, "--suite=smoke", "--iterations=5", f"--out={out}")
    done = run_python("-m", "benchmarks.side_by_side", *flags)
    assert done.returncode == 0, done.stderr
    first, *others = records.read(out)
    assert first.row == "smoke_bias_gelu beside smoke_bias_gelu"
    assert first.ratio == 1
    assert [r.row.split()[0] for r in others] == ["smoke_alpha_beta", "smoke_residual_f32out"]
    for record in (first, *others):
        assert (record.impl, record.baseline) == ("jaxgemm", "smoke_bias_gelu")
        assert (record.suite, record.status) == ("side_by_side", "ok")
        assert record.samples == 5
        assert record.ratio == pytest.approx(first.median_us / record.median_us, rel=1e-3)
        assert f"{record.ratio:.3f}" in done.stdout


@pytest.fixture
def _flags(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a command without flags says."""
    monkeypatch.setattr(side_by_side.command, "regimes", lambda: ("burst",))
    monkeypatch.setattr(side_by_side.command, "iterations", lambda: 2)
    monkeypatch.setattr(side_by_side.command, "tags", tuple)


def _row(name: str, dtype: str = "float32", **changes: Any) -> manifest.Row:
    dtypes = dict.fromkeys(("a_dtype", "b_dtype", "compute_dtype", "out_dtype"), dtype)
    return manifest.Row(name, 16, 16, 16, **{**dtypes, **changes})


def _measured(
    rows: list[manifest.Row], change: Callable[[Variant], Variant] = lambda x: x
) -> dict[str, Record]:
    """Row → its only record, by an implementation that is wrong for the row of this name."""

    def variants(case: Case, mode: str, sample: Operands) -> Iterator[Variant]:
        function = lambda x: x["a"] @ x["b"] + (case.row.name == "wrong")  # noqa: E731
        if case.row.name != "nothing":
            yield change(compiled(function, case, mode, sample))

    fake = Implementation("fake", lambda case, mode: None, variants)
    return {name: record for name, (record,) in side_by_side.measured(rows, fake)}


@pytest.mark.usefixtures("_flags")
def test_a_row_that_cannot_be_compared_has_no_time():
    rows = [_row("wrong"), _row("right"), _row("requant", epilogue="requant")]
    rows += [_row("backward", mode="vjp"), _row("nothing")]
    found = _measured(rows)
    assert {name: x.status for name, x in found.items()} == {
        "wrong": "wrong",
        "right": "ok",
        **dict.fromkeys(("requant", "backward", "nothing"), "unsupported"),
    }
    assert (found["wrong"].max_error_ratio or 0.0) > 1
    # What is wrong is no baseline.
    assert (found["right"].baseline, found["right"].ratio) == (None, None)


@pytest.mark.usefixtures("_flags")
def test_float64_is_not_narrowed():
    found = _measured([_row("one"), _row("other", "float64")])
    assert [x.status for x in found.values()] == ["ok", "ok"]
    assert found["other"].rotation_bytes == 2 * found["one"].rotation_bytes


@pytest.mark.usefixtures("_flags")
def test_an_answer_is_judged_when_it_is_there():
    done = []

    def slow(variant: Variant) -> Variant:
        def outputs(d: jax.Array) -> tuple[jax.Array, dict[str, jax.Array]]:
            return (d if done else 2 * d), {}

        return dataclasses.replace(variant, wait=lambda: done.append(True), outputs=outputs)

    assert _measured([_row("one")], slow)["one"].status == "ok"


@pytest.mark.usefixtures("_flags")
def test_what_is_known_stays_if_timing_fails(monkeypatch: pytest.MonkeyPatch):
    def busy(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("another profiler holds CUPTI")

    monkeypatch.setattr(side_by_side.timing, "measure", busy)
    found = _measured([_row("wrong"), _row("right")])
    assert [x.status for x in found.values()] == ["wrong", "failed"]
    assert found["right"].reason == "RuntimeError: another profiler holds CUPTI"


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (("--filter=^smoke_(square|bf16)$",), "['smoke_bf16'] should have the sizes of smoke_sq"),
        (("--filter=^nothing$",), "no row matches"),
        (("--filter=^smoke_square$", "--backends=all"), "should be one implementation"),
        (("--filter=^smoke_square$", "--mode=vjp"), "--mode: 'vjp' should be 'forward'"),
        (("--graphs", "--max_seconds=1"), "--graphs and --max_seconds: rows are measured together"),
    ],
)
def test_what_cannot_be_compared_is_a_wrong_flag(flags: tuple[str, ...], text: str):
    done = run_python("-m", "benchmarks.side_by_side", *flags)
    assert done.returncode == 1
    assert text in done.stdout + done.stderr
