"""Measures rows of equal m, n and k against one another, in one alternation: A B C C B A.

    python -m benchmarks.side_by_side --filter='^mlp_up(_bias_gelu|_residual|_f32out)?$'
    python -m benchmarks.side_by_side --filter='^sq_4096_bf16(_..)?$' --regime=both

A ratio is that of the first row's median to this one's: what an epilogue or a layout costs. The
first is the first that matches in the order of the manifest. Records have a row of their own, so
they never stand for those of `benchmarks.gemm`.
"""

import dataclasses
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import jax
from absl import app, flags

from benchmarks import cases, command, fields, implementations, records, runner
from benchmarks.cases import Case
from benchmarks.manifest import Row
from benchmarks.measured import BESIDE
from benchmarks.records import Record
from benchmarks.variants import Implementation, Variant
from jaxgemm.tuning import timing

_SUITE = flags.DEFINE_list("suite", ["all"], "suites of the manifest; default: all")

_MODE = "forward"


@dataclasses.dataclass(frozen=True)
class _Entry:
    """A row that is timed, with a record of what is known of it before."""

    case: Case
    variant: Variant
    arguments: list[Any]
    record: Record


def _admit(row: Row, implementation: Implementation, blank: Record) -> _Entry | Record:
    """What is timed of a row, or a record that says why it is not."""
    if row.mode not in ("", _MODE):
        reason = f"only a {_MODE} pass is measured beside others"
        return dataclasses.replace(blank, status="unsupported", reason=reason)
    try:
        case = cases.of(row)
        if reason := implementation.why_not(case, _MODE):
            return dataclasses.replace(blank, status="unsupported", reason=reason)
        sets = case.inputs(_MODE)
        variant = next(implementation.variants(case, _MODE, sets[0]), None)
        if variant is None:
            return dataclasses.replace(blank, status="unsupported", reason=runner.NO_CONFIG)
        arguments = [variant.prepare(x) for x in sets]
        result, judge = variant.outputs(variant.finished(arguments[0])), runner.Judge(case, sets[0])
        error = judge.error(result, stepwise=implementation.stepwise)
        strict = judge.error(result, stepwise=False)
    except cases.Unsupported as reason:
        return dataclasses.replace(blank, status="unsupported", reason=str(reason))
    except Exception as error:  # reported, and the next one goes on
        return records.failed(blank, error)
    if not error <= 1:
        return runner.wrong_record(blank, variant, strict)
    known = {"max_error_ratio": fields.significant(strict, 4), **runner.described(case, sets)}
    return _Entry(case, variant, arguments, dataclasses.replace(blank, **known))


def _timed(
    entries: dict[str, _Entry], first: str, regime: timing.Regime
) -> Iterator[tuple[str, Record]]:
    """Each row with its record in a regime."""
    blanks = {name: dataclasses.replace(x.record, regime=regime) for name, x in entries.items()}
    try:
        times = timing.measure(
            {name: entry.variant.call for name, entry in entries.items()},
            {name: entry.arguments for name, entry in entries.items()},
            regime=regime,
            iterations=command.iterations(),
            waits={name: x.variant.wait for name, x in entries.items() if x.variant.wait},
        )
    except Exception as error:  # reported of each, beside those that were not admitted
        for name, blank in blanks.items():
            yield name, records.failed(blank, error)
        return
    for name, entry in entries.items():
        counts = entry.case.total_flops(_MODE), entry.case.total_bytes(_MODE)
        record = dataclasses.replace(
            blanks[name],
            baseline=first if first in times else None,
            **runner.facts(entry.variant, times[name].kernels),
            **fields.timed(times[name], times.get(first), *counts),
        )
        yield name, record


def measured(
    rows: Sequence[Row], implementation: Implementation
) -> Iterator[tuple[str, list[Record]]]:
    """Each row with its records: all are admitted first, then timed together."""
    first = rows[0].name
    regimes = command.regimes()
    blanks = {
        row.name: dataclasses.replace(
            runner.blank(row, _MODE, regimes[0], command.tags()),
            row=f"{row.name} beside {first}",
            suite=BESIDE,
            impl=implementation.name,
        )
        for row in rows
    }
    admitted = {}
    for row in rows:
        with jax.enable_x64(row.a_dtype == "float64"):
            admitted[row.name] = _admit(row, implementation, blanks[row.name])
    entries = {name: x for name, x in admitted.items() if isinstance(x, _Entry)}
    found = {name: [x] for name, x in admitted.items() if isinstance(x, Record)}
    for regime in regimes if entries else ():
        for name, record in _timed(entries, first, regime):
            found.setdefault(name, []).append(record)
    for row in rows:
        yield row.name, found[row.name]


def _chosen() -> tuple[tuple[Row, ...], Implementation]:
    """The rows and the implementation that the flags name.

    Raises:
      ValueError: there is not one implementation, rows have different sizes, or a mode or a flag
        is given that means nothing here.
    """
    if (mode := command.options().mode) != _MODE:
        raise ValueError(f"--mode: {mode!r} should be {_MODE!r}")
    if unused := command.present("graphs", "max_seconds", "max_variants"):
        raise ValueError(f"{' and '.join(unused)}: rows are measured together, each in one way")
    rows = command.select(_SUITE)
    named = implementations.select(list(command.options(backends=("jaxgemm",)).backends))
    if len(named) != 1:
        raise ValueError(f"--backends: {[x.name for x in named]} should be one implementation")
    if not rows:
        raise ValueError("--suite, --filter: no row matches")
    sizes = {row.name: (row.m, row.n, row.k, row.batch, row.groups) for row in rows}
    if different := [name for name, size in sizes.items() if size != sizes[rows[0].name]]:
        raise ValueError(f"--filter: {different} should have the sizes of {rows[0].name}")
    return rows, named[0]


def main(argv: Sequence[str]) -> None:
    """Measures what the flags say."""
    if len(argv) > 1:
        raise app.UsageError(f"{argv[1:]} should be flags")
    try:
        rows, implementation = _chosen()
    except ValueError as error:
        raise app.UsageError(str(error)) from None
    sys.exit(command.collect([row.name for row in rows], measured(rows, implementation)))


if __name__ == "__main__":
    app.run(main)
