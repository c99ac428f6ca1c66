"""Hardware counters of one call, by ncu: NVIDIA's profiler runs the binary again for it.

`counted` starts the same binary under ncu with the flag --child, and there `look_at` makes the call
that is profiled. Clocks stay as they are; ncu empties the caches before each kernel.
"""

import csv
import ctypes
import math
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import jax
from absl import flags

from benchmarks import environment

_CHILD = flags.DEFINE_string("child", None, "internal: what this process runs under ncu")
_NCU = flags.DEFINE_string("ncu", "ncu", "the profiler")

# Metric of ncu → field of a record. Bytes and registers as they are, the others in per cent. L2
# counts sectors: a read for several CTAs of a cluster once, a write to its far half twice.
_METRICS = {
    "dram__bytes_read.sum": "dram_bytes",
    "dram__bytes_write.sum": "dram_bytes",
    "lts__t_sectors_op_read.sum": "l2_bytes",
    "lts__t_sectors_op_write.sum": "l2_bytes",
    "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active": "tensor_active_percent",
    "sm__warps_active.avg.pct_of_peak_sustained_active": "occupancy_percent",
    "sm__throughput.avg.pct_of_peak_sustained_elapsed": "sm_percent",
    "l1tex__throughput.avg.pct_of_peak_sustained_active": "l1_percent",
    "lts__throughput.avg.pct_of_peak_sustained_elapsed": "l2_percent",
    "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed": "dram_percent",
    "launch__registers_per_thread": "registers",
    "launch__shared_mem_per_block": "smem_bytes",
}
_SECTOR_BYTES = 32
_TIMEOUT_SECONDS = 300
_SUMS = ("dram_bytes", "l2_bytes")
_WHOLE = ("registers", "smem_bytes")


def why_not() -> str | None:
    """None, or why there are no counters here."""
    if shutil.which(_NCU.value) is None:
        return f"--ncu: {_NCU.value} should be installed"
    return None


def child() -> str | None:
    """What the process that asked for counters wants this one to run; None in that one."""
    return _CHILD.value


def counted(binary: str, wanted: str) -> dict[str, Any]:
    """The counters of one call, as fields of a record.

    Args:
      binary: the module that is run again, with the flags of this process.
      wanted: what `child` gives there.

    Raises:
      RuntimeError: the process fails.
      TimeoutExpired: it takes longer than any counter is worth.
      ValueError: no kernel ran.
    """
    given = [flag for flag in sys.argv[1:] if not flag.startswith("--out=")]
    # The process that waits may hold most of the device's memory.
    variables = {**environment.same_modules(), "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    run = subprocess.run(
        [
            *(_NCU.value, "--csv", "--print-units=base", "--clock-control=none"),
            *("--profile-from-start=off", f"--metrics={','.join(_METRICS)}"),
            *(sys.executable, "-m", binary, f"--child={wanted}", *given),
        ],
        capture_output=True,
        text=True,
        env=variables,
        timeout=_TIMEOUT_SECONDS,
    )
    if run.returncode:
        raise RuntimeError((run.stderr or run.stdout).strip()[-300:])
    return parse(run.stdout)


def parse(text: str) -> dict[str, Any]:
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
        metric = line["Metric Name"] or ""
        name, value = _METRICS.get(metric), _number(line["Metric Value"])
        if name is None or value is None:
            continue
        value *= _SECTOR_BYTES if "sectors" in metric else 1
        found[name] = (
            found.get(name, 0.0) + value if name in _SUMS else max(value, found.get(name, 0.0))
        )
    return {name: int(x) if name in _WHOLE else x for name, x in found.items()}


def _number(text: str | None) -> float | None:
    """A value of ncu; None for "n/a" or "nan": what it says of a metric that a chip lacks."""
    try:
        value = float((text or "").replace(",", ""))
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def look_at(call: Callable[[Any], Any], sets: Sequence[Any]) -> None:
    """Calls once before, and once while, ncu looks."""
    jax.block_until_ready(call(sets[0]))
    driver = ctypes.CDLL("libcuda.so.1")
    context = ctypes.c_void_p()
    driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
    driver.cuCtxSetCurrent(context)
    driver.cuProfilerStart()
    jax.block_until_ready(call(sets[1]))
    driver.cuProfilerStop()
