"""The search for the fastest config, and its command line. See `tuning_fakes.py`."""

import dataclasses
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl import app

import jaxgemm
from jaxgemm import device, dispatch
from jaxgemm.policy import Policy
from jaxgemm.tuning import cache, search, timing
from jaxgemm.tuning.found import Candidate, Tuned
from jaxgemm.tuning.times import Times
from tests.kernel_cases import EXTRAS
from tests.tuning_fakes import (
    SMALL,
    TALL,
    WIDE,
    Clock,
    Config,
    fake_kernel,
    only_kernels,
    product,
    reference_on,
)

H200, CPU = device.named("nvidia_h200"), device.CPU
ROOT = Path(__file__).parent.parent
# As a user has it: a kernel that is wrong or missing never stops a search or a plan.
AUTO = Policy()

pytestmark = pytest.mark.usefixtures("home")


def test_tune_finds_the_fastest_and_plans_use_it(clock: Clock, home: Path) -> None:
    one = fake_kernel(clock=clock, times_ms={SMALL: 40.0, TALL: 20.0, WIDE: 30.0})
    two = fake_kernel("fake.two", clock=clock, times_ms={SMALL: 60.0, TALL: 70.0, WIDE: 25.0})
    x = jax.ShapeDtypeStruct((256, 256), "bfloat16")
    with only_kernels(one, two, last=reference_on(clock, 90.0)):
        found = jaxgemm.tune(jaxgemm.gemm, x, x, transpose_b=True)
        (row,) = found.rows
        plan = dispatch.plan(row.problem, CPU, AUTO)
        text = str(found)
    assert [(c.kernel.name, c.config) for c in row.candidates[:3]] == [
        ("fake.one", TALL),
        ("fake.two", WIDE),
        ("fake.one", WIDE),
    ]
    assert row.candidates[0].times.median_us == pytest.approx(20e3)
    assert row.candidates[0].times.clock == "wall"
    assert found.path == home / "cpu.v1.json"
    assert len(json.loads(found.path.read_text())["entries"]) == 3
    assert (plan.chosen_by, plan.kernel.name, plan.choices[0].config) == (
        "tuned cache",
        "fake.one",
        TALL,
    )
    assert plan.choices[1].measured_us == pytest.approx(25e3)
    assert "20000.00" in text
    assert "fake.one 256x64x64" in text
    assert "NT bfloat16" in text
    assert f"saved    {found.path}" in text
    assert row.regret == 1.0
    assert "take 0.0 % longer than the best" in text
    # Had the model preferred one that takes 30 ms instead of 20:
    misled = dataclasses.replace(row.candidates[2], estimate_us=0.0)
    row = dataclasses.replace(row, candidates=(row.candidates[0], misled))
    text = str(dataclasses.replace(found, rows=(row,)))
    assert row.regret == pytest.approx(1.5)
    assert "x1.500" in text
    assert "50.0 % longer than the best of our kernels that were tried, in geometric mean" in text
    assert row.reference.times.median_us == pytest.approx(90e3)


def test_a_kernel_that_is_wrong_or_breaks_has_no_time_and_does_not_stop_the_search(
    clock: Clock,
) -> None:
    def wrong(name: str, x: jax.Array) -> jax.Array:
        return x.at[3, 5].add(1)

    fakes = {
        "fake.wrong": fake_kernel("fake.wrong", change=wrong, clock=clock),
        "fake.nan": fake_kernel("fake.nan", change=lambda n, x: x.at[0, 0].set(jnp.nan)),
        "fake.narrow": fake_kernel("fake.narrow", change=lambda n, x: x[:, :8]),
        "fake.broken": fake_kernel("fake.broken", error=RuntimeError("out of registers")),
        "fake.missing": fake_kernel("fake.missing", reason="it was not built"),
        "fake.fine": fake_kernel(
            "fake.fine", clock=clock, times_ms=dict.fromkeys((SMALL, TALL, WIDE), 90.0)
        ),
    }
    with only_kernels(*fakes.values(), last=reference_on(clock, 95.0)):
        found = jaxgemm.tune(product())
        plan = dispatch.plan(product(), CPU, AUTO)
    (row,) = found.rows
    faults = {c.kernel.name: c.fault for c in row.faults}
    assert faults.keys() == {"fake.wrong", "fake.nan", "fake.narrow", "fake.broken"}
    assert "wrong: its error is" in faults["fake.wrong"]
    assert "wrong: its error is inf" in faults["fake.nan"]
    assert "wrong: its error is inf" in faults["fake.narrow"]
    assert faults["fake.broken"] == "RuntimeError: out of registers"
    assert {c.kernel.name for c in row.candidates if c.times is not None} == {"fake.fine"}
    assert [entry.kernel for entry in row.entries()] == ["fake.fine", "xla.reference"]
    assert plan.kernel.name == "fake.fine"
    assert "fault    fake.broken 64x64x64 for m=256" in str(found)


def test_a_saved_preactivation_is_checked_too(clock: Clock) -> None:
    gated = search.problems_of(
        jax.grad(lambda x, w: jaxgemm.gated_gemm(x, w, w).sum()), *np.ones((2, 64, 64), np.float32)
    )
    problems = [p for p in gated if p.spec.save_preactivation]
    problems.append(product(64, 64, 64, extras=EXTRAS, activation="gelu", save=True))
    assert [p.spec.outputs for p in problems] == [("d", "z", "z_up"), ("d", "z")]
    for problem in problems:
        (operands, *_) = search.operand_sets(problem)
        for broken in (None, *problem.spec.outputs):
            candidate = Candidate(fake_kernel(change=_one_more(broken)), SMALL, 1.0)
            [(_, call)] = search._compiled(problem, [candidate], operands)
            assert call is not None
            fault = search._wrong(
                call, operands, lambda p=problem, x=operands: search.answers_of(p, x)
            )
            assert (fault is not None) == (broken is not None), (broken, fault)


def _one_more(broken: str | None) -> Callable[[str, jax.Array], jax.Array]:
    """Changes an element of one output."""
    return lambda name, x: x.at[1, 1].add(1) if name == broken else x


def test_a_measurement_that_fails_is_a_fault(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("CUPTI saw no kernel")

    monkeypatch.setattr(timing, "measure", fail)
    with only_kernels(fake_kernel(clock=clock)):
        found = jaxgemm.tune(product())
    assert found.path is None
    assert {c.fault for c in found.rows[0].candidates} == {"RuntimeError: CUPTI saw no kernel"}
    assert "none" in str(found)


def test_problems_without_a_kernel_have_nothing_to_tune(clock: Clock) -> None:
    with only_kernels(fake_kernel(reason="no")):
        found = jaxgemm.tune(product())
    assert (found.rows[0].candidates, found.rows[0].entries(), found.path) == ((), [], None)
    assert found.rows[0].best is found.rows[0].regret is None
    with pytest.raises(ValueError, match="backend: 'nonsense' is unknown"):
        jaxgemm.tune(product(), backend="nonsense")


def test_no_problem_is_begun_after_the_time_is_up(clock: Clock) -> None:
    def loss(x: jax.Array, w: jax.Array) -> jax.Array:
        return (jaxgemm.gemm(x, w) ** 2).sum() + jaxgemm.gemm(x, w).sum()

    args = np.ones((64, 128), np.float32), np.ones((128, 32), np.float32)
    assert len(search.problems_of(jax.grad(loss, (0, 1)), *args)) == 3
    with only_kernels(fake_kernel(clock=clock)):
        found = jaxgemm.tune(jax.grad(loss, (0, 1)), *args, max_seconds=0.5)
    assert (len(found.rows), len(found.skipped)) == (1, 2)
    assert "skipped  m=" in str(found)


def test_nothing_is_written_unless_asked_for(clock: Clock, home: Path) -> None:
    with only_kernels(fake_kernel(clock=clock)):
        found = jaxgemm.tune(product(), save=False)
    assert found.path is None
    assert not home.exists()


def test_jit_never_tunes(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    monkeypatch.setattr(search, "tune_problem", lambda *args, **kw: pytest.fail("it tuned"))
    monkeypatch.setattr(timing, "measure", lambda *args, **kw: pytest.fail("it measured"))
    x = np.ones((64, 64), np.float32)
    with only_kernels(fake_kernel()):
        jax.jit(jax.grad(lambda x: jaxgemm.gemm(x, x).sum()))(x)
        with jaxgemm.use(device="nvidia_h200"):
            jax.jit(lambda x: jaxgemm.gemm(x, x)).trace(x).lower(lowering_platforms=("cuda",))
    assert not home.exists()


def test_rejected_and_hopeless_configs_are_not_tried(clock: Clock) -> None:
    with only_kernels(fake_kernel(clock=clock)):
        found = jaxgemm.tune(product(), reject=lambda kernel, problem, config: config != WIDE)
    (row,) = found.rows
    assert [c.config for c in row.candidates] == [WIDE]
    assert row.num_pruned == 2


def test_pruning_keeps_what_may_be_the_fastest() -> None:
    def candidates(name: str, *us: float) -> list[Candidate]:
        return [Candidate(fake_kernel(name), Config(stages=i), x) for i, x in enumerate(us)]

    def kept(found: list[Candidate]) -> list[float]:
        return [c.estimate_us for c in search.prune(found)]

    assert kept([]) == []
    assert kept(candidates("a", 10, 14, 15, 16)) == [10, 14, 15, 16]
    near = [10, 10.5, 10.8, 11, 11.2, 11.4, 11.5]
    assert kept(candidates("a", *near, 11.6, 12)) == near
    assert kept(candidates("a", 10, 90, 80, 70, 60, 95)) == [10, 60, 70, 80, 90]
    mixed = candidates("a", 10, 11, 12, 13, 14, 99) + candidates("b", 50, 51)
    assert kept(mixed) == [10, 11, 12, 13, 14, 50]
    # Estimates of a library say nothing: neither of itself nor of the others.
    library = dataclasses.replace(fake_kernel("library"), is_black_box=True)
    algorithms = [Candidate(library, Config(stages=i), x) for i, x in enumerate((1, 500, 900))]
    assert kept(algorithms) == [1, 500, 900]
    assert kept([*algorithms, *mixed]) == [10, 11, 12, 13, 14, 50, 1, 500, 900]


def test_regret_is_that_of_our_own_kernels() -> None:
    def candidate(estimate_us: float, time_us: float, **fields: Any) -> Candidate:
        kernel = dataclasses.replace(fake_kernel(), **fields)
        return Candidate(kernel, SMALL, estimate_us, Times((time_us,), "cupti"))

    ours = (candidate(2.0, 10.0), candidate(1.0, 15.0))
    library = candidate(0.5, 5.0, is_black_box=True)
    row = Tuned(product(), ours, 0, library)
    assert row.regret == pytest.approx(1.5)
    row = dataclasses.replace(row, candidates=(library, *ours))
    assert row.regret == pytest.approx(1.5)
    assert row.best is library
    assert dataclasses.replace(row, candidates=(library,)).regret is None


def test_what_cannot_be_told_apart_is_ordered_by_estimate() -> None:
    def candidate(estimate_us: float, *samples_us: float) -> Candidate:
        return Candidate(fake_kernel(), SMALL, estimate_us, Times(samples_us, "cupti"))

    noisy = [100 + 3 * (i % 3) for i in range(12)]
    # Noise of its own.
    fast, tied = candidate(9, *noisy), candidate(1, *(x + 0.5 for x in sorted(noisy)))
    slow, slower = candidate(2, *(x * 1.05 for x in noisy)), candidate(0, *(x * 2 for x in noisy))
    faulty = dataclasses.replace(fast, times=None, fault="no")
    for order in ([fast, tied, slow, slower, faulty], [faulty, slower, slow, tied, fast]):
        assert search._ordered(order) == (tied, fast, slow, slower, faulty)
    assert search._ordered([faulty]) == (faulty,)
    # A library that is not clearly faster comes after ours.
    library = dataclasses.replace(fake_kernel("library"), is_black_box=True)
    same = dataclasses.replace(fast, kernel=library, estimate_us=0.0)
    assert search._ordered([same, tied, slow]) == (tied, same, slow)


def test_operands_have_groups_of_equal_size_and_results_near_one(clock: Clock) -> None:
    x, w, sizes = np.ones((10, 64)), np.ones((3, 64, 8)), np.array([1, 2, 3], np.int32)
    (problem,) = search.problems_of(lambda: jaxgemm.grouped_gemm(x, w, sizes))
    (first, *_) = search.operand_sets(problem)
    assert first["group_sizes"].tolist() == [4, 3, 3]
    assert float(jnp.std(first["b"])) == pytest.approx(1 / 8, rel=0.1)
    (first, *_) = search.operand_sets(problem, {"group_sizes": np.array([10, 0, 0], np.int32)})
    assert first["group_sizes"].tolist() == [10, 0, 0]


def test_the_primitive_is_found_by_its_name() -> None:
    from jaxgemm.primitive import gemm_p

    assert gemm_p.name == search.PRIMITIVE


@pytest.mark.parametrize("terminal", [False, True])
def test_a_progress_bar_is_for_terminals(
    terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    assert list(search.progress([1, 2, 3])) == [1, 2, 3]
    captured = capsys.readouterr()
    assert captured.out == ""
    assert ("tuning" in captured.err) is terminal


# The command line.

HEADER = (
    "name,suites,mode,m,n,k,batch,groups,trans_a,trans_b,layout,distribution,scaling,a_dtype,"
    "b_dtype,compute_dtype,out_dtype,alpha,beta,epilogue,alignment,workspace_bytes,frequency,source"
)


def _manifest(folder: Path) -> Path:
    tail = ",bfloat16,bfloat16,float32,bfloat16,1,0,{},256,,1,test"
    rows = [
        "one,dense,,64,64,64,1,0,0,0,row,," + tail.format("none"),
        "again,dense,,64,64,64,1,0,0,0,row,," + tail.format("none"),
        "gelu,dense,,64,64,32,1,0,0,1,row,," + tail.format("bias+gelu"),
        "groups,grouped,,96,64,32,1,3,0,0,ragged_m,ones," + tail.format("none"),
        "never,dense,,64,64,64,1,0,0,0,row,," + tail.format("requant"),
    ]
    path = folder / "manifest.csv"
    path.write_text("\n".join([HEADER, *rows]) + "\n")
    return path


def test_a_manifest_is_tuned_into_a_table(
    clock: Clock, tmp_path: Path, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from jaxgemm.tuning.__main__ import Options, run

    manifest, out = _manifest(tmp_path), tmp_path / "tables" / "cpu.json"
    with only_kernels(fake_kernel(clock=clock), last=reference_on(clock, 60.0)):
        times = tmp_path / "times.jsonl"
        options = Options(pattern="one|again|never", out=out, times=times)
        assert run(manifest, options) == 0
        measured = [json.loads(line) for line in times.read_text().splitlines()]
        assert [x["kernel"] for x in measured] == ["fake.one"] * 3 + ["xla.reference"]
        kept = cache.load(out, "cpu").entries
        assert {entry.kernel: entry.time_us for entry in kept} == {
            x["kernel"]: x["time_us"] for x in (measured[0], measured[-1])
        }
        assert "skipped  never: epilogue requant" in capsys.readouterr().out
        again = dataclasses.replace(options, only_missing=True, times=tmp_path / "new" / "times")
        assert run(manifest, again) == 0
        assert "nothing to tune" in capsys.readouterr().out
        assert run(manifest, dataclasses.replace(again, only_missing=False)) == 0
        assert len(again.times.read_text().splitlines()) == len(measured)
        capsys.readouterr()
        assert len(cache.load(out, "cpu").entries) == 2
        # With the gradients of both operands and of the bias; what the table has is left out.
        options = Options(pattern="one|gelu", backward=True, only_missing=True, out=out)
        assert run(manifest, options) == 0
        shown = capsys.readouterr().out
        assert "m=64 n=64 k=64 NN" not in shown
        assert "m=64 n=64 k=32 NT" in shown
        assert f"saved    {out}" in shown
        assert len(cache.load(out, "cpu").entries) == 2 * (1 + 2 + 3)
        assert run(manifest, Options(pattern="groups", out=out)) == 0
        assert "groups=3 ragged=m" in capsys.readouterr().out
        assert not home.exists()
        assert run(manifest, Options(pattern="one", max_seconds=-1)) == 0
        assert "skipped  m=64 n=64 k=64" in capsys.readouterr().out
        assert not home.exists()
        assert run(manifest, Options(pattern="one")) == 0
        assert (home / "cpu.v1.json").exists()
    with only_kernels(fake_kernel(error=RuntimeError("no"))):
        assert run(manifest, Options(pattern="one", out=out)) == 1


def test_an_interrupted_run_keeps_what_it_found(
    clock: Clock,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from jaxgemm.tuning.__main__ import Options, run

    tuned, whole = [], search.tune_problem

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        if tuned:
            raise KeyboardInterrupt
        tuned.append(args[0])
        return whole(*args, **kwargs)

    monkeypatch.setattr(search, "tune_problem", interrupted)
    out = tmp_path / "cpu.json"
    with only_kernels(fake_kernel(clock=clock), last=reference_on(clock, 60.0)):
        assert run(_manifest(tmp_path), Options(out=out)) == 130
    assert "interrupted after 1 of 3 problems" in capsys.readouterr().out
    assert len(cache.load(out, "cpu").entries) == 2


def test_the_command_line_runs(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "jaxgemm.tuning"]
    flags = [str(_manifest(tmp_path)), "--filter=one", "--max_seconds=60"]
    done = subprocess.run([*command, *flags], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "m=64 n=64 k=64 NN bfloat16·bfloat16→bfloat16" in done.stdout
    wrong = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert wrong.returncode != 0
    assert "name one manifest" in wrong.stdout + wrong.stderr


def test_wrong_arguments_are_named(tmp_path: Path) -> None:
    from jaxgemm.tuning.__main__ import Options, run

    manifest, other = _manifest(tmp_path), tmp_path / "other.csv"
    other.write_text("name,m\none,64\n")
    for path, options, text in (
        (manifest, Options(pattern="("), r"--filter: '\(' is no regular expression"),
        (manifest, Options(pattern="zzz"), "--filter: no row's name contains 'zzz'"),
        (manifest, Options(backend="zzz"), "backend: 'zzz' is unknown"),
        (tmp_path / "missing.csv", Options(), "missing.csv"),
        (other, Options(), "manifest: columns"),
    ):
        with pytest.raises(app.UsageError, match=text):
            run(path, options)
