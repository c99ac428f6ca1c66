"""Clocks, power and throttle reasons of a GPU, sampled through NVML while something runs."""

import dataclasses
import importlib
import os
import statistics
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

import jax

# How often the thread looks; a query takes about a millisecond.
_PERIOD_SECONDS = 0.005
# NVML renews the momentary power about this often; of less time it would tell what was before.
_POWER_SECONDS = 0.1
# The field of the momentary power; `nvmlDeviceGetPowerUsage` is a mean over a second.
_POWER_INSTANT = 186
# Reasons that say something about speed; idle and application settings do not.
_THROTTLE = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x20: "thermal",
    0x40: "hardware thermal",
    0x80: "power brake",
}


@dataclasses.dataclass(frozen=True)
class State:
    """What the device did meanwhile; None where NVML cannot say.

    Attributes:
      sm_mhz: median clock of the streaming multiprocessors.
      power_w: median momentary power; None for less than a tenth of a second.
      temperature_c: highest temperature.
      throttle: the reasons for a lower clock that were seen.
    """

    sm_mhz: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    throttle: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class _Sample:
    time_s: float
    sm_mhz: float
    power_w: float
    temperature_c: float
    reasons: int


class Sampler:
    """A thread that samples while the `with` block runs; silent where there is no NVML."""

    def __init__(self) -> None:
        self._samples: list[_Sample] = []
        self._stop = threading.Event()
        self._read = _reader()

    def __enter__(self) -> "Sampler":
        if self._read is not None:
            threading.Thread(target=self._sample, daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # The thread is not waited for: a query may take a third of a second.
        self._stop.set()

    def state(self, start: float = 0.0, end: float = float("inf")) -> State:
        """What was seen between two readings of `time.perf_counter`."""
        seen = [s for s in self._samples if start <= s.time_s <= end]
        if not seen:
            return State()
        long = seen[-1].time_s - seen[0].time_s >= _POWER_SECONDS
        reasons = {name for s in seen for bit, name in _THROTTLE.items() if s.reasons & bit}
        return State(
            sm_mhz=statistics.median(s.sm_mhz for s in seen),
            power_w=round(statistics.median(s.power_w for s in seen), 1) if long else None,
            temperature_c=max(s.temperature_c for s in seen),
            throttle=tuple(sorted(reasons)),
        )

    def _sample(self) -> None:
        assert self._read is not None
        while not self._stop.is_set():
            try:
                self._samples.append(self._read())
            except Exception:  # a lost sample is no reason to lose a measurement
                return
            self._stop.wait(_PERIOD_SECONDS)


def driver() -> str | None:
    """The version of the NVIDIA driver, None where there is no NVML."""
    nvml = _nvml()
    return None if nvml is None else str(nvml.nvmlSystemGetDriverVersion())


def _nvml() -> Any | None:
    try:
        nvml = importlib.import_module("pynvml")
        nvml.nvmlInit()
    except Exception:  # not installed, or no driver
        return None
    return nvml


def _reader() -> Callable[[], _Sample] | None:
    """A function that reads JAX's first GPU, None where that is not possible."""
    nvml = _nvml()
    if nvml is None or jax.default_backend() != "gpu":
        return None
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(_nvml_index(jax.local_devices()[0]))
    except Exception:
        return None

    def power_w() -> float:
        try:
            value = nvml.nvmlDeviceGetFieldValues(handle, [_POWER_INSTANT])[0]
            if value.nvmlReturn == 0:
                return value.value.uiVal / 1e3
        except Exception:  # an older driver has no momentary power
            pass
        return nvml.nvmlDeviceGetPowerUsage(handle) / 1e3

    def read() -> _Sample:
        return _Sample(
            time.perf_counter(),
            float(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
            power_w(),
            float(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
            int(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)),
        )

    return read


def _nvml_index(device: Any) -> int:
    """NVML counts all GPUs of the machine, JAX those that CUDA_VISIBLE_DEVICES leaves."""
    index = device.local_hardware_id or 0
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    return int(visible[index]) if index < len(visible) and visible[index].isdigit() else index
