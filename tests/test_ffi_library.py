"""Building, caching and loading the CUDA library, with a compiler that only pretends."""

import concurrent.futures
import dataclasses
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import filelock
import pytest

from jaxgemm import device, dispatch, reference, registry
from jaxgemm.ffi_kernels import KERNELS, build, cublaslt, instances, library, toolchain
from jaxgemm.ffi_kernels import __main__ as command
from jaxgemm.ffi_kernels.toolchain import BuildError
from jaxgemm.policy import Policy
from tests.kernel_cases import KernelCase

# Logs its arguments, and writes the file after -o: an object, or a copy of the real library.
_FAKE = """#!/bin/sh
echo "$@" >> {log}
if [ "$1" = --version ]; then echo "{version}"; exit 0; fi
{failure}
while [ $# -gt 0 ]; do
  if [ "$1" = -o ]; then cp {library} "$2"; fi
  shift
done
"""
_SOURCE = """
extern "C" {{
int JaxgemmAbiVersion() {{ return {abi}; }}
int JaxgemmFfiMinor() {{ return {minor}; }}
const char* JaxgemmArchs() {{ return "{archs}"; }}
const char* JaxgemmInstances() {{ return "{names}"; }}
}}
"""


def _shared_library(
    folder: Path,
    abi: int = library.ABI_VERSION,
    minor: int = 0,
    *,
    archs: str = "80 90a",
    without: str = "",
) -> Path:
    """A library that says of itself what it is, and has nothing else; `without` an instance."""
    names = " ".join(row.name for row in instances.instances() if row.name != without)
    source, result = folder / "empty.cc", folder / f"{abi}-{minor}-{archs[:2]}-{without}.so"
    source.write_text(_SOURCE.format(abi=abi, minor=minor, archs=archs, names=names))
    subprocess.run(["g++", "-shared", "-fPIC", "-o", result, source], check=True)
    return result


class _Compiler:
    """A fake nvcc.

    Attributes:
      path: the program.
    """

    def __init__(self, folder: Path):
        self.path = folder / "nvcc"
        self._log = folder / "log"
        self._library = _shared_library(folder, minor=toolchain.ffi_minor())
        self.write()

    def write(self, version: str = "release 13.0", failure: str = "") -> None:
        """Makes it say a version, and fail where there is a command that does."""
        text = _FAKE.format(log=self._log, version=version, failure=failure, library=self._library)
        self.path.write_text(text)
        self.path.chmod(0o755)

    def calls(self) -> list[str]:
        """What it was called with, without questions for its version."""
        lines = self._log.read_text().splitlines() if self._log.exists() else []
        return [line for line in lines if line != "--version"]


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[_Compiler]:
    """The only compiler that can be found, and an empty cache."""
    monkeypatch.setenv("JAXGEMM_CACHE_DIR", str(tmp_path / "cache"))
    fake = _Compiler(tmp_path)
    monkeypatch.setenv("JAXGEMM_NVCC", str(fake.path))
    monkeypatch.setattr(library, "_PREBUILT", tmp_path / "prebuilt.so")
    monkeypatch.setattr(library, "_failures", {})
    monkeypatch.setattr(library, "gpu_archs", lambda: ("90a",))
    library.forget()
    yield fake
    library.forget()


def _recipe(archs: tuple[str, ...] = ("90a",)) -> build.Recipe:
    return build.cuda_recipe(archs)


def test_asking_never_builds_and_building_happens_once(compiler: _Compiler) -> None:
    assert library.why_not() is None
    assert "ffi_kernels build" in library.why_not_built()
    assert compiler.calls() == []
    path = library.ensure_built(_recipe())
    num_calls = len(compiler.calls())
    # One for each instance and each of eight host sources, and one that links.
    assert num_calls == len(_recipe().instances) + 9
    assert library.ensure_built(_recipe()) == path
    assert len(compiler.calls()) == num_calls
    assert library.why_not_built() is None


def test_auto_takes_a_kernel_once_its_library_is_built(
    compiler: _Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = dataclasses.replace(KERNELS[0], why_not_auto=library.why_not_built)
    monkeypatch.setattr(registry, "kernels", lambda: (kernel, reference.KERNEL))
    row = next(row for row in instances.instances() if row.kernel == kernel.name)
    problem = KernelCase(256, 256, 256, dtype=row.dtype, out=row.dtype).problem()
    h200 = device.named("h200")
    dispatch.forget()
    plan = dispatch.plan(problem, h200, Policy())
    assert plan.kernel is reference.KERNEL
    assert dict(plan.reasons) == {kernel.name: library.why_not_built()}
    named = dispatch.plan(problem, h200, Policy(backend=kernel.name))
    assert named.kernel is kernel
    assert compiler.calls() == []
    library.ensure_built(_recipe())
    dispatch.forget()
    assert dispatch.plan(problem, h200, Policy()).kernel is kernel
    dispatch.forget()


def test_builders_wait_for_one_another(compiler: _Compiler) -> None:
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        paths = set(pool.map(library.ensure_built, [_recipe()] * 4))
    assert len(paths) == 1
    assert len(compiler.calls()) == len(_recipe().instances) + 9


def test_key_follows_sources_compiler_and_options(
    compiler: _Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = {_recipe().key, _recipe(("80", "90a")).key, build.cuda_recipe(("90a",), ("-G",)).key}
    assert len(keys) == 3
    assert _recipe().key in keys
    compiler.write(version="release 13.1")
    keys.add(_recipe().key)
    copy = tmp_path / "ffi"
    subprocess.run(["cp", "-r", instances.source_folder().resolve(), copy], check=True)
    monkeypatch.setattr(instances, "_SOURCE_FOLDERS", (copy,))
    assert _recipe().key in keys
    (copy / "abi" / "params.h").write_text("// changed")
    keys.add(_recipe().key)
    assert len(keys) == 5


def test_nvcc_takes_the_host_compiler_that_is_named(
    compiler: _Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "c++").symlink_to(str(toolchain.find_cxx()))
    monkeypatch.setenv("CXX", str(tmp_path / "c++"))
    for step in build.steps(_recipe(), tmp_path):
        assert step.command[step.command.index("-ccbin") + 1] == str(tmp_path / "c++")


def test_instances_are_compiled_for_their_architectures_only(compiler: _Compiler) -> None:
    steps = {step.name: step for step in build.steps(_recipe(("80", "90a")), Path("/tmp"))}
    for name, row in instances.by_name().items():
        for arch in ("80", "90a"):
            code = f"-gencode=arch=compute_{arch},code=sm_{arch}"
            assert (code in steps[name].command) == row.compiles_for(arch)
    assert instances.arch(device.named("h200")) == "90a"
    assert instances.arch(device.named("a100")) == "80"


def test_failure_is_reported_once_and_remembered(compiler: _Compiler) -> None:
    compiler.write(failure='echo "naive.cuh(7): error: expected a ;"; exit 2')
    with pytest.raises(BuildError, match=r"ended with 2: naive.cuh\(7\): error: expected a ;"):
        library.ensure_built(_recipe())
    num_calls = len(compiler.calls())
    assert "expected a ;" in library.why_not()
    assert "expected a ;" in library.why_not_built()
    with pytest.raises(BuildError, match="expected a ;"):
        library.ensure_built(_recipe())
    assert len(compiler.calls()) == num_calls
    assert not list(library.cache_folder().glob("*.so"))
    assert not list(library.cache_folder().glob(".build-*"))


def test_a_lock_that_stays_taken_is_a_reason(
    compiler: _Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library, "_LOCK_SECONDS", 0.05)
    path = library.path_of(_recipe())
    path.parent.mkdir(parents=True)
    with filelock.FileLock(path.with_suffix(".lock")):
        with pytest.raises(BuildError, match=r"another process has held .*\.lock for"):
            library.ensure_built(_recipe())
        assert "another process" in str(library.why_not())
    assert not compiler.calls()


def test_a_folder_that_cannot_be_written_is_a_reason(
    compiler: _Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("JAXGEMM_CACHE_DIR", str(tmp_path / "file"))
    with pytest.raises(BuildError, match=r"cannot be written: .*; set JAXGEMM_CACHE_DIR"):
        library.ensure_built(_recipe())
    assert "cannot be written" in library.why_not()


@pytest.mark.parametrize(
    ("abi", "minor", "text"),
    [(99, 0, "has ABI version 99, but this package needs"), (None, 99, "has 0.")],
)
def test_a_library_that_does_not_fit_is_a_reason(
    compiler: _Compiler, abi: int | None, minor: int, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = _shared_library(compiler.path.parent, abi or library.ABI_VERSION, minor)
    monkeypatch.setattr(library, "_PREBUILT", path)
    assert text in library.why_not()
    assert "rebuild it" in library.why_not()
    with pytest.raises(BuildError, match=text):
        library.register_file(path, "cpu")


def test_a_prebuilt_library_wins(compiler: _Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "_PREBUILT", _shared_library(compiler.path.parent))
    monkeypatch.setenv("JAXGEMM_NVCC", "/nowhere/nvcc")
    assert library.why_not() is None
    assert library.why_not_built() is None


@pytest.mark.parametrize(
    ("gpus", "options", "text"),
    [
        (("100a",), {}, r"is for sm_80 sm_90a, but there is a GPU of sm_100a: run .*=100a`, or"),
        (("90a",), {"archs": "80"}, r"is for sm_80, but there is a GPU of sm_90a"),
        (("90a",), {"without": "sm90_bf16_128x64"}, r"lacks the instance sm90_bf16_128x64: run"),
        (("86",), {"without": "sm90_bf16_128x64"}, None),
        (("80", "90a"), {}, None),
        ((), {"archs": "90a"}, None),
    ],
)
def test_a_prebuilt_library_must_be_for_the_gpus(
    compiler: _Compiler,
    gpus: tuple[str, ...],
    options: dict[str, str],
    text: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = _shared_library(compiler.path.parent, **options)
    monkeypatch.setattr(library, "_PREBUILT", path)
    monkeypatch.setattr(library, "gpu_archs", lambda: gpus)
    reason = library.why_not()
    assert reason is None if text is None else re.search(text, str(reason))


@pytest.mark.parametrize(
    ("code", "gpu", "runs"),
    [
        ("80", "86", True),
        ("86", "80", False),
        ("80", "90a", False),
        ("90", "90a", True),
        ("90a", "90a", True),
        ("100a", "103a", False),
        ("100f", "103a", True),
        ("120", "121a", True),
    ],
)
def test_machine_code_runs_within_a_generation(code: str, gpu: str, runs: bool) -> None:
    assert instances.runs_on(code, gpu) == runs


def test_a_file_that_is_no_library_is_a_reason(
    compiler: _Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = compiler.path.parent / "text.so"
    path.write_text("not a library")
    monkeypatch.setattr(library, "_PREBUILT", path)
    assert "cannot be loaded" in library.why_not()


def test_missing_compilers_and_sources_are_reasons(
    compiler: _Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(instances, "_SOURCE_FOLDERS", ())
    assert library.why_not() == "the C++ sources are missing: reinstall jaxgemm"
    library.forget()
    monkeypatch.setenv("CXX", "/nowhere/g++")
    assert library.why_not() == "CXX is /nowhere/g++, which is not a program"
    library.forget()
    monkeypatch.setenv("JAXGEMM_NVCC", "/nowhere/nvcc")
    assert library.why_not() == "JAXGEMM_NVCC is /nowhere/nvcc, which is not a program"
    library.forget()
    monkeypatch.setattr(toolchain, "_candidates", lambda: iter(()))
    monkeypatch.delenv("JAXGEMM_NVCC")
    assert library.why_not().startswith("no CUDA compiler: install nvidia-cuda-nvcc")


def test_nvcc_is_looked_for_in_this_order(
    compiler: _Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "cuda" / "bin"
    home.mkdir(parents=True)
    (home / "nvcc").symlink_to(compiler.path)
    monkeypatch.setenv("CUDA_HOME", str(home.parent))
    monkeypatch.setenv("PATH", f"{home}:/usr/bin:/bin")
    assert toolchain.find_nvcc().found_in == "$JAXGEMM_NVCC"
    monkeypatch.delenv("JAXGEMM_NVCC")
    assert toolchain.find_nvcc().found_in == "PATH"
    places = [place for _, place in toolchain._candidates()]
    assert places.index("PATH") < places.index("$CUDA_HOME") < places.index("/usr/local/cuda")


def test_command_builds_and_informs(
    compiler: _Compiler, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert command.main(["build"]) == 0
    shown = capsys.readouterr()
    assert "libjaxgemm_cuda-" in shown.out
    assert "building CUDA kernels for sm_90a: 1 of" in shown.err
    monkeypatch.setattr(cublaslt, "find", lambda: None)
    monkeypatch.setenv("JAXGEMM_CUBLASLT", "/nowhere.so")
    assert command.main(["info"]) == 0
    shown = capsys.readouterr()
    assert "library        built" in shown.out
    assert "cuBLASLt       none: JAXGEMM_CUBLASLT is /nowhere.so, which is not a file" in shown.out
    assert command.main(["build", "--archs=90a,80"]) == 0
    assert "this one takes a library for sm_90a" in capsys.readouterr().err
    compiler.write(version="another", failure="exit 1")
    assert command.main(["build"]) == 1
    assert "ended with 1" in capsys.readouterr().err


@pytest.mark.parametrize("archs", ["sm_90a", "9.0", "90a,", "75", ""])
def test_command_names_an_architecture_that_it_does_not_know(
    archs: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        command.main(["build", f"--archs={archs}"])
    assert "expected names from 80 on, with commas: 80,90a" in capsys.readouterr().err


def test_command_puts_a_library_beside_the_package(
    compiler: _Compiler, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert library.prebuilt() is None
    monkeypatch.setattr(library, "_PREBUILT", compiler.path.parent / "prebuilt" / "x.so")
    assert command.main(["build", "--prebuilt"]) == 0
    path = library.prebuilt()
    assert path is not None
    assert str(path) in capsys.readouterr().out
    assert [x.name for x in path.parent.iterdir()] == ["x.so"]
    # It may be for other machines than this one.
    assert any("compute_80" in line for line in compiler.calls())
    assert command.main(["info"]) == 0
    assert f"prebuilt       {path}, for sm_80 sm_90a" in capsys.readouterr().out
    compiler.write(version="another")
    num_calls = len(compiler.calls())
    assert library.why_not_built() is None
    assert len(compiler.calls()) == num_calls
    assert command.main(["build"]) == 0
    assert f"{path} is taken instead" in capsys.readouterr().err
    monkeypatch.setattr(library, "_PREBUILT", compiler.path / "below_a_file" / "x.so")
    assert command.main(["build", "--prebuilt"]) == 1
    assert "cannot be written" in capsys.readouterr().err
