"""Rows, records and child processes, for the tests of benchmarks."""

import os
import pathlib
import subprocess
import sys
from typing import Any

from benchmarks import fields, manifest
from benchmarks.records import Record
from jaxgemm.tuning.times import Times

ROOT = pathlib.Path(__file__).parents[1]
ROWS = {row.name: row for row in manifest.rows()}


def run_python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""},
    )


def record_of(**changes: Any) -> Record:
    row = manifest.Row("some_row", 64, 64, 64, suites="dense")
    shared = {name: getattr(row, name) for name in ("m", "n", "k", "batch", "groups")}
    shared |= {name: getattr(row, name) for name in ("trans_a", "trans_b", "epilogue")}
    shared |= {n: getattr(row, n) for n in ("a_dtype", "b_dtype", "compute_dtype", "out_dtype")}
    times = Times((10.0, 11.0, 12.0), "wall")
    base = {"row": "some_row", "suite": "dense", "mode": "forward", "regime": "burst"}
    base |= {"impl": "jaxgemm", "status": "ok", "baseline": "jnp.dot"}
    return Record(
        **{**shared, **base, **fields.stamp(), **fields.timed(times, times, 1, 1), **changes}
    )
