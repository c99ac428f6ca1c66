"""How good the cost model's choice is: what it costs against measurements."""

import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import Any

from jaxgemm.device import Device
from jaxgemm.problem import Problem
from jaxgemm.tuning import cost, text


@dataclasses.dataclass(frozen=True)
class Measurement:
    """The time of one config."""

    problem: Problem
    config: Any
    time_us: float


@dataclasses.dataclass(frozen=True)
class Regret:
    """What choosing by estimate costs for one problem.

    Attributes:
      problem: it.
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


def regrets(
    measurements: Iterable[Measurement], device: Device, efficiency: float = 1.0
) -> tuple[Regret, ...]:
    """The regret of every measured problem, in the order in which problems first occur."""
    of_problem: dict[Problem, list[Measurement]] = {}
    for measurement in measurements:
        of_problem.setdefault(measurement.problem, []).append(measurement)

    def estimated_us(row: Measurement) -> float:
        return cost.estimate(row.problem, row.config, device, efficiency).time_us

    found = []
    for problem, rows in of_problem.items():
        best, chosen = min(rows, key=lambda row: row.time_us), min(rows, key=estimated_us)
        found.append(Regret(problem, best, chosen, estimated_us(chosen)))
    return tuple(found)


def mean(found: Sequence[Regret]) -> float:
    """The geometric mean of the ratios."""
    return math.exp(sum(math.log(x.ratio) for x in found) / max(1, len(found)))


def table(found: Sequence[Regret]) -> str:
    """One line a problem: what was best, what the model chose, and what that costs."""
    cells = [("best us", "chosen us", "model us", "regret", "best", "chosen", "problem")]
    for x in found:
        best, chosen = x.best, x.chosen
        cells.append(
            (
                f"{best.time_us:.1f}",
                f"{chosen.time_us:.1f}",
                f"{x.estimate_us:.1f}",
                f"{100 * (x.ratio - 1):.1f} %",
                text.short(best.config),
                text.short(chosen.config),
                str(x.problem),
            )
        )
    summary = f"{100 * (mean(found) - 1):.1f} % in geometric mean over {len(found)} problems"
    return f"{text.columns(cells)}\n{summary}"
