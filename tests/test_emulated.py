"""CUDA kernels without a GPU: compiled as host C++, with a model of every instruction they use.

`tests/emulator/` runs the kernels of ffi/ on random problems whose results are exact, in several
orders of warps and of asynchronous work. `tests/emulator/machine.h` lists what it does not model.
"""

import functools
import platform
import re
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from jaxgemm.ffi_kernels import build, instances, toolchain
from jaxgemm.ffi_kernels.instances import Instance
from tests.emulated_faults import FAULTS, Fault

_FFI = instances.source_folder() or Path()
_EMULATOR = Path(__file__).parent / "emulator"
_FLAGS = (
    *("-std=c++17", "-O2", "-fno-strict-aliasing", "-include", "cuda_runtime.h"),
    "-D__CUDA_ARCH_FEAT_SM90_ALL",
)
# Of kernels, nvcc is the one to ask.
_WARNINGS = ("-Wall", "-Werror", "-Wno-unknown-pragmas", "-Wno-psabi")
_DTYPES = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}
_ROWS = instances.by_name()
_SEED = 1
# One of each kind.
_SAMPLE = (
    "tiled_bf16",
    "warptiled_64x64x16",
    "mma_sync_bf16_128x128_s3",
    "sm90_bf16_128x64",
    "sm90_bf16_128x128_m2_turns",
    "sm90_tf32_64x128",
)


@functools.cache
def _cuda_include() -> Path | None:
    """The folder of CUDA's headers, by what the compiler says that it would do."""
    nvcc = toolchain.find_nvcc()
    if nvcc is None:
        return None
    said = toolchain.run([str(nvcc.path), "--dryrun", "-c", "-x", "cu", "/dev/null"])
    [folder] = re.findall(r'INCLUDES="-I([^"]+?)"? *$', said, re.MULTILINE)
    return Path(folder) if Path(folder, "cuda.h").is_file() else None


pytestmark = [
    pytest.mark.skipif(_cuda_include() is None, reason="needs the headers of a CUDA toolkit"),
    pytest.mark.skipif(
        platform.machine() != "x86_64", reason="threads switch stacks by instructions of x86-64"
    ),
]

# Compiles an instance with the emulator; of the sources in the folder, if given, before ffi/.
Compile = Callable[[Instance, Path | None], Path]


@pytest.fixture(scope="module")
def compile_instance(tmp_path_factory: pytest.TempPathFactory) -> Compile:
    folder: Path = tmp_path_factory.mktemp("emulator")
    build.write_instances(build.Recipe("CUDA", _FFI, Path(), "", ("90a",)), folder)
    objects = []
    for source in sorted(_EMULATOR.glob("*.cc")):
        objects.append(folder / f"{source.stem}.o")
        _compile(*_WARNINGS, "-c", source, "-o", objects[-1])

    def compile_one(row: Instance, changed: Path | None = None) -> Path:
        program = (changed or folder) / row.name
        first = () if changed is None else ("-I", changed)
        _compile(*first, "-w", "-c", "-x", "c++", folder / f"{row.name}.cu", "-o", f"{program}.o")
        launch = f"-Wl,--defsym=LaunchInstance=jaxgemm_launch_{row.name}"
        _compile(f"{program}.o", *objects, launch, "-o", program)
        return program

    return compile_one


def _compile(*arguments: str | Path) -> None:
    compiler, cuda = toolchain.find_cxx(), _cuda_include()
    assert compiler is not None
    # Those of the emulator take the place of others of the same name.
    stubs = ("-I", _EMULATOR / "include", "-I", _EMULATOR)
    sources = ("-I", _FFI, "-isystem", cuda)
    toolchain.run([str(x) for x in (compiler, *_FLAGS, *stubs, *arguments, *sources)])


def _run(program: Path, row: Instance, num_cases: int) -> str:
    """What the cases print; ends with how many failed."""
    epilogue = "plain" if row.only_plain else "any"
    layouts = "k_major" if row.kernel == "cuda.sm90.tf32" else "all"
    arguments = (_DTYPES[row.dtype], *row.cta_tile, epilogue, layouts, _SEED, num_cases)
    command = [str(x) for x in (program, *arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300).stdout


def _check(compile_instance: Compile, row: Instance, num_cases: int) -> None:
    output = _run(compile_instance(row, None), row, num_cases)
    assert output.endswith(f"{num_cases} cases, 0 failed\n"), output[-4000:]


@pytest.mark.parametrize("name", _SAMPLE)
def test_results_are_exact(compile_instance: Compile, name: str) -> None:
    _check(compile_instance, _ROWS[name], 30)


@pytest.mark.slow
@pytest.mark.parametrize("name", _ROWS)
def test_results_of_every_instance_are_exact(compile_instance: Compile, name: str) -> None:
    _check(compile_instance, _ROWS[name], 60)


def _is_found(compile_instance: Compile, fault: Fault, folder: Path, num_cases: int) -> bool:
    source = (_FFI / fault.file).read_text()
    assert source.count(fault.old) == 1, "the fault is of another version of the source"
    changed = folder / fault.file
    changed.parent.mkdir(parents=True)
    changed.write_text(source.replace(fault.old, fault.new))
    row = _ROWS[fault.instance]
    return "FAILED" in _run(compile_instance(row, folder), row, num_cases)


def _names(faults: Iterable[Fault]) -> list[str]:
    return [f"{fault.instance}-{fault.name}" for fault in faults]


# A barrier and a proxy fence that are missing.
_SAMPLED_FAULTS = [
    fault
    for fault in FAULTS
    if fault.name in ("a_tile_is_read_early", "tma_stores_without_a_fence")
]


@pytest.mark.parametrize("fault", _SAMPLED_FAULTS, ids=_names(_SAMPLED_FAULTS))
def test_a_fault_is_found(compile_instance: Compile, fault: Fault, tmp_path: Path) -> None:
    assert _is_found(compile_instance, fault, tmp_path, 60)


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS, ids=_names(FAULTS))
def test_every_fault_is_found(compile_instance: Compile, fault: Fault, tmp_path: Path) -> None:
    # The rarest of them, a bias that is overwritten early, shows in one case of forty.
    assert _is_found(compile_instance, fault, tmp_path, 120)
