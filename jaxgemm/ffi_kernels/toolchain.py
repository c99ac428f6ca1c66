"""Finding the compilers and headers that build the library, and running them."""

import dataclasses
import functools
import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import jax.ffi


class BuildError(RuntimeError):
    """The library cannot be built; the text says why and what would help."""


@dataclasses.dataclass(frozen=True)
class Nvcc:
    """A CUDA compiler.

    Attributes:
      path: the program.
      found_in: the place where it was found, for people.
    """

    path: Path
    found_in: str

    @functools.cached_property
    def version(self) -> str:
        """What it says of itself: the last line names the release."""
        return run([str(self.path), "--version"]).strip()


def _candidates() -> Iterator[tuple[Path | None, str]]:
    if named := os.environ.get("JAXGEMM_NVCC"):
        yield Path(named), "$JAXGEMM_NVCC"
        return
    on_path = shutil.which("nvcc")
    yield (Path(on_path) if on_path else None), "PATH"
    spec = importlib.util.find_spec("nvidia")
    for folder in (spec and spec.submodule_search_locations) or ():
        yield Path(folder) / "cu13" / "bin" / "nvcc", "the package nvidia-cuda-nvcc"
    for name in ("CUDA_HOME", "CUDA_PATH"):
        if root := os.environ.get(name):
            yield Path(root) / "bin" / "nvcc", f"${name}"
    yield Path("/usr/local/cuda/bin/nvcc"), "/usr/local/cuda"


def find_nvcc() -> Nvcc | None:
    """The first nvcc of $JAXGEMM_NVCC, PATH, a package, $CUDA_HOME, $CUDA_PATH, /usr/local/cuda."""
    for path, found_in in _candidates():
        if path is not None and path.is_file() and os.access(path, os.X_OK):
            return Nvcc(path.resolve(), found_in)
    return None


def find_cxx() -> Path | None:
    """The host's C++ compiler: $CXX or g++."""
    found = shutil.which(os.environ.get("CXX") or "g++")
    return Path(found) if found else None


def ffi_include() -> Path:
    """The folder of XLA's FFI headers, which come with jaxlib."""
    return Path(jax.ffi.include_dir())


@functools.cache
def ffi_minor() -> int:
    """The minor version of XLA's FFI that the installed jaxlib has."""
    text = (ffi_include() / "xla" / "ffi" / "api" / "c_api.h").read_text()
    found = re.search(r"#define XLA_FFI_API_MINOR (\d+)", text)
    assert found is not None, "XLA's c_api.h names no minor version"
    return int(found[1])


def run(command: Sequence[str], cwd: Path | None = None) -> str:
    """The output, errors included, of a command.

    Raises:
      BuildError: it cannot be run, or fails; with the end of what it wrote.
    """
    try:
        done = subprocess.run(
            command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
    except OSError as error:
        raise BuildError(f"{command[0]} cannot be run: {error}") from error
    if done.returncode != 0:
        raise BuildError(
            f"{Path(command[0]).name} ended with {done.returncode}: {done.stdout.strip()[-2000:]}"
        )
    return done.stdout
