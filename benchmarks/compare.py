"""Compares two result files: how much faster the second is, row by row.

    python -m benchmarks.compare before.jsonl after.jsonl

Compared are times, or with --ratios the ratios to the baseline of each file, which do not depend on
the state that the card was in. A difference under 2 % is a tie. Exits with 1 if a row is slower by
more than --fail_over per cent.
"""

import dataclasses
import math
import statistics
import sys
from collections.abc import Sequence

from absl import app, flags

from benchmarks import records
from benchmarks.records import Record
from jaxgemm.tuning.times import TIE

_RATIOS = flags.DEFINE_bool("ratios", False, "compare ratios to the baseline instead of times")
_FAIL_OVER = flags.DEFINE_float("fail_over", math.inf, "per cent by which no row may be slower")
_IMPL = flags.DEFINE_string("impl", None, "only this implementation")

Key = tuple[str, str, str, str]


@dataclasses.dataclass(frozen=True)
class Comparison:
    """One row, implementation, mode and regime in both files.

    Attributes:
      key: these four.
      before, after: microseconds, or ratios to the baseline.
      speedup: > 1: the second file is faster.
      same_config: whether the implementation chose the same in both.
    """

    key: Key
    before: float
    after: float
    speedup: float
    same_config: bool = True

    @property
    def verdict(self) -> str:
        """In one word."""
        if abs(self.speedup - 1) < TIE:
            return "tie"
        return "faster" if self.speedup > 1 else "slower"


def latest(found: Sequence[Record]) -> dict[Key, Record]:
    """The last record with a time of each row, implementation, mode and regime."""
    return {(r.row, r.impl, r.mode, r.regime): r for r in found if r.status == "ok"}


def compare(
    before: Sequence[Record], after: Sequence[Record], *, ratios: bool = False
) -> list[Comparison]:
    """What both have, in the order of the first."""
    left, right = latest(before), latest(after)
    found = []
    for key, old in left.items():
        new = right.get(key)
        if new is None:
            continue
        if ratios:
            if old.ratio is None or new.ratio is None or old.impl == old.baseline:
                continue
            numbers = old.ratio, new.ratio, new.ratio / old.ratio
        else:
            assert old.median_us is not None
            assert new.median_us is not None
            numbers = old.median_us, new.median_us, old.median_us / new.median_us
        found.append(Comparison(key, *numbers, same_config=old.config == new.config))
    return found


def table(comparisons: Sequence[Comparison]) -> str:
    """A line for each, then the geometric mean, the spread and what is in only one file."""
    lines = [f"{'row':32} {'implementation':26} {'before':>10} {'after':>10} {'speed-up':>9}"]
    for c in comparisons:
        row, impl, mode, regime = c.key
        notes = " ".join(x for x in (mode, regime) if x not in ("forward", "burst"))
        notes += "" if c.same_config else " another config"
        numbers = f"{c.before:10.3f} {c.after:10.3f} {c.speedup:9.3f}"
        lines.append(f"{row:32.32} {impl:26.26} {numbers}  {c.verdict:6} {notes}".rstrip())
    if comparisons:
        logs = [math.log(c.speedup) for c in comparisons]
        counts = {v: sum(c.verdict == v for c in comparisons) for v in ("faster", "tie", "slower")}
        lines.append(
            f"{len(comparisons)} compared: "
            + ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
            + f"; geometric mean {math.exp(statistics.fmean(logs)):.3f}; largest difference"
            f" {math.exp(max(map(abs, logs))) - 1:.1%}; with another config"
            f" {sum(not c.same_config for c in comparisons)}"
        )
    return "\n".join(lines)


def main(argv: Sequence[str]) -> None:
    """Prints the table."""
    if len(argv) != 3:
        raise app.UsageError("two result files should be given")
    try:
        before, after = (
            [r for r in records.read(path) if _IMPL.value in (None, r.impl)] for path in argv[1:]
        )
    except (OSError, ValueError) as error:
        raise app.UsageError(str(error)) from None
    found = compare(before, after, ratios=_RATIOS.value)
    print(table(found))
    only = [len(latest(x).keys() - latest(y).keys()) for x, y in ((before, after), (after, before))]
    if any(only):
        print(f"only in the first: {only[0]}, only in the second: {only[1]}")
    limit = 1 / (1 + _FAIL_OVER.value / 100)
    sys.exit(1 if any(c.speedup < limit for c in found) else 0)


if __name__ == "__main__":
    app.run(main)
