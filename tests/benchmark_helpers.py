"""Rows, records and child processes, for the tests of benchmarks."""

import dataclasses
import os
import pathlib
import subprocess
import sys
from typing import Any

from benchmarks import fields, manifest, rungs
from benchmarks.records import Record
from jaxgemm.tuning.graphs import GAPS_COUNT
from jaxgemm.tuning.times import Times

ROOT = pathlib.Path(__file__).parents[1]
TIMELESS = dict.fromkeys(("median_us", "p10_us", "p90_us", "p99_us"))
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


def captured_records() -> list[Record]:
    """Made-up times of a short call and of its baseline in a graph."""
    reason = {"reason": f"clocks are not compared: {GAPS_COUNT}", "row": "short", "check": "graph"}
    ours = record_of(**reason, graph_us=9.0, check_cupti_us=10.0, ratio=2.5)
    return [ours, record_of(**reason, impl="jnp.dot", graph_us=27.0, check_cupti_us=25.0)]


def counted_record() -> Record:
    """Made-up counters of one call."""
    moved = {"dram_bytes": 2e9, "predicted_dram_bytes": 1.5e9, "l2_bytes": 4e9}
    moved |= {"predicted_l2_bytes": 3e9, "registers": 168, "waves": 1.5, "tail_utilisation": 0.75}
    shares = {"tensor_active_percent": 91.2, "dram_percent": 35.0}
    changes = {"row": "counted", "config": "cuda.sm90.dense 128x256x64/m2", **moved, **shares}
    return record_of(status="counted", **TIMELESS, **changes)


def ladder_records() -> list[Record]:
    """Made-up times of every form of every rung, and counters of the first form of each."""
    found = []
    for index, form in enumerate(rungs.compiled()):
        size = {"row": f"ladder_4096_{form.dtype}", "suite": "ladder", "m": 4096, "n": 4096}
        size |= {"k": 4096, "a_dtype": form.dtype, "b_dtype": form.dtype}
        timed = record_of(
            **size, impl=form.name, tflops=1.0 + index, ratio=0.01, predicted_l2_bytes=4e9
        )
        counters = {"l2_bytes": 3e9, "dram_bytes": 2e9, "predicted_dram_bytes": 2e8}
        counters |= {"registers": 40, "l1_percent": 77.0, "sm_percent": 55.0}
        counted = dataclasses.replace(timed, status="counted", **TIMELESS, **counters)
        found += [timed, counted]
    jnp_dot = {"row": "ladder_4096_float32", "suite": "ladder", "m": 4096, "a_dtype": "float32"}
    return [*found, record_of(**jnp_dot, impl="jnp.dot[highest]", kernels=("sgemm",), ratio=1.0)]
