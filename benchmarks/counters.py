"""Reads hardware counters of jaxgemm's kernels with ncu, next to the bytes that the model predicts.

    python -m benchmarks.counters --suite=readme --out=counters.jsonl

Each row runs in a process of its own under ncu, which profiles one call and leaves the clocks as
they are. Counters need a machine on which ncu is installed and may read them.
"""

import dataclasses
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from absl import app

import jaxgemm
from benchmarks import cases, command, fields, gemm, manifest, ncu, records
from benchmarks.records import Record
from benchmarks.runner import blank
from jaxgemm import dispatch
from jaxgemm.tuning import text, timing


def _profiled(row: manifest.Row) -> Iterator[Record]:
    empty = blank(row, row.mode or "forward", "burst", command.tags())
    try:
        case = cases.of(row)
        counted = ncu.counted("benchmarks.counters", row.name)
        yield dataclasses.replace(empty, status="counted", **counted, **_predicted(case))
    except cases.Unsupported as reason:
        yield dataclasses.replace(empty, status="unsupported", reason=str(reason))
    except Exception as error:
        yield records.failed(empty, error)


def _predicted(case: cases.Case) -> dict[str, Any]:
    """What must be moved, and what the chosen tiles ask of L2 by the cost model."""
    rows = jaxgemm.explain(cases.call(case), case.avals("forward")).rows
    found: dict[str, Any] = {"predicted_dram_bytes": case.total_bytes("forward")}
    if rows and isinstance(rows[0].plan, dispatch.Plan):
        estimate = rows[0].plan.choices[0].estimate
        found |= {
            "predicted_l2_bytes": estimate.l2_bytes + case.problem.bytes_of("d"),
            "config": f"{rows[0].kernel} {text.short(rows[0].plan.choices[0].config)}",
            "waves": fields.significant(estimate.waves, 4),
            "tail_utilisation": fields.significant(estimate.tail_utilisation, 4),
        }
    return found


def main(argv: Sequence[str]) -> None:
    """Profiles the rows of the flags of `benchmarks.gemm`, which see."""
    if len(argv) > 1:
        raise app.UsageError(f"{argv[1:]} should be flags")
    try:
        rows = gemm.rows()
    except ValueError as error:
        raise app.UsageError(str(error)) from None
    if ncu.child() is not None:
        case = cases.of(next(row for row in rows if row.name == ncu.child()))
        sets = case.inputs("forward")
        ncu.look_at(timing.compile_for(cases.call(case), sets[0]), sets)
        return
    if reason := ncu.why_not():
        raise app.UsageError(reason)
    profiled = ((row.name, _profiled(row)) for row in rows)
    sys.exit(command.collect([row.name for row in rows], profiled))


if __name__ == "__main__":
    app.run(main)
