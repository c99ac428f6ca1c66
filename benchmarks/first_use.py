"""Measures what a user waits for once: importing, building the CUDA library, loading it.

    python -m benchmarks.first_use --out=benchmarks/results/cpu/first_use.jsonl

Everything runs in processes of its own, builds in an empty cache; no GPU is needed. Loading is what
a kernel's first call adds where the library is there: finding it, by a hash of all sources, opening
it and registering its handlers with XLA.
"""

import dataclasses
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence

from absl import app, flags

from benchmarks import command, environment, fields, records
from benchmarks.records import Record
from jaxgemm.ffi_kernels import instances
from jaxgemm.tuning.times import Times

_ARCHS = flags.DEFINE_list("archs", ["90a", "+".join(instances.DEFAULT_ARCHS)], "of each build")
_REPEATS = 7

# Each prints seconds.
_IMPORT = """
import time; start = time.perf_counter()
import {module}
print(time.perf_counter() - start)
"""
_LOAD = """
import time, jax
jax.devices()
from jaxgemm.ffi_kernels import library
library.archs = lambda: {archs!r}
start = time.perf_counter()
assert library.why_not_built() is None
library.register("CUDA")
print(time.perf_counter() - start)
"""


def _seconds(code: str, folder: str = "") -> float:
    """What a process prints that has its cache in a folder."""
    run = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**environment.same_modules(), "JAXGEMM_CACHE_DIR": folder},
    )
    if run.returncode:
        raise RuntimeError(run.stderr.strip()[-300:])
    return float(run.stdout)


def _build_seconds(archs: tuple[str, ...], folder: str) -> float:
    start = time.perf_counter()
    built = subprocess.run(
        [sys.executable, "-m", "jaxgemm.ffi_kernels", "build", f"--archs={','.join(archs)}"],
        capture_output=True,
        text=True,
        env={**environment.same_modules(), "JAXGEMM_CACHE_DIR": folder},
    )
    if built.returncode:
        raise RuntimeError(built.stderr.strip()[-300:])
    return time.perf_counter() - start


def _record(row: str, seconds: Sequence[float], config: str = "") -> Record:
    times = Times(tuple(1e6 * x for x in seconds), "wall")
    timed = {**fields.timed(times, None, 0, 0), "tflops": None, "gbps": None}
    return dataclasses.replace(_blank(row), config=config, status="ok", **timed)


def _blank(row: str) -> Record:
    return Record(
        row=row,
        suite="first_use",
        m=0,
        n=0,
        k=0,
        batch=1,
        groups=0,
        trans_a=False,
        trans_b=False,
        a_dtype="",
        b_dtype="",
        compute_dtype="",
        out_dtype="",
        epilogue="none",
        mode="forward",
        regime="burst",
        impl="jaxgemm",
        status="failed",
        tags=command.tags(),
        **fields.stamp(),
    )


def _imports() -> Iterator[Record]:
    for module in ("jax", "jaxgemm"):
        code = _IMPORT.format(module=module)
        yield _record(f"import {module}", [_seconds(code) for _ in range(_REPEATS)])


def _built_and_loaded(archs: tuple[str, ...]) -> Iterator[Record]:
    targets = " ".join(f"sm_{arch}" for arch in archs)
    rows = [row for row in instances.instances() if any(map(row.compiles_for, archs))]
    build = _blank(f"build for {targets}")
    with tempfile.TemporaryDirectory() as folder:
        try:
            seconds = _build_seconds(archs, folder)
            yield _record(build.row, [seconds], f"{len(rows)} instances")
            code = _LOAD.format(archs=archs)
            loads = [_seconds(code, folder) for _ in range(_REPEATS)]
            yield _record(f"load for {targets}", loads)
        except Exception as error:
            yield records.failed(build, error)


def main(argv: Sequence[str]) -> None:
    """Measures all of it."""
    if len(argv) > 1:
        raise app.UsageError(f"{argv[1:]} should be flags")
    builds = [tuple(archs.split("+")) for archs in _ARCHS.value]
    found = [("imports", _imports())]
    found += [(" ".join(archs), _built_and_loaded(archs)) for archs in builds]
    wanted = [(name, some) for name, some in found if command.matches(name)]
    sys.exit(command.collect([name for name, _ in wanted], wanted))


if __name__ == "__main__":
    app.run(main)
