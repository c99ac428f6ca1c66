"""Where a measurement is made: device, driver, versions, commit; and where it is kept."""

import functools
import hashlib
import importlib.metadata
import json
import os
import pathlib
import platform
import re
import shlex
import subprocess
import sys
import time

import jax

from jaxgemm import device
from jaxgemm.tuning import cache, clocks, encoding

_ROOT = pathlib.Path(__file__).parents[1]
# Not so where the package is installed, and there the folder may be in a checkout of others.
_IS_CHECKOUT = (_ROOT / "pyproject.toml").exists()
_PACKAGES = ("jaxgemm", "jax", "jaxlib", "jax-cuda13-plugin", "torch", "numpy")


def folder() -> pathlib.Path:
    """The checkout, or the current folder where there is none: results and pictures go there."""
    return _ROOT if _IS_CHECKOUT else pathlib.Path.cwd()


def same_modules() -> dict[str, str]:
    """The environment in which another process finds the modules that this one finds."""
    return {**os.environ, "PYTHONSAFEPATH": "1", "PYTHONPATH": os.pathsep.join(sys.path)}


@functools.cache
def device_name() -> str:
    """The GPU's name as in `jaxgemm.device`, or "cpu"."""
    return device.current().name


@functools.cache
def description() -> str:
    """The GPU's name, or that of the processor and how many cores this process may use."""
    if jax.default_backend() != "cpu":
        return jax.devices()[0].device_kind
    model = platform.processor() or platform.machine()
    info = pathlib.Path("/proc/cpuinfo")
    if info.exists() and (found := re.search(r"model name\s*: (.*)", info.read_text())):
        model = found[1]
    return f"{model}, {len(os.sched_getaffinity(0))} cores"


@functools.cache
def driver() -> str | None:
    """The NVIDIA driver's version."""
    return clocks.driver()


@functools.cache
def versions() -> dict[str, str]:
    """Of Python, of the packages that decide what runs, and of the tuning tables."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {**found, "tables": digest(cache.current(device.current()))}


def digest(tables: cache.Tables) -> str:
    """A hash of what the tables say, in whatever order."""
    said = [
        sorted(json.dumps(encoding.to_json(entry), sort_keys=True) for entry in table.entries)
        for table in (tables.user, tables.shipped)
    ]
    return hashlib.sha256(json.dumps(said).encode()).hexdigest()[:12]


@functools.cache
def commit() -> str:
    """JAXGEMM_COMMIT, for copies of a checkout; else its commit, "+" if files differ from it."""
    if named := os.environ.get("JAXGEMM_COMMIT"):
        return named
    if not _IS_CHECKOUT:
        return "unknown"
    try:
        git = ("git", "-C", str(_ROOT))
        head = _output(*git, "rev-parse", "--short=12", "HEAD")
        code = ("jaxgemm", "pallas_kernels", "ffi")
        return head + ("+" if _output(*git, "status", "--porcelain", "--", *code) else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _output(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def command() -> str:
    """What was typed, for a shell, without where its files lie."""
    name = pathlib.Path(sys.argv[0]).stem
    arguments = [re.sub(r"^(--\w+=).*/", r"\1", argument) for argument in sys.argv[1:]]
    return shlex.join(("python", "-m", f"benchmarks.{name}", *arguments))


def now() -> str:
    """The time, UTC, to the second."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
