"""The runner and the binaries: what they refuse to time, what they print and keep."""

import os
import pathlib
import shlex
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from benchmarks import cases, environment, implementations, jax_pallas, manifest, records, runner
from benchmarks.runner import Options, Runner
from benchmarks.variants import Implementation, compiled
from tests.benchmark_helpers import ROOT, ROWS, run_python


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
    monkeypatch.setattr(implementations, "select", lambda *_: _FAKES)
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


def test_what_xla_tunes_is_compiled_alone_and_the_answer_is_found_beside_the_others(
    monkeypatch: pytest.MonkeyPatch,
):
    events = []

    def noted(name: str, *, tuned: bool) -> Implementation:
        def variants(case: Any, mode: str, sample: Any) -> Any:
            events.append(name)
            yield compiled(lambda x: x["a"] @ x["b"], case, mode, sample)

        return Implementation(name, lambda *_: None, variants, tuned_by_xla=lambda *_: tuned)

    find = runner.gate.answer

    def answer(problem: Any, operands: Any) -> Any:
        events.append("answer")
        # As the row asks for, in whatever thread.
        assert operands["a"].dtype == "float64"
        assert jax.config.read("jax_enable_x64")
        return find(problem, operands)

    known = {"other": noted("other", tuned=False), "tuned": noted("tuned", tuned=True)}
    monkeypatch.setattr(runner.gate, "answer", answer)
    float64 = dict.fromkeys(("a_dtype", "b_dtype", "compute_dtype", "out_dtype"), "float64")
    row = manifest.Row("r", 16, 16, 16, **float64)
    ((_, found),) = Runner(Options(tuple(known), iterations=1), known).run([row])
    assert [(r.impl, r.status) for r in found] == [("other", "ok"), ("tuned", "ok")]
    assert events[0] == "tuned"
    assert sorted(events) == ["answer", "other", "tuned"]


def test_configs_that_cannot_be_compiled_are_left_out_unless_all_are():
    sample = {"a": jnp.ones((16, 16)), "b": jnp.ones((16, 16))}
    functions = {str(i): _crash if i != 4 else lambda x: x["a"] @ x["b"] for i in range(6)}
    (variant,) = jax_pallas._in_batches(functions, sample)
    assert variant.config == "4"
    assert variant.finished(sample)[0, 0] == 16
    with pytest.raises(RuntimeError, match="no such instruction"):
        list(jax_pallas._in_batches(dict.fromkeys("abcdef", _crash), sample))
    assert list(jax_pallas._in_batches({}, sample)) == []


def test_a_command_can_be_typed_again(monkeypatch: pytest.MonkeyPatch):
    arguments = ["/somewhere/gemm.py", "--filter=^a(b|c)$", "--out=/somewhere/a.jsonl"]
    monkeypatch.setattr(sys, "argv", arguments)
    said = environment.command()
    assert said == "python -m benchmarks.gemm '--filter=^a(b|c)$' --out=a.jsonl"
    assert shlex.split(said)[3:] == ["--filter=^a(b|c)$", "--out=a.jsonl"]


def test_a_run_with_a_failure_ends_with_exit_code_1_and_keeps_the_rest(tmp_path: pathlib.Path):
    script = (
        "from absl import app\n"
        "from benchmarks import gemm, implementations\n"
        "from tests import test_benchmarks\n"
        "implementations.select = lambda *_: test_benchmarks._FAKES\n"
        "app.run(gemm.main)\n"
    )
    out = tmp_path / "a.jsonl"
    flags = ("--m=16,32", "--dtype=float32", "--iterations=3", f"--out={out}")
    done = run_python("-c", script, *flags)
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
    done = run_python("-c", script, "--m=16,32", "--iterations=3", f"--out={out}")
    assert done.returncode == 130, done.stderr
    assert "interrupted after 1 of 2 rows" in done.stderr
    assert {r.m for r in records.read(out)} == {16}


def test_time_that_is_up_stops_before_the_next_row():
    done = run_python("-m", "benchmarks.gemm", "--m=16,32", "--max_seconds=0")
    assert done.returncode == 0, done.stderr
    assert "time was up after 0 of 2 rows" in done.stderr


def test_unsupported_rows_are_reported():
    ((_, (record,)),) = Runner(Options()).run([ROWS["mxfp8_4096"]])
    assert record.status == "unsupported"
    assert "scales of mx32_e8m0" in record.reason


def test_a_row_that_means_nothing_is_reported_and_the_next_one_is_measured():
    rows = [
        manifest.Row("dtype", 16, 16, 16, a_dtype="bfloat17"),
        manifest.Row("dealt", 16, 16, 16, groups=2, layout="ragged_m", distribution="nobody"),
        manifest.Row("fine", 16, 16, 16),
    ]
    found = dict(Runner(Options(("jaxgemm",), iterations=1)).run(rows))
    assert {name: [r.status for r in some] for name, some in found.items()} == {
        "dtype": ["failed"],
        "dealt": ["failed"],
        "fine": ["ok"],
    }
    assert "bfloat17" in found["dtype"][0].reason
    assert "distribution: 'nobody' is unknown" in found["dealt"][0].reason


def test_smoke_prints_a_right_table(tmp_path: pathlib.Path):
    out = tmp_path / "a.jsonl"
    wanted = "--filter=square|swiglu|odd_tn|grouped_wgrad"
    done = run_python(
        "-m", "benchmarks.gemm", "--suite=smoke", wanted, f"--out={out}", "--iterations=9"
    )
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


def test_wrong_flags_are_said_in_a_line():
    done = run_python("-m", "benchmarks.gemm", "--suite=nothing")
    assert done.returncode != 0
    assert "--suite: ['nothing'] should be among" in done.stdout + done.stderr
    done = run_python("-m", "benchmarks.gemm", "--suite=smoke", "--n=16", "--trans_b")
    assert done.returncode == 1
    assert "--n, --trans_b: should come with --m" in done.stdout + done.stderr
    done = run_python("-m", "benchmarks.gemm", "--m=16", "--backends=nothing")
    assert done.returncode == 2
    assert done.stderr.startswith("--backends: 'nothing' is unknown")
    done = run_python("-m", "benchmarks.grouped", "--m=64", "--groups=many", "--filter=(")
    assert "flag --filter=(: it should be a regular expression" in done.stdout + done.stderr
    done = run_python("-m", "benchmarks.grouped", "--m=64", "--groups=many")
    assert "--groups: 'many' should be a size" in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("flag", "text"),
    [
        ("--epilogue=bias+foo", "epilogue: ['foo'] should be among"),
        ("--epilogue=relu+gelu", "'relu+gelu' should have each part, and an activation, once"),
        ("--dtype=float17", "['float17'] should be among"),
        ("--out_dtype=float17", "value should be one of"),
    ],
)
def test_what_a_sweep_cannot_mean_is_a_wrong_flag(flag: str, text: str):
    done = run_python("-m", "benchmarks.gemm", "--m=16", "--list", flag)
    assert done.returncode == 1, done.stdout
    assert text in done.stdout + done.stderr


def test_a_sweep_with_a_residual_has_one(tmp_path: pathlib.Path):
    out = tmp_path / "a.jsonl"
    flags = ("--m=16", "--epilogue=residual", "--backends=jaxgemm", "--iterations=1")
    done = run_python("-m", "benchmarks.gemm", *flags, f"--out={out}")
    assert done.returncode == 0, done.stderr
    (record,) = records.read(out)
    assert (record.row, record.epilogue) == ("sweep_16x16x16_bfloat16_residual", "residual")
    # a, b, c and d.
    assert record.gbps == pytest.approx(4 * 2 * 16**2 / record.median_us / 1e3, rel=1e-3)


def test_filter_alone_searches_all_suites_and_finding_nothing_is_an_error():
    done = run_python("-m", "benchmarks.gemm", "--list", "--filter=^mlp_up$|^smoke_square$")
    assert done.returncode == 0
    assert [x.split()[0] for x in done.stdout.splitlines()[:-1]] == ["mlp_up", "smoke_square"]
    done = run_python("-m", "benchmarks.gemm", "--list", "--suite=smoke", "--filter=^mlp_up$")
    assert (done.returncode, done.stderr) == (2, "no row matches\n")


def test_list_ends_quietly_when_nobody_reads_on():
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "benchmarks.gemm", "--suite=all", "--list"]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


def test_list_names_what_the_other_binaries_would_measure():
    done = run_python("-m", "benchmarks.train_step", "--list", "--filter=^.*l")
    assert (done.returncode, done.stdout.split()) == (0, ["mlp", "mlp_as_one", "swiglu"])
    done = run_python("-m", "benchmarks.ladder", "--list", "--size=65536")
    assert (done.returncode, len(done.stdout.splitlines())) == (0, 2), done.stderr


def test_list_measures_nothing():
    done = run_python("-m", "benchmarks.gemm", "--suite=readme", "--list")
    assert done.returncode == 0
    assert "sq_8192_bf16" in done.stdout
    assert "jnp.dot[f32acc]" in done.stdout
