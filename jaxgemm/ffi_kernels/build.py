"""Building a library from the sources in ffi/: which commands, and running them in parallel."""

import concurrent.futures
import dataclasses
import hashlib
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from jaxgemm.ffi_kernels import instances, toolchain
from jaxgemm.ffi_kernels.instances import Instance
from jaxgemm.ffi_kernels.toolchain import BuildError

_HOST_FLAGS = ("-std=c++17", "-O2", "-fPIC")
_DEVICE_FLAGS = (
    *("-std=c++17", "-O3", "--expt-relaxed-constexpr", "-lineinfo"),
    *("-Xcompiler", "-fPIC", "-Xptxas", "-v,--warn-on-local-memory-usage"),
)
_DTYPES = {"float32": "kF32", "bfloat16": "kBF16", "float16": "kF16"}
_INSTANCE = """\
#include "{row.header}"

namespace jaxgemm {{

extern "C" const char* jaxgemm_launch_{row.name}(const GemmParams& params, cudaStream_t stream) {{
  return {row.template}::Launch(params, stream);
}}

}}  // namespace jaxgemm
"""
# Besides the platform's handler.
_HOST_SOURCES = (
    *("abi/buffers.cc", "abi/call.cc", "abi/dtype.cc"),
    *("cublaslt/api.cc", "cublaslt/matmul.cc", "cublaslt/product.cc"),
    "registrations.cc",
)
# Reports how many of the compilations are done.
Progress = Callable[[int, int], None]


@dataclasses.dataclass(frozen=True)
class Recipe:
    """What is built: the sources, the compiler and the options, all of which the key covers.

    Attributes:
      platform: "CUDA", or "cpu" for the handler that needs no GPU.
      sources: the folder ffi/.
      compiler: nvcc or the host's compiler.
      compiler_version: what it says of itself.
      archs: architectures, as in "90a"; none on the CPU.
      flags: options beyond the usual ones, for sanitizers and checks.
    """

    platform: str
    sources: Path
    compiler: Path
    compiler_version: str
    archs: tuple[str, ...]
    flags: tuple[str, ...] = ()

    @property
    def instances(self) -> tuple[Instance, ...]:
        """The rows that at least one of the architectures can run."""
        return tuple(row for row in instances.instances() if any(map(row.compiles_for, self.archs)))

    @property
    def key(self) -> str:
        """A hash of everything that the library's content depends on."""
        digest = hashlib.sha256()
        facts = (self.platform, self.compiler_version, *self.archs, *self.flags)
        digest.update("\n".join((*facts, *_HOST_FLAGS, *_DEVICE_FLAGS)).encode())
        headers = toolchain.ffi_include() / "xla" / "ffi" / "api"
        for folder in (self.sources, headers):
            for path in sorted(p for p in folder.rglob("*") if p.is_file()):
                digest.update(str(path.relative_to(folder)).encode())
                digest.update(path.read_bytes())
        return digest.hexdigest()[:24]


def cuda_recipe(archs: Sequence[str], flags: tuple[str, ...] = ()) -> Recipe:
    """The recipe of the CUDA library.

    Raises:
      BuildError: sources or compilers are missing.
    """
    nvcc = toolchain.find_nvcc()
    if nvcc is None and (named := os.environ.get("JAXGEMM_NVCC")):
        raise BuildError(f"JAXGEMM_NVCC is {named}, which is not a program")
    if nvcc is None:
        raise BuildError(
            "no CUDA compiler: install nvidia-cuda-nvcc (jax[cuda13] brings it), or set"
            " JAXGEMM_NVCC to an nvcc"
        )
    host = ("-ccbin", str(_host_compiler()))
    return Recipe("CUDA", _sources(), nvcc.path, nvcc.version, tuple(sorted(archs)), host + flags)


def cpu_recipe(flags: tuple[str, ...] = ()) -> Recipe:
    """The recipe of the CPU library.

    Raises:
      BuildError: sources or the compiler are missing.
    """
    compiler = _host_compiler()
    version = toolchain.run([str(compiler), "--version"])
    return Recipe("cpu", _sources(), compiler, version, (), flags)


def _host_compiler() -> Path:
    compiler = toolchain.find_cxx()
    if compiler is None and (named := os.environ.get("CXX")):
        raise BuildError(f"CXX is {named}, which is not a program")
    if compiler is None:
        raise BuildError("no C++ compiler, which nvcc needs too: install g++, or set CXX")
    return compiler


def _sources() -> Path:
    folder = instances.source_folder()
    if folder is None:
        raise BuildError("the C++ sources are missing: reinstall jaxgemm")
    return folder


@dataclasses.dataclass(frozen=True)
class Step:
    """One compilation.

    Attributes:
      name: of the object file, without its ending.
      command: what makes it.
    """

    name: str
    command: tuple[str, ...]


def steps(recipe: Recipe, folder: Path) -> tuple[Step, ...]:
    """The compilations that make the library's objects; longest first."""
    include = ("-I", str(recipe.sources), "-I", str(folder))
    include += ("-isystem", str(toolchain.ffi_include()))

    def host(source: str) -> Step:
        name = Path(source).stem
        flags = _HOST_FLAGS
        if recipe.platform == "CUDA":
            flags = tuple(x if x != "-fPIC" else "-Xcompiler=-fPIC" for x in flags)
        options = (*flags, *recipe.flags, *include, "-c", "-o", str(folder / f"{name}.o"))
        return Step(name, (str(recipe.compiler), *options, str(recipe.sources / source)))

    device = tuple(_device_step(recipe, row, folder) for row in recipe.instances)
    handler = f"handlers/{recipe.platform.lower()}.cc"
    return *device, *map(host, (*_HOST_SOURCES, handler))


def _device_step(recipe: Recipe, row: Instance, folder: Path) -> Step:
    codes = [
        f"-gencode=arch=compute_{arch},code=sm_{arch}"
        for arch in recipe.archs
        if row.compiles_for(arch)
    ]
    include = ("-I", str(recipe.sources))
    options = (*_DEVICE_FLAGS, *recipe.flags, *codes, *include)
    files = ("-c", "-o", str(folder / f"{row.name}.o"), str(folder / f"{row.name}.cu"))
    command = (str(recipe.compiler), *options, *files)
    return Step(row.name, command)


def compile_steps(
    all_steps: Sequence[Step], folder: Path, progress: Progress | None = None
) -> dict[str, str]:
    """Runs compilations, as many at a time as there are cores.

    Returns:
      What the compiler wrote, by the name of the step.

    Raises:
      BuildError: one of them fails.
    """
    logs: dict[str, str] = {}
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        futures = {pool.submit(toolchain.run, step.command, folder): step for step in all_steps}
        try:
            for future in concurrent.futures.as_completed(futures):
                step = futures[future]
                try:
                    logs[step.name] = future.result()
                except BuildError as error:
                    raise BuildError(f"{step.name}: {error}") from error
                if progress is not None:
                    progress(len(logs), len(all_steps))
        finally:
            pool.shutdown(cancel_futures=True)
    return logs


def write_instances(recipe: Recipe, folder: Path) -> None:
    """Writes a source for each instance, and what registrations.cc includes: which there are."""
    for row in recipe.instances:
        (folder / f"{row.name}.cu").write_text(_INSTANCE.format(row=row))
    rows = " ".join(f"JAXGEMM_INSTANCE({x.name}, {_DTYPES[x.dtype]})" for x in recipe.instances)
    lines = (
        f"#define JAXGEMM_INSTANCES {rows}",
        f'#define JAXGEMM_ARCHS "{" ".join(recipe.archs)}"',
    )
    (folder / "instances.inc").write_text("".join(f"{line}\n" for line in lines))


def link(recipe: Recipe, compiled: Sequence[Step], folder: Path) -> Path:
    """The library of the objects in a folder, in that folder.

    Raises:
      BuildError: the linker fails.
    """
    result = folder / "library.so"
    options = ("-shared", "-cudart=static") if recipe.platform == "CUDA" else ("-shared",)
    objects = [str(folder / f"{step.name}.o") for step in compiled]
    command = (str(recipe.compiler), *options, *recipe.flags, "-o", str(result), *objects)
    toolchain.run(command, folder)
    return result


def build(recipe: Recipe, path: Path, progress: Progress | None = None) -> dict[str, str]:
    """Builds a library and moves it to `path` at once, so that nobody sees a part of it.

    Returns:
      What the compilers wrote, by the name of the object file.

    Raises:
      BuildError: a compiler fails.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".build-") as name:
        folder = Path(name)
        write_instances(recipe, folder)
        todo = steps(recipe, folder)
        logs = compile_steps(todo, folder, progress)
        result = link(recipe, todo, folder)
        result.replace(path)
    return logs


def progress_line(what: str) -> Progress:
    """A line on stderr that counts compilations; on a terminal it is written over."""
    start = time.monotonic()

    def report(done: int, total: int) -> None:
        text = f"jaxgemm: building {what}: {done} of {total}, {time.monotonic() - start:.0f} s"
        if sys.stderr.isatty():
            print(f"\r{text}", end="\n" if done == total else "", file=sys.stderr, flush=True)
        elif done in (1, total):
            print(text, file=sys.stderr, flush=True)

    return report
