"""The compiled library: found or built, loaded, checked and registered with XLA.

A library that lies beside the package (`prebuilt/`) wins. Otherwise it is looked for in a folder of
the user, under a hash of the sources, the compiler and the options, and built there when a kernel
first runs. Importing never builds, and asking `why_not` never does either.
"""

import ctypes
import functools
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import filelock
import jax
import platformdirs

from jaxgemm import device
from jaxgemm.ffi_kernels import build, instances, toolchain
from jaxgemm.ffi_kernels.toolchain import BuildError

BUILD_COMMAND = "python -m jaxgemm.ffi_kernels build"
# As kAbiVersion in ffi/abi/params.h.
ABI_VERSION = 6
# A build takes about a minute; whoever waits for another's this long is told which lock to remove.
_LOCK_SECONDS = 900.0
# What failed in this process, so that `why_not` knows of it: path → why.
_failures: dict[Path, str] = {}
_PREBUILT = Path(__file__).resolve().parent / "prebuilt" / "libjaxgemm_cuda.so"


def cache_folder() -> Path:
    """Where built libraries are kept: $JAXGEMM_CACHE_DIR, or the user's cache folder."""
    root = os.environ.get("JAXGEMM_CACHE_DIR")
    return (Path(root) if root else platformdirs.user_cache_path("jaxgemm")) / "ffi"


def gpu_archs() -> tuple[str, ...]:
    """The architectures of this machine's GPUs; none where there is no GPU."""
    try:
        gpus = jax.devices("gpu")
    except RuntimeError:
        return ()
    return tuple(sorted({instances.arch(device.from_jax(gpu)) for gpu in gpus}))


def archs() -> tuple[str, ...]:
    """The architectures to build for: those of this machine's GPUs, else the usual ones."""
    return gpu_archs() or instances.DEFAULT_ARCHS


def sm(names: Sequence[str]) -> str:
    """Architectures as people write them."""
    return " ".join(f"sm_{name}" for name in names)


def path_of(recipe: build.Recipe) -> Path:
    """Where the library of a recipe is, once it is built."""
    return cache_folder() / f"libjaxgemm_{recipe.platform.lower()}-{recipe.key}.so"


@functools.cache
def why_not() -> str | None:
    """None if the CUDA library is there or could be built; else the reason. Builds nothing."""
    try:
        if _PREBUILT.exists():
            return _why_not_loadable(_PREBUILT) or _why_not_for_gpus(_PREBUILT)
        path = path_of(build.cuda_recipe(archs()))
        return _why_not_loadable(path) if path.exists() else _failures.get(path)
    # OSError: a folder cannot be read; RuntimeError: also a user without a home.
    except (BuildError, OSError, RuntimeError) as error:
        return str(error)


@functools.cache
def why_not_built() -> str | None:
    """None if the CUDA library need not be built any more; else the reason."""
    if reason := why_not():
        return reason
    if _PREBUILT.exists() or path_of(build.cuda_recipe(archs())).exists():
        return None
    return f"the CUDA library is not built yet: run `{BUILD_COMMAND}`"


def forget() -> None:
    """Makes the next question look at the files again."""
    why_not.cache_clear()
    why_not_built.cache_clear()


def ensure_built(recipe: build.Recipe) -> Path:
    """The library of a recipe, built unless it is there; processes wait for one another.

    Raises:
      BuildError: it cannot be built.
    """
    path = path_of(recipe)
    if path.exists():
        return path
    if path in _failures:
        raise BuildError(_failures[path])
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(path.with_suffix(".lock"), timeout=_LOCK_SECONDS):
            if not path.exists():
                build.build(recipe, path, build.progress_line(_what(recipe)))
    except filelock.Timeout as error:
        _failures[path] = f"another process has held {error.lock_file} for {_LOCK_SECONDS:.0f} s"
        raise BuildError(_failures[path]) from error
    except OSError as error:
        _failures[path] = f"{path.parent} cannot be written: {error}; set JAXGEMM_CACHE_DIR"
        raise BuildError(_failures[path]) from error
    except BuildError as error:
        _failures[path] = str(error)
        raise
    finally:
        forget()
    return path


def prebuild(recipe: build.Recipe) -> Path:
    """Puts the library of a recipe beside the package, where it is taken before any other.

    Raises:
      BuildError: it cannot be built, or the package's folder cannot be written.
    """
    built = ensure_built(recipe)
    partial = _PREBUILT.with_suffix(f".{os.getpid()}.so")
    try:
        _PREBUILT.parent.mkdir(exist_ok=True)
        shutil.copyfile(built, partial)
        # Moved at once, so that nobody loads a part of it.
        partial.replace(_PREBUILT)
    except OSError as error:
        raise BuildError(f"{_PREBUILT.parent} cannot be written: {error}") from error
    forget()
    return _PREBUILT


def prebuilt() -> Path | None:
    """The library beside the package, if there is one."""
    return _PREBUILT if _PREBUILT.exists() else None


def _what(recipe: build.Recipe) -> str:
    """What a recipe builds, in words."""
    if recipe.platform == "cpu":
        return "the CPU handler"
    return f"CUDA kernels for {sm(recipe.archs)}"


def _open(path: Path) -> ctypes.CDLL:
    """Loads a library.

    Raises:
      BuildError: it does not fit this package or this version of JAX.
    """
    try:
        library = ctypes.CDLL(str(path))
        abi, minor = library.JaxgemmAbiVersion(), library.JaxgemmFfiMinor()
    except (OSError, AttributeError) as error:
        raise BuildError(f"{path} cannot be loaded: {error}") from error
    if abi != ABI_VERSION:
        raise BuildError(
            f"{path} has ABI version {abi}, but this package needs {ABI_VERSION}: rebuild it"
        )
    if minor > toolchain.ffi_minor():
        raise BuildError(
            f"{path} was built with version 0.{minor} of XLA's FFI headers, but this JAX"
            f" ({jax.__version__}) has 0.{toolchain.ffi_minor()}: rebuild it with the JAX that runs"
        )
    return library


def _why_not_loadable(path: Path) -> str | None:
    try:
        _open(path)
    except BuildError as error:
        return str(error)
    return None


def held_archs(path: Path) -> tuple[str, ...]:
    """The architectures that a library has machine code for.

    Raises:
      BuildError: it cannot be loaded.
    """
    return _words(_open(path).JaxgemmArchs)


def _words(function: Any) -> tuple[str, ...]:
    function.restype = ctypes.c_char_p
    return tuple(function().decode().split())


def _why_not_for_gpus(path: Path) -> str | None:
    """Why a library that loads is not for this machine's GPUs, or not of this package."""
    held, names = held_archs(path), _words(_open(path).JaxgemmInstances)
    needed = gpu_archs()
    remedy = f"run `{BUILD_COMMAND} --prebuilt --archs={','.join(needed)}`, or remove it"
    for arch in needed:
        if not any(instances.runs_on(code, arch) for code in held):
            return f"{path} is for {sm(held)}, but there is a GPU of sm_{arch}: {remedy}"
    for row in instances.instances():
        if any(map(row.compiles_for, needed)) and row.name not in names:
            return f"{path} lacks the instance {row.name}: {remedy}"
    return None


@functools.cache
def register(platform: str) -> ctypes.CDLL:
    """Makes the targets of all kernels known to XLA on a platform, "CUDA" or "cpu".

    Returns:
      The loaded library.

    Raises:
      BuildError: the library cannot be built or loaded.
    """
    if platform == "CUDA" and _PREBUILT.exists():
        path = _PREBUILT
    else:
        recipe = build.cuda_recipe(archs()) if platform == "CUDA" else build.cpu_recipe()
        path = ensure_built(recipe)
    return register_file(path, platform)


def register_file(path: Path, platform: str) -> ctypes.CDLL:
    """Loads a library and registers its handlers for every kernel.

    Raises:
      BuildError: it does not fit.
    """
    library = _open(path)
    # A type must be registered before a handler that uses it, and XLA's CPU client replays what is
    # queued before it exists in the other order.
    jax.devices()
    library.JaxgemmCallTypeId.restype = ctypes.c_void_p
    library.JaxgemmCallTypeInfo.restype = ctypes.c_void_p
    capsules = {
        "type_id": _capsule(library.JaxgemmCallTypeId()),
        "type_info": _capsule(library.JaxgemmCallTypeInfo()),
    }
    jax.ffi.register_ffi_type("jaxgemm.Call", capsules, platform=platform)  # pyright: ignore
    handlers = {
        "instantiate": jax.ffi.pycapsule(library.JaxgemmInstantiate),
        "execute": jax.ffi.pycapsule(library.JaxgemmExecute),
    }
    if platform == "CUDA":
        handlers["initialize"] = jax.ffi.pycapsule(library.JaxgemmInitialize)
    for name in instances.kernel_names():
        jax.ffi.register_ffi_target(f"jaxgemm.{name}", handlers, platform=platform)
    return library


def _capsule(address: int) -> object:
    make = ctypes.pythonapi.PyCapsule_New
    make.restype = ctypes.py_object
    make.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
    return make(address, None, None)
