"""Rows that are measured against one another."""

import pathlib

import pytest

from benchmarks import manifest, records, side_by_side
from benchmarks.variants import Implementation, compiled
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


def test_a_wrong_row_and_one_without_meaning_have_no_time(monkeypatch: pytest.MonkeyPatch):
    def variants(case, mode, sample):
        yield compiled(lambda x: x["a"] @ x["b"] + (case.row.name == "wrong"), case, mode, sample)

    fake = Implementation("fake", lambda case, mode: None, variants)
    monkeypatch.setattr(side_by_side.command, "regimes", lambda: ("burst",))
    monkeypatch.setattr(side_by_side.command, "iterations", lambda: 2)
    monkeypatch.setattr(side_by_side.command, "tags", tuple)
    float32 = {"a_dtype": "float32", "b_dtype": "float32", "out_dtype": "float32"}
    rows = [
        manifest.Row("wrong", 16, 16, 16, **float32),
        manifest.Row("right", 16, 16, 16, **float32),
        manifest.Row("neither", 16, 16, 16, epilogue="requant"),
    ]
    found = {name: record for name, (record,) in side_by_side.measured(rows, fake)}
    assert [x.status for x in found.values()] == ["wrong", "ok", "unsupported"]
    # What is wrong is no baseline.
    assert (found["right"].baseline, found["right"].ratio) == (None, None)


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (("--filter=^smoke_(square|bf16)$",), "['smoke_bf16'] should have the sizes of smoke_sq"),
        (("--filter=^nothing$",), "no row matches"),
        (("--filter=^smoke_square$", "--backends=all"), "should be one implementation"),
    ],
)
def test_what_cannot_be_compared_is_a_wrong_flag(flags: tuple[str, ...], text: str):
    done = run_python("-m", "benchmarks.side_by_side", *flags)
    assert done.returncode == 1
    assert text in done.stdout + done.stderr
