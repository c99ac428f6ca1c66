"""cuBLASLt as a kernel: what our handler asks of it, seen by a fake library that computes on a CPU.

The fake is tests/fake_cublaslt.cc. With a GPU, `tests/test_ffi_kernels.py` and
`tests/test_cublaslt_gpu.py` run the same on the real one.
"""

import ctypes
import dataclasses
import functools
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from benchmarks import cublaslt as benchmark
from benchmarks import manifest
from benchmarks.runner import Options, Runner
from jaxgemm import device, dispatch, remainder
from jaxgemm.ffi_kernels import build, cublaslt, instances, library
from jaxgemm.ffi_kernels.toolchain import BuildError
from jaxgemm.kernel import Operands
from jaxgemm.policy import Policy
from jaxgemm.problem import Problem
from jaxgemm.tuning import cache
from tests import kernel_answers
from tests.cublaslt_cases import (
    BACKWARD_CASES,
    FLOAT64,
    FP8,
    FP8_CASES,
    IN_FLOAT32,
    INT8,
    OWN_CASES,
)
from tests.kernel_cases import ODD_CASES, SMALL_CASES, KernelCase

_H200 = device.named("h200")
_CONFIG = cublaslt.Config(index=0, workspace_bytes=1 << 12)
_SMALL = KernelCase(m=6, n=8, k=5)


def _cases() -> dict[str, KernelCase]:
    """Every case that the library has a form for."""
    known = {**SMALL_CASES, **ODD_CASES, **OWN_CASES, **BACKWARD_CASES, **FP8_CASES}
    return {name: x for name, x in known.items() if cublaslt.why_not_form(_problem(x)) is None}


def _problem(case: KernelCase) -> Problem:
    with jax.enable_x64(case.dtype == "float64"):
        return case.problem()


def _why_not(case: KernelCase) -> str | None:
    return cublaslt.why_not_problem(_problem(case))


@dataclasses.dataclass(frozen=True)
class _Fake:
    """The fake library.

    Attributes:
      file: it.
      ours: our library for the CPU, which calls it.
      loaded: the fake, for its log.
    """

    file: Path
    ours: ctypes.CDLL
    loaded: ctypes.CDLL

    def log(self) -> list[str]:
        """What it was asked since it was last told to forget."""
        self.loaded.fake_cublaslt_log.restype = ctypes.c_char_p
        return self.loaded.fake_cublaslt_log().decode().splitlines()


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> _Fake:
    """The fake, and the handler for the CPU; JAXGEMM_TEST_CXXFLAGS is for both."""
    flags = tuple(os.environ.get("JAXGEMM_TEST_CXXFLAGS", "").split())
    file = tmp_path_factory.mktemp("fake") / "libfake_cublaslt.so"
    source = Path(__file__).parent / "fake_cublaslt.cc"
    options = ("-std=c++17", "-O1", "-fPIC", "-shared", "-I", str(instances.source_folder()))
    command = ("g++", *options, *flags, str(source), "-o", str(file))
    subprocess.run(command, check=True)
    ours = library.register_file(library.ensure_built(build.cpu_recipe(flags)), "cpu")
    return _Fake(file, ours, ctypes.CDLL(str(file)))


@pytest.fixture
def fake(built: _Fake, monkeypatch: pytest.MonkeyPatch) -> Iterator[_Fake]:
    """The fake, loaded, with an empty log."""
    monkeypatch.setenv("JAXGEMM_CUBLASLT", str(built.file))
    cublaslt.find.cache_clear()
    cublaslt.load_into(built.ours)
    built.loaded.fake_cublaslt_forget()
    yield built
    cublaslt.find.cache_clear()


def _run(case: KernelCase, config: cublaslt.Config = _CONFIG) -> None:
    """Runs a case and checks its outputs."""
    with jax.enable_x64(case.dtype == "float64"):
        problem, arrays = case.problem(), case.arrays()
        outputs = jax.jit(lambda x: cublaslt.run_on(problem, config, x))(arrays)
        jax.block_until_ready(outputs)
        kernel_answers.check(problem, arrays, outputs, u_curved=kernel_answers.U_CURVED)


@pytest.mark.usefixtures("fake")
@pytest.mark.parametrize("name", _cases())
def test_the_library_is_asked_for_the_right_product(name: str) -> None:
    _run(_cases()[name])


_ASKED = {
    "plain": (_SMALL, "epilogue=1 transposed=00 ", "compute=68 pointers=host batch=1"),
    "bias": (
        dataclasses.replace(_SMALL, extras=("bias",)),
        "epilogue=4 ",
        "compute=68 pointers=host",
    ),
    "bias_relu": (
        dataclasses.replace(_SMALL, extras=("bias",), activation="relu"),
        "epilogue=6 ",
        "pointers=host",
    ),
    "gelu": (dataclasses.replace(_SMALL, activation="gelu"), "epilogue=32 ", "pointers=host"),
    "gelu_with_z": (OWN_CASES["gelu_with_z"], "epilogue=164 ", "pointers=device"),
    "pullback": (
        BACKWARD_CASES["pullback"],
        "epilogue=192 transposed=10 ",
        "pointers=device batch=1",
    ),
    "pullback_and_sum": (
        BACKWARD_CASES["pullback_and_sum"],
        "epilogue=208 ",
        "pointers=host batch=1",
    ),
    "c": (dataclasses.replace(_SMALL, extras=("c",)), "epilogue=1 ", "pointers=host batch=1"),
    "alpha": (dataclasses.replace(_SMALL, extras=("alpha",)), "epilogue=1 ", "pointers=device"),
    "tf32": (dataclasses.replace(_SMALL, **IN_FLOAT32), "epilogue=1 ", "compute=77"),
    "true_float32": (
        dataclasses.replace(_SMALL, precision="highest", **IN_FLOAT32),
        "epilogue=1 ",
        "compute=68",
    ),
    "float64": (FLOAT64, "epilogue=1 ", "compute=70"),
    "int8": (INT8, "epilogue=1 ", "compute=72"),
    "batch": (dataclasses.replace(_SMALL, batch=((3, "a b d"),)), "epilogue=1 ", "batch=3"),
}


@pytest.mark.parametrize("name", _ASKED)
def test_the_library_is_told_epilogue_precision_and_where_scalars_are(
    name: str, fake: _Fake
) -> None:
    case, heuristics, matmul = _ASKED[name]
    # A size of its own: the heuristics are asked again only about a product that is new to them.
    _run(dataclasses.replace(case, m=100 + list(_ASKED).index(name)))
    *_, asked, called = fake.log()
    assert asked.startswith("heuristics workspace=4096 reductions=2 ")
    assert heuristics in asked
    assert called.startswith("matmul algorithm=100 ")
    assert matmul in called
    assert called.endswith(f"workspace=4096 in_place={int('c' not in case.extras)}")


def test_heuristics_are_asked_once_for_a_product(fake: _Fake) -> None:
    num_runs = 200
    for layout in ("NN", "NT"):
        case = KernelCase(m=30, n=31, k=32, layout=layout)
        problem, arrays = case.problem(), case.arrays()
        run = jax.jit(functools.partial(cublaslt.run_on, problem, _CONFIG))
        for _ in range(num_runs // 2):
            jax.block_until_ready(run(arrays))
    asked = [line for line in fake.log() if line.startswith("heuristics")]
    # Where the host's memory is aligned in another way, the question is another one.
    assert len(asked) == len(set(asked)) < num_runs
    assert {line.split()[4] for line in asked} == {"transposed=00", "transposed=10"}
    assert sum(line.startswith("matmul") for line in fake.log()) == num_runs


def test_configs_are_the_algorithms_in_order_and_the_last_stands_for_those_past_the_end(
    fake: _Fake,
) -> None:
    for index in range(4):
        _run(KernelCase(m=35, n=36, k=37), cublaslt.Config(index, 0))
    called = [line.split()[1] for line in fake.log() if line.startswith("matmul")]
    # The fake says of 101 that it does not run here.
    assert called == ["algorithm=100", *["algorithm=102"] * 3]


def test_one_axis_of_the_batch_is_strided_over_and_the_others_are_launches(fake: _Fake) -> None:
    batch = ((2, "a d"), (5, "b d"), (3, "alpha d"))
    _run(KernelCase(m=5, n=6, k=7, batch=batch, extras=("alpha",)))
    called = [line for line in fake.log() if line.startswith("matmul")]
    assert len(called) == 6
    assert all("batch=5" in line for line in called)


def test_alignment_is_that_of_every_launch(fake: _Fake) -> None:
    # The second matrix of d begins 5 · 6 elements of 2 bytes after the first.
    _run(KernelCase(m=5, n=6, k=9, batch=((2, "a alpha d"),), extras=("alpha",)))
    [asked] = [line for line in fake.log() if line.startswith("heuristics")]
    assert asked.endswith(",4")


@pytest.mark.usefixtures("fake")
def test_a_product_without_an_algorithm_is_an_error_that_says_so() -> None:
    with pytest.raises(
        jax.errors.JaxRuntimeError,
        match=r"cublaslt: MatmulAlgoGetHeuristic of cuBLASLt: CUBLAS_STATUS_NOT_SUPPORTED",
    ):
        _run(KernelCase(m=5, n=13, k=7))


@pytest.mark.usefixtures("fake")
@pytest.mark.parametrize("num_bytes", [1, 1 << 20])
def test_the_library_may_write_all_of_its_workspace(num_bytes: int) -> None:
    _run(OWN_CASES["beta_alone"], cublaslt.Config(0, num_bytes))


@pytest.mark.usefixtures("fake")
@pytest.mark.parametrize(
    "row",
    [
        manifest.Row(
            "r", 16, 24, 16, batch=2, a_dtype="float32", b_dtype="float32", out_dtype="float32"
        ),
        manifest.Row("backward", 16, 24, 16, epilogue="dgelu+dbias"),
    ],
    ids=lambda row: row.name,
)
def test_the_benchmark_tries_every_algorithm_and_reports_one(
    row: manifest.Row, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = set()

    def run(problem: Problem, config: cublaslt.Config, operands: Operands) -> tuple[jax.Array, ...]:
        tried.add(config.index)
        return cublaslt.run_on(problem, config, operands)

    monkeypatch.setattr(cublaslt, "why_not_yardstick", lambda p, d: cublaslt.why_not_form(p))
    monkeypatch.setattr(benchmark, "_KERNEL", dataclasses.replace(cublaslt.KERNEL, run=run))
    runner = Runner(Options(backends=("cublaslt-best",), iterations=3))
    ((_, [record]),) = runner.run([row])
    assert (record.impl, record.status) == ("cublaslt-best", "ok"), record.reason
    assert record.config.startswith("algorithm=")
    assert tried == set(range(8))


def _load_error(file: Path, built: _Fake, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("JAXGEMM_CUBLASLT", str(file))
    cublaslt.find.cache_clear()
    with pytest.raises(BuildError) as caught:
        cublaslt.load_into(built.ours)
    cublaslt.find.cache_clear()
    return str(caught.value)


def test_what_is_not_the_library_is_a_reason(
    built: _Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = tmp_path / "text.so"
    text.write_text("not a library")
    assert "cuBLASLt cannot be loaded" in _load_error(text, built, monkeypatch)
    other = Path(built.ours._name)
    assert "lacks a function of cuBLASLt 13" in _load_error(other, built, monkeypatch)
    gone = tmp_path / "gone.so"
    assert f"JAXGEMM_CUBLASLT is {gone}, which is not a file" in _load_error(
        gone, built, monkeypatch
    )


def test_a_missing_library_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "why_not", lambda: None)
    monkeypatch.setattr(cublaslt, "find", lambda: None)
    monkeypatch.delenv("JAXGEMM_CUBLASLT", raising=False)
    reason = cublaslt.KERNEL.why_not(_SMALL.problem(), _H200)
    assert reason == "libcublasLt.so.13 is missing: install nvidia-cublas (jax[cuda13] brings it)"
    monkeypatch.setattr(cublaslt, "find", lambda: "libcublasLt.so.13")
    assert cublaslt.KERNEL.why_not(_SMALL.problem(), _H200) is None


def test_the_library_is_looked_for_in_a_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "cu13" / "lib" / "libcublasLt.so.13"
    file.parent.mkdir(parents=True)
    file.write_text("")
    spec = type("Spec", (), {"submodule_search_locations": [str(tmp_path)]})
    monkeypatch.delenv("JAXGEMM_CUBLASLT", raising=False)
    monkeypatch.setattr(cublaslt.importlib.util, "find_spec", lambda name: spec)
    monkeypatch.setattr(cublaslt, "_loads", lambda load: False)
    cublaslt.find.cache_clear()
    assert cublaslt.find() == str(file)
    file.unlink()
    cublaslt.find.cache_clear()
    assert cublaslt.find() is None
    cublaslt.find.cache_clear()


def _pullback(**fields: Any) -> KernelCase:
    return KernelCase(extras=("z",), activation="gelu", **fields)


_DECLINED: dict[str, tuple[KernelCase, str]] = {
    "gated": (SMALL_CASES["gated"], "b_up is present"),
    "summed": (KernelCase(batch=((3, "a b"),)), "summed over"),
    "empty_k": (KernelCase(k=0), "k is 0"),
    "mixed": (KernelCase(dtypes=(("b", "float16"),)), "b is float16: the library needs bfloat16"),
    "two_e5m2": (dataclasses.replace(FP8, dtype="float8_e5m2"), "needs one of them"),
    "out": (SMALL_CASES["float16_to_bfloat16"], "d is bfloat16: for float16 the library writes"),
    "c": (SMALL_CASES["narrower_c"], "c is float16: the library needs float32"),
    "bias": (SMALL_CASES["wider_c_and_bias"], "c is float32"),
    "clamp": (SMALL_CASES["clamp"], "clamp is given: the library has no such epilogue"),
    "silu": (SMALL_CASES["silu"], "activation is silu: the library has relu and gelu"),
    "z": (KernelCase(save=True), "saved for None"),
    "z_dtype": (
        KernelCase(activation="gelu", save=True, out="float32"),
        "z is bfloat16: the library needs float32",
    ),
    "z_rows": (KernelCase(n=12, activation="gelu", save=True), "n = 12: of z the library needs"),
    "pullback": (_pullback(), "z is given: the library rounds products to bfloat16"),
    "relu_pullback": (
        KernelCase(extras=("z",), activation="relu"),
        "activation is relu: the library keeps where it is flat as bits, and does not read z",
    ),
    "silu_pullback": (KernelCase(extras=("z",), activation="silu"), "activation is silu"),
    "pullback_z": (_pullback(dtypes=(("z", "float32"),)), "z is float32: the library needs"),
    "pullback_float32": (_pullback(**IN_FLOAT32), "slope of gelu is off by up to 2e-05"),
    "pullback_rows": (_pullback(n=12), "n = 12: of z the library needs rows of a multiple of 8"),
    "pullback_fp8": (
        dataclasses.replace(FP8, extras=("z",), activation="gelu", dtypes=(("z", "bfloat16"),)),
        "multiplies no such products by the slope of gelu",
    ),
    "pullback_float64": (
        dataclasses.replace(FLOAT64, extras=("z",), activation="gelu"),
        "applies no activation",
    ),
    "sum": (KernelCase(sums="bfloat16"), "sums only what it multiplies by the slope of gelu"),
    "sum_dtype": (_pullback(sums="float32"), "d_sum is float32: the library writes bfloat16"),
    "sum_of_a_batch": (
        _pullback(sums="bfloat16", batch=((3, "b d z"),)),
        "batch axis 0 of 3 is summed over in d_sum",
    ),
    "sum_of_nothing": (_pullback(m=0, sums="bfloat16"), "m is 0: the library sums nothing"),
    "int8_layout": (dataclasses.replace(INT8, layout="NN"), "k as their last dimension"),
    "int8_rows": (dataclasses.replace(INT8, k=30), "k = 30: for int8 the library needs"),
    "int8_alpha": (dataclasses.replace(INT8, extras=("alpha",)), "does not scale"),
    "float64_relu": (dataclasses.replace(FLOAT64, activation="relu"), "applies no activation"),
    "fp8_rows": (dataclasses.replace(FP8, m=24), "m = 24: for float8_e4m3fn"),
    "launches": (KernelCase(batch=((65, "a d"), (66, "b d"))), "takes 65 launches"),
}


@pytest.mark.parametrize("name", _DECLINED)
def test_what_the_library_has_no_form_for_is_declined(name: str) -> None:
    case, text = _DECLINED[name]
    reason = _why_not(case)
    assert reason is not None
    assert text in reason
    assert not reason.endswith(".")


@pytest.mark.parametrize(
    ("fields", "reason"),
    [({}, "z is given: the library rounds"), (IN_FLOAT32, "d is float32: the library's slope")],
    ids=["bfloat16", "float32"],
)
def test_backward_epilogues_are_left_to_others(
    fields: dict[str, Any], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library, "why_not", lambda: None)
    monkeypatch.setattr(cublaslt, "why_not_found", lambda: None)
    problem = _pullback(layout="NT", sums="bfloat16", **fields).problem()
    plans = {
        backend: dispatch.plan(problem, _H200, Policy(backend=backend, strict=True), cache.Tables())
        for backend in ("auto", "cublaslt")
    }
    auto, named = plans["auto"], plans["cublaslt"]
    assert (auto.kernel.name, auto.problem) == ("pallas.hopper.dense", remainder.simpler(problem))
    assert dict(auto.reasons)["cublaslt"].startswith(reason)
    assert (named.kernel.name, named.problem.spec.operands) == ("cublaslt", ("a", "b"))
    assert (named.problem.dtype("d"), named.problem.spec.activation) == (jnp.float32, None)


def test_batch_invariance_is_declined() -> None:
    problem = _SMALL.problem()
    invariant = dataclasses.replace(problem, spec=problem.spec.replace(batch_invariant=True))
    assert "batch_invariant" in str(cublaslt.why_not_problem(invariant))


def test_workspace_is_what_nvidia_recommends() -> None:
    problem = _SMALL.problem()
    for name, size in (("h200", 32 << 20), ("a100", 4 << 20)):
        configs = cublaslt.KERNEL.configs(problem, device.named(name))
        assert [config.index for config in configs] == list(range(8))
        assert {config.workspace_bytes for config in configs} == {size}
