"""What the cost model would choose for the problems that a tuner has measured, as a table."""

import pathlib
from collections.abc import Sequence

from benchmarks import markdown
from jaxgemm import device
from jaxgemm.tuning import regret, text


def table(path: pathlib.Path | None, name: str) -> str | None:
    """A line for each problem, most regretted first, and the means; None if nothing was tried.

    Args:
      path: the times that a tuner wrote.
      name: of the device on which it ran.
    """
    if path is None:
        return None
    target = device.named(name)
    found = regret.regrets(regret.tried(path, target), target)
    return of_regrets(found) if found else None


def of_regrets(found: Sequence[regret.Regret]) -> str:
    """The table of these regrets."""
    lines = [["problem", "chosen", "μs", "best", "μs", "regret"], ["---"] * 2 + ["--:"]]
    lines[1] += ["---", "--:", "--:"]
    for x in sorted(found, key=lambda x: -x.ratio):
        line = [f"`{x.problem}`", _name(x.chosen), f"{x.chosen.time_us:.1f}"]
        lines.append(
            [*line, _name(x.best), f"{x.best.time_us:.1f}", f"{100 * (x.ratio - 1):.1f} %"]
        )
    plain = [x for x in found if not x.problem.spec.batch]
    said = f"{_cost(found)} in geometric mean over {len(found)} problems"
    if 0 < len(plain) < len(found):
        said += f", {_cost(plain)} without batches"
    return f"{markdown.table(lines)}\n\nThe choice costs {said}."


def _cost(found: Sequence[regret.Regret]) -> str:
    return f"{100 * (regret.mean(found) - 1):.1f} %"


def _name(measurement: regret.Measurement) -> str:
    return f"{measurement.kernel} {text.short(measurement.config)}"
