"""What the cost model and the kernels need to know of a chip: one row a chip."""

import dataclasses
import re
from typing import Any

import jax


@dataclasses.dataclass(frozen=True)
class Device:
    """Facts of one device.

    Attributes:
      name: the key of tuning tables, lower case.
      platform: "cpu" or "cuda".
      compute_capability: (major, minor), (0, 0) where the notion does not exist.
      num_sms: streaming multiprocessors, or cores of a CPU.
      smem_bytes: shared memory that one thread block may use.
      l2_bytes: last-level cache.
      dram_gbps: memory bandwidth that a copy reaches, 1e9 bytes a second.
      tflops: (mma family, 1e12 operations a second that a large product reaches) pairs; the
        family "" is the rate without tensor cores, "f64" that of float64.
      launch_us: fixed time of one kernel: launch, prologue and drain.
    """

    name: str
    platform: str
    compute_capability: tuple[int, int]
    num_sms: int
    smem_bytes: int
    l2_bytes: int
    dram_gbps: float
    tflops: tuple[tuple[str, float], ...]
    launch_us: float

    def peak_tflops(self, family: str) -> float:
        """Reachable rate of one instruction family; that of plain FMAs where it has none."""
        rates = dict(self.tflops)
        return rates.get(family, rates[""])


# Reachable, not data-sheet, rates. H200: measured 2026-11-29 (jnp.dot and torch, random data,
# 700 W); A100, H100 and B200 scale the data sheet by the share that the H200 reaches.
_H200 = Device(
    "nvidia_h200",
    "cuda",
    (9, 0),
    132,
    232448,
    60 << 20,
    4300.0,
    (("", 51.0), ("f64", 60.0), ("tf32", 413.0), ("f16", 830.0), ("f8", 1480.0), ("i8", 1400.0)),
    3.0,
)
_H100 = dataclasses.replace(
    _H200, name="nvidia_h100_80gb_hbm3", l2_bytes=50 << 20, dram_gbps=3000.0
)
_B200 = Device(
    "nvidia_b200",
    "cuda",
    (10, 0),
    148,
    232448,
    126 << 20,
    7100.0,
    (("", 60.0), ("f64", 35.0), ("tf32", 900.0), ("f16", 1800.0), ("f8", 3600.0), ("i8", 3600.0)),
    3.0,
)
_A100 = Device(
    "nvidia_a100-sxm4-80gb",
    "cuda",
    (8, 0),
    108,
    166912,
    40 << 20,
    1750.0,
    (("", 18.0), ("f64", 17.0), ("tf32", 130.0), ("f16", 260.0), ("i8", 520.0)),
    3.0,
)
# A CPU only ever runs the reference, so one modest row is enough to tell the roofs apart.
CPU = Device("cpu", "cpu", (0, 0), 2, 0, 32 << 20, 20.0, (("", 0.1), ("f64", 0.05)), 5.0)

DEVICES = {d.name: d for d in (_H200, _H100, _B200, _A100, CPU)}
_BY_CAPABILITY = {(9, 0): _H200, (10, 0): _B200, (8, 0): _A100}


def from_jax(device: Any) -> Device:
    """The row of a `jax.Device`, with the counts that the device itself reports."""
    if device.platform not in ("gpu", "cuda"):
        return CPU
    name = device.device_kind.lower().replace(" ", "_")
    major, minor = (int(x) for x in str(device.compute_capability).split("."))
    known = DEVICES.get(name) or _BY_CAPABILITY.get((major, minor), _A100)
    return dataclasses.replace(
        known,
        name=name,
        compute_capability=(major, minor),
        num_sms=getattr(device, "core_count", known.num_sms),
        smem_bytes=getattr(device, "shared_memory_per_block_optin", known.smem_bytes),
    )


def named(name: str) -> Device:
    """The row of a name such as "nvidia_h200" or "h200"."""
    for device in DEVICES.values():
        short = re.split("[-_]", device.name.removeprefix("nvidia_"))[0]
        if name.lower() in (device.name, short):
            return device
    raise ValueError(f"device: {name!r} is unknown; it should be one of {sorted(DEVICES)}")


def current() -> Device:
    """The device that a computation traced now would run on."""
    default = jax.config.jax_default_device  # pyright: ignore[reportAttributeAccessIssue]
    if default is not None and not isinstance(default, str):
        return from_jax(default)
    return from_jax(jax.devices(default)[0] if default else jax.devices()[0])


def current_cuda() -> Device | None:
    """The CUDA device that a lowering for CUDA is meant for, None where none can be seen."""
    device = current()
    return device if device.platform == "cuda" else None
