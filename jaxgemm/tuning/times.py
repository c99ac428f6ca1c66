"""The times of a candidate and how two are compared: medians, percentiles, ratios, ties."""

import dataclasses
import statistics
from typing import Literal

import numpy as np

from jaxgemm.tuning import clocks

# Ratios closer to 1 than this are a tie.
TIE = 0.02
_BOOTSTRAP_SAMPLES = 2000


@dataclasses.dataclass(frozen=True)
class Times:
    """The times of one candidate.

    Attributes:
      samples_us: one time a call.
      clock: "cupti": kernel time; "wall": the time of a call on the host, dispatch included.
      kernels: names of the kernels of one call, in order; empty for "wall".
      state: clocks and power meanwhile.
      alternated: whether launches alternated with those of the other candidates.
      in_turns: whether many launches of one candidate followed each other before the next one's.
    """

    samples_us: tuple[float, ...]
    clock: Literal["cupti", "wall"]
    kernels: tuple[str, ...] = ()
    state: clocks.State = dataclasses.field(default_factory=clocks.State)
    alternated: bool = True
    in_turns: bool = False

    @property
    def median_us(self) -> float:
        """The middle time."""
        return statistics.median(self.samples_us)

    def percentile_us(self, percent: float) -> float:
        """The time that `percent` of the calls do not exceed."""
        return float(np.percentile(self.samples_us, percent))


@dataclasses.dataclass(frozen=True)
class Ratio:
    """How many times faster one candidate is than another: > 1 is faster.

    Attributes:
      value: the baseline's median over the candidate's.
      low: lower end of the 95 % bootstrap interval.
      high: its upper end.
    """

    value: float
    low: float
    high: float

    @property
    def tie(self) -> bool:
        """Whether the difference is too small to count."""
        return abs(self.value - 1) < TIE


def ratio(times: Times, baseline: Times) -> Ratio:
    """The ratio of medians with its bootstrap interval; the same samples give the same interval.

    Samples of candidates that alternated are drawn in pairs: two that followed each other had the
    same clocks, so what the clocks did is not taken for uncertainty of the ratio.
    """
    rng = np.random.default_rng(0)
    both = (baseline, times)
    drawn = [
        rng.integers(0, len(x.samples_us), (_BOOTSTRAP_SAMPLES, len(x.samples_us))) for x in both
    ]
    paired = all(x.alternated and not x.in_turns for x in both)
    if paired and drawn[0].shape == drawn[1].shape:
        drawn[1] = drawn[0]
    medians = [
        np.median(np.asarray(x.samples_us)[i], axis=1) for x, i in zip(both, drawn, strict=True)
    ]
    low, high = np.percentile(medians[0] / medians[1], (2.5, 97.5))
    return Ratio(baseline.median_us / times.median_us, float(low), float(high))
