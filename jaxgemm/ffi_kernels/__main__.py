"""Builds the CUDA library ahead of time, or says what there is.

python -m jaxgemm.ffi_kernels build [--archs=80,90a] [--prebuilt]
python -m jaxgemm.ffi_kernels info

With --prebuilt the library is put beside the package, for machines or users without a compiler that
share the installation: an image, say. It is then taken as it is, whatever becomes of the sources.
"""

import argparse
import ctypes
import re
import sys
import time
from collections.abc import Iterable, Sequence

import jax

from jaxgemm.ffi_kernels import build, cublaslt, instances, library, toolchain
from jaxgemm.ffi_kernels.toolchain import BuildError


def _driver() -> str:
    """What can be said of the CUDA driver without starting it."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "none: there is no libcuda.so.1, so kernels can be built but not run"
    return "libcuda.so.1"


def _prebuilt() -> str:
    path = library.prebuilt()
    try:
        return "none" if path is None else f"{path}, for {library.sm(library.held_archs(path))}"
    except BuildError:
        # The library's row says why.
        return str(path)


def _compiled_kernels() -> Iterable[str]:
    return dict.fromkeys(row.kernel for row in instances.instances())


def _info() -> None:
    nvcc = toolchain.find_nvcc()
    rows = {
        "jax": f"{jax.__version__}, FFI version 0.{toolchain.ffi_minor()}",
        "compiler": "none" if nvcc is None else f"{nvcc.path}, found in {nvcc.found_in}",
        "host compiler": toolchain.find_cxx() or "none",
        "driver": _driver(),
        "cuBLASLt": cublaslt.find() or f"none: {cublaslt.why_not_found()}",
        "architectures": library.sm(library.archs()),
        "instances": f"{len(instances.instances())} of {', '.join(_compiled_kernels())}",
        "folder": library.cache_folder(),
        "prebuilt": _prebuilt(),
        "library": library.why_not_built() or "built",
    }
    for name, value in rows.items():
        print(f"{name:14} {value}")


def _archs(text: str) -> tuple[str, ...]:
    """Architectures by name."""
    names = tuple(sorted(set(text.split(","))))
    for name in names:
        found = re.fullmatch(r"(\d{2,3})[af]?", name)
        if found is None or int(found[1]) < 80:
            raise argparse.ArgumentTypeError(
                f"got {name!r}, expected names from 80 on, with commas: 80,90a"
            )
    return names


def _build(archs: tuple[str, ...], *, prebuilt: bool) -> None:
    start, recipe = time.monotonic(), build.cuda_recipe(archs)
    path = library.prebuild(recipe) if prebuilt else library.ensure_built(recipe)
    print(f"{path}, after {time.monotonic() - start:.0f} s")
    if (taken := library.prebuilt()) not in (None, path):
        print(f"{taken} is taken instead, as long as it is there", file=sys.stderr)
    elif taken is None and recipe.archs != library.archs():
        needed = library.sm(library.archs())
        print(f"it is for other machines: this one takes a library for {needed}", file=sys.stderr)


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m jaxgemm.ffi_kernels",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("info", help="say what was found")
    parsed = commands.add_parser("build", help="build the CUDA library, unless it is there")
    parsed.add_argument(
        "--archs",
        type=_archs,
        help="as in 80,90a; default: those of this machine's GPUs; with --prebuilt, and without a"
        f" GPU, {','.join(instances.DEFAULT_ARCHS)}",
    )
    parsed.add_argument("--prebuilt", action="store_true", help="put it beside the package")
    options = parser.parse_args(argv)
    if options.command == "info":
        _info()
        return 0
    try:
        usual = instances.DEFAULT_ARCHS if options.prebuilt else library.archs()
        _build(options.archs or usual, prebuilt=options.prebuilt)
    except BuildError as error:
        print(f"jaxgemm: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
