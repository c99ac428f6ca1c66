"""How good the cost model's choice is: what it costs against measurements."""

import dataclasses
import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from jaxgemm import registry
from jaxgemm.device import Device
from jaxgemm.problem import Problem
from jaxgemm.tuning import cost, encoding


@dataclasses.dataclass(frozen=True)
class Measurement:
    """The time of one config.

    Attributes:
      problem: what was computed.
      config: of the kernel that computed it.
      time_us: the median.
      kernel: the kernel's name.
      efficiency: the kernel's, for its estimate.
    """

    problem: Problem
    config: Any
    time_us: float
    kernel: str = ""
    efficiency: float = 1.0


@dataclasses.dataclass(frozen=True)
class Regret:
    """What choosing by estimate costs for one problem.

    Attributes:
      problem: what was computed.
      best: the fastest measured config.
      chosen: the measured config with the lowest estimate.
      estimate_us: that estimate.
    """

    problem: Problem
    best: Measurement
    chosen: Measurement
    estimate_us: float

    @property
    def ratio(self) -> float:
        """Time of the chosen config over that of the best: at least 1."""
        return self.chosen.time_us / self.best.time_us


def tried(path: Path, device: Device) -> list[Measurement]:
    """What a tuner wrote with --times, of our kernels as they are: other versions are left out."""
    kernels = {k.name: k for k in registry.kernels() if not k.is_black_box}
    found = []
    for record in map(json.loads, path.read_text().splitlines()):
        kernel = kernels.get(record["kernel"])
        if kernel is None or kernel.version != record["kernel_version"]:
            continue
        problem = encoding.from_json(Problem, record["problem"])
        listed = kernel.configs(problem, device)
        config = next((x for x in listed if encoding.to_json(x) == record["config"]), None)
        if config is not None:
            time_us, efficiency = record["time_us"], kernel.efficiency
            found.append(Measurement(problem, config, time_us, kernel.name, efficiency))
    return found


def regrets(measurements: Iterable[Measurement], device: Device) -> tuple[Regret, ...]:
    """The regret of every measured problem, in the order in which problems first occur."""
    of_problem: dict[Problem, list[Measurement]] = {}
    for measurement in measurements:
        of_problem.setdefault(measurement.problem, []).append(measurement)

    def estimated_us(row: Measurement) -> float:
        return cost.estimate(row.problem, row.config, device, row.efficiency).time_us

    found = []
    for problem, rows in of_problem.items():
        best, chosen = min(rows, key=lambda row: row.time_us), min(rows, key=estimated_us)
        found.append(Regret(problem, best, chosen, estimated_us(chosen)))
    return tuple(found)


def mean(found: Sequence[Regret]) -> float:
    """The geometric mean of the ratios."""
    return math.exp(sum(math.log(x.ratio) for x in found) / max(1, len(found)))
