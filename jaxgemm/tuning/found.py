"""What a search found: the candidates of each problem with their times, as a table."""

import dataclasses
import datetime
import statistics
from pathlib import Path
from typing import Any

import jax

from jaxgemm.device import Device
from jaxgemm.kernel import Kernel
from jaxgemm.problem import Problem
from jaxgemm.tuning import cache, encoding, text
from jaxgemm.tuning.times import Times


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A config that was tried.

    Attributes:
      kernel: its kernel.
      config: it.
      estimate_us: what the cost model expects.
      times: what it took, None if it has no time.
      fault: why it has none.
    """

    kernel: Kernel
    config: Any
    estimate_us: float
    times: Times | None = None
    fault: str | None = None

    @property
    def name(self) -> str:
        """Kernel and config in a word each."""
        return f"{self.kernel.name} {text.short(self.config)}"


@dataclasses.dataclass(frozen=True)
class Tuned:
    """What was found for one problem.

    Attributes:
      problem: it.
      candidates: what was tried, fastest first, then those without a time.
      num_pruned: configs that were not tried because their estimate is too high.
      reference: the XLA reference, for comparison.
    """

    problem: Problem
    candidates: tuple[Candidate, ...]
    num_pruned: int
    reference: Candidate

    @property
    def best(self) -> Candidate | None:
        """The fastest, None if there is none that is right."""
        return next((c for c in self.candidates if c.times is not None), None)

    @property
    def regret(self) -> float | None:
        """What the cost model's choice takes, over the best that it can estimate: no library."""
        estimated = [
            (c.estimate_us, c.times.median_us)
            for c in self.candidates
            if c.times is not None and not c.kernel.is_black_box
        ]
        if not estimated:
            return None
        _, chosen_us = min(estimated, key=lambda pair: pair[0])
        return chosen_us / min(us for _, us in estimated)

    @property
    def faults(self) -> tuple[Candidate, ...]:
        """Those that are wrong, or failed."""
        return tuple(c for c in self.candidates if c.fault is not None)

    def entries(self) -> list[cache.Entry]:
        """The fastest of each kernel, and the reference, for a table."""
        found: dict[str, cache.Entry] = {}
        for candidate in (*self.candidates, self.reference):
            kernel, measured = candidate.kernel, candidate.times
            if measured is not None and kernel.name not in found:
                found[kernel.name] = cache.Entry(
                    kernel.name,
                    kernel.version,
                    cache.key_of(self.problem),
                    cache.config_text(candidate.config),
                    round(measured.median_us, 3),
                    _how(measured),
                )
        return list(found.values())

    def measurements(self) -> list[dict[str, Any]]:
        """Every candidate with a time, as JSON data: what judges the cost model."""
        return [
            {
                "kernel": c.kernel.name,
                "kernel_version": c.kernel.version,
                "problem": encoding.to_json(cache.key_of(self.problem)),
                "config": encoding.to_json(c.config),
                "estimate_us": round(c.estimate_us, 3),
                "time_us": round(c.times.median_us, 3),
                "measured": dict(_how(c.times)),
            }
            for c in (*self.candidates, self.reference)
            if c.times is not None
        ]


def _how(measured: Times) -> tuple[tuple[str, str], ...]:
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    mhz = measured.state.sm_mhz
    clock = {} if mhz is None else {"sm_mhz": f"{mhz:.0f}"}
    found = {"clock": measured.clock, "jax": jax.__version__, "time": now, **clock}
    return tuple(sorted(found.items()))


@dataclasses.dataclass(frozen=True)
class Tuning:
    """What `tune` found. Print it for a table.

    Attributes:
      device: what was measured.
      rows: one a distinct problem.
      path: the user's table, None if nothing was written.
      skipped: problems that were not begun: there was no time left, or it was interrupted.
    """

    device: Device
    rows: tuple[Tuned, ...]
    path: Path | None = None
    skipped: tuple[Problem, ...] = ()

    def __str__(self) -> str:
        cells = [("us", "vs reference", "vs untuned", "tried", "faults", "best", "problem")]
        cells += [_cells(row) for row in self.rows]
        lines = [text.columns(cells)]
        regrets = [row.regret for row in self.rows if row.regret is not None]
        if regrets:
            percent = 100 * (statistics.geometric_mean(regrets) - 1)
            lines.append(
                f"untuned  the cost model's choices take {percent:.1f} % longer than the best of"
                f" our kernels that were tried, in geometric mean over {len(regrets)} problems"
            )
        lines += [
            f"fault    {c.name} for {row.problem}: {c.fault}"
            for row in self.rows
            for c in row.faults
        ]
        lines += [f"skipped  {problem}: it was not begun" for problem in self.skipped]
        lines += [f"saved    {self.path}"] if self.path else []
        return "\n".join(lines)


def _cells(row: Tuned) -> tuple[str, ...]:
    best = row.best
    counts = (str(len(row.candidates)), str(len(row.faults)))
    if best is None or best.times is None:
        return ("-", "-", "-", *counts, "none", str(row.problem))
    us = best.times.median_us
    reference = "-" if row.reference.times is None else f"x{row.reference.times.median_us / us:.3f}"
    untuned = "-" if row.regret is None else f"x{row.regret:.3f}"
    return (f"{us:.2f}", reference, untuned, *counts, best.name, str(row.problem))
