"""The fields that records share: times, how these were checked, and where it was."""

import math
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks import environment
from jaxgemm.tuning import graphs, times
from jaxgemm.tuning.graphs import Check
from jaxgemm.tuning.launches import Call
from jaxgemm.tuning.times import Times


def stamp() -> dict[str, Any]:
    """Device, driver, versions, commit, time and command."""
    return {
        "device": environment.description(),
        "driver": environment.driver(),
        "versions": environment.versions(),
        "commit": environment.commit(),
        "time": environment.now(),
        "command": environment.command(),
    }


def significant(x: float | None, digits: int = 5) -> float | None:
    """x with this many digits; None for what is unknown or not finite."""
    return None if x is None or not math.isfinite(x) else float(f"{x:.{digits}g}")


def timed(measured: Times, baseline: Times | None, flops: int, moved_bytes: int) -> dict[str, Any]:
    """Times, rates, the ratio to a baseline, and the state of the device."""
    compared = None if baseline is None else times.ratio(measured, baseline)
    return {
        "clock": measured.clock,
        "samples": len(measured.samples_us),
        "median_us": significant(measured.median_us, 7),
        "p10_us": significant(measured.percentile_us(10), 7),
        "p90_us": significant(measured.percentile_us(90), 7),
        "p99_us": significant(measured.percentile_us(99), 7),
        "alternated": measured.alternated,
        "kernels": measured.kernels,
        "tflops": significant(flops / measured.median_us / 1e6),
        "gbps": significant(moved_bytes / measured.median_us / 1e3),
        "ratio": compared and significant(compared.value),
        "ratio_low": compared and significant(compared.low),
        "ratio_high": compared and significant(compared.high),
        "sm_mhz": measured.state.sm_mhz,
        "power_w": measured.state.power_w,
        "temperature_c": measured.state.temperature_c,
        "throttle": measured.state.throttle,
    }


def checked(
    call: Call,
    sets: Sequence[Any],
    wait: Callable[[], None] | None = None,
    *,
    short: bool = False,
) -> dict[str, Any]:
    """Checks the kernel times of a candidate of `timing.measure`; see `graphs.check`.

    A check that breaks is a reason and loses no times.
    """
    try:
        check = graphs.check(call, sets, wait, short=short)
    except Exception as error:
        return {"reason": f"clocks are not compared: {type(error).__name__}: {error}"[:400]}
    return {} if check is None else of_check(check)


def of_check(check: Check) -> dict[str, Any]:
    """How kernel times were checked against the wall clock, and what came out."""
    wall = "wall_us" if check.launched == "calls" else "graph_us"
    reason = check.incomparable
    return {
        "check": check.launched,
        wall: significant(check.wall_us, 7),
        "check_cupti_us": significant(check.cupti_us, 7),
        "clocks_agree": check.agrees,
        "reason": f"clocks are not compared: {reason}" if reason else "",
    }
