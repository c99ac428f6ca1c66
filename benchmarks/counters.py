"""Reads hardware counters of jaxgemm's kernels with ncu, next to the bytes that the model predicts.

    python -m benchmarks.counters --suite=readme --out=counters.jsonl

Each row runs in a process of its own under ncu, which profiles one call and leaves the clocks as
they are. Counters need a machine on which ncu is installed and may read them.
"""

import csv
import ctypes
import dataclasses
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import jax
from absl import app, flags

import jaxgemm
from benchmarks import cases, command, environment, fields, gemm, manifest, records
from benchmarks.records import Record
from benchmarks.runner import blank
from jaxgemm import dispatch
from jaxgemm.tuning import timing

_CHILD = flags.DEFINE_string("child", None, "internal: the row that this process runs under ncu")
_NCU = flags.DEFINE_string("ncu", "ncu", "the profiler")

# Metric of ncu → field of a record. Bytes and registers as they are, the others in per cent.
_METRICS = {
    "dram__bytes.sum": "dram_bytes",
    "lts__t_bytes.sum": "l2_bytes",
    "sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_active": "tensor_percent",
    "sm__warps_active.avg.pct_of_peak_sustained_active": "occupancy_percent",
    "launch__registers_per_thread": "registers",
}
_SUMS = ("dram_bytes", "l2_bytes")


def parse(text: str) -> dict[str, float]:
    """The counters of one call from ncu's CSV: bytes of all kernels, the largest of the others.

    Raises:
      ValueError: there is no kernel in it.
    """
    lines = text.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    if start is None:
        raise ValueError(f"ncu profiled no kernel: {text.strip()[-300:]}")
    found: dict[str, float] = {}
    for line in csv.DictReader(lines[start:]):
        name = _METRICS.get(line["Metric Name"] or "")
        if name is None:
            continue
        value = float((line["Metric Value"] or "nan").replace(",", ""))
        found[name] = (
            found.get(name, 0.0) + value if name in _SUMS else max(value, found.get(name, 0.0))
        )
    return found


def _profiled(row: manifest.Row) -> Iterator[Record]:
    empty = blank(row, row.mode or "forward", "burst", command.tags())
    try:
        case = cases.of(row)
        given = [flag for flag in sys.argv[1:] if not flag.startswith("--out=")]
        run = subprocess.run(
            [
                *(_NCU.value, "--csv", "--print-units=base", "--clock-control=none"),
                *("--profile-from-start=off", f"--metrics={','.join(_METRICS)}"),
                *(sys.executable, "-m", "benchmarks.counters", f"--child={row.name}", *given),
            ],
            capture_output=True,
            text=True,
            env=environment.same_modules(),
        )
        if run.returncode:
            raise RuntimeError((run.stderr or run.stdout).strip()[-300:])
        counted: dict[str, Any] = parse(run.stdout)
        if "registers" in counted:
            counted["registers"] = int(counted["registers"])
        yield dataclasses.replace(empty, status="counted", **counted, **_predicted(case))
    except cases.Unsupported as reason:
        yield dataclasses.replace(empty, status="unsupported", reason=str(reason))
    except Exception as error:
        yield records.failed(empty, error)


def _predicted(case: cases.Case) -> dict[str, Any]:
    """What must be moved, and what the chosen tiles load from L2 by the cost model."""
    rows = jaxgemm.explain(cases.call(case), case.avals("forward")).rows
    found: dict[str, Any] = {"predicted_dram_bytes": case.total_bytes("forward")}
    if rows and isinstance(rows[0].plan, dispatch.Plan):
        estimate = rows[0].plan.choices[0].estimate
        found |= {
            "predicted_l2_bytes": estimate.tile_bytes,
            "config": f"{rows[0].kernel} {rows[0].plan.choices[0].config}",
            "waves": fields.significant(estimate.waves, 4),
            "tail_utilisation": fields.significant(estimate.tail_utilisation, 4),
        }
    return found


def _run_child(row: manifest.Row) -> None:
    """Runs a row once before, and once while, ncu looks."""
    case = cases.of(row)
    sets = case.inputs("forward")
    call = timing.compile_for(cases.call(case), sets[0])
    jax.block_until_ready(call(sets[0]))
    driver = ctypes.CDLL("libcuda.so.1")
    context = ctypes.c_void_p()
    driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
    driver.cuCtxSetCurrent(context)
    driver.cuProfilerStart()
    jax.block_until_ready(call(sets[1]))
    driver.cuProfilerStop()


def main(argv: Sequence[str]) -> None:
    """Profiles the rows of the flags of `benchmarks.gemm`, which see."""
    if len(argv) > 1:
        raise app.UsageError(f"{argv[1:]} should be flags")
    try:
        rows = gemm.rows()
    except ValueError as error:
        raise app.UsageError(str(error)) from None
    if _CHILD.value is not None:
        _run_child(next(row for row in rows if row.name == _CHILD.value))
        return
    if shutil.which(_NCU.value) is None:
        raise app.UsageError(f"--ncu: {_NCU.value} should be installed")
    sys.exit(command.collect(len(rows), ((row.name, _profiled(row)) for row in rows)))


if __name__ == "__main__":
    app.run(main)
