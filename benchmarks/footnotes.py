"""What stands under a table: what came out as a whole, and what its numbers depend on."""

import collections
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence

from benchmarks import manifest, measured
from benchmarks.measured import Results
from benchmarks.records import Record
from jaxgemm import registry

# What a cell says where there is no time: the implementation cannot express or run the row.
CANNOT = "n/a"
Rows = Mapping[str, Sequence[Record]]


def of_products(suite: str, rows: Rows, cells: Iterable[str], found: Results) -> str:
    """Two paragraphs under a table of products: the outcome, then the conditions.

    Args:
      suite: that the table shows.
      rows: row → its records.
      cells: every cell of the table, to explain those without a time.
      found: where the records are from.
    """
    outcome = [_count(suite, rows), *_ratios(rows), *_empty(set(cells)), *_left_out(suite, found)]
    later = found.of_suite(suite, "sustained")
    every = [record for some in rows.values() for record in some]
    every += [record for name in rows for record in later.get(name, ())]
    return f"{' '.join(outcome)}\n\n{conditions(every)}"


def _count(suite: str, rows: Rows) -> str:
    listed = [row.name for row in manifest.rows() if suite in row.suites.split()]
    verdicts = collections.Counter(measured.verdict(r) for r in _ours(rows))
    count = f"{len(rows)} of {len(listed)} rows" if listed else f"{len(rows)} rows"
    told = ", ".join(f"{verdicts[name]} {name}" for name in ("faster", "tied", "slower"))
    return f"{count} of this suite, against the baseline {told}."


def _ratios(rows: Rows) -> list[str]:
    """The mean and the least ratio to the baseline, and to the fastest of all others."""
    own = ("jaxgemm", *(kernel.name for kernel in registry.kernels()))
    baseline = {r.row: r.ratio for r in _ours(rows) if r.ratio}
    fastest = {}
    for name, some in rows.items():
        ours = measured.ours(some)
        others = [r for r in some if r.impl not in own and r.median_us]
        several = len({measured.family_of(r.impl) for r in others}) > 1
        if several and ours is not None and ours.median_us:
            fastest[name] = min(r.median_us or 0.0 for r in others) / ours.median_us
    against = {"the baseline": baseline, "the fastest of several others": fastest}
    return [
        f"Speed-up over {what}, {_plural(len(ratios), 'row')}: geometric mean"
        f" {_mean(ratios.values()):.2f}×, least {min(ratios.values()):.2f}×"
        f" (`{min(ratios, key=ratios.__getitem__)}`)."
        for what, ratios in against.items()
        if ratios
    ]


def _empty(cells: set[str]) -> list[str]:
    meanings = {
        CANNOT: "the implementation cannot express or run the row",
        "wrong": "its answer does not pass the check",
        "failed": "it raised an error",
        "": "the run that measured the row left it out",
    }
    told = [f"{cell or 'empty'}, {what}" for cell, what in meanings.items() if cell in cells]
    return [f"Cells without a time: {'; '.join(told)}."] if told else []


def _left_out(suite: str, found: Results) -> list[str]:
    """Rows that have no line because jaxgemm gave no time."""
    rows = found.of_suite(suite)
    reasons = {
        r.row: f"`{r.row}` ({r.status}: {r.reason})"
        for r in found.refused
        if r.impl == "jaxgemm" and r.mode in {x.mode for x in rows.get(r.row, ())}
    }
    return [f"No time of jaxgemm: {'; '.join(reasons.values())}."] if reasons else []


def spread(found: Results) -> str | None:
    """How well another run of the same commit gave the same ratios; None where there is none.

    XLA times kernels whenever it compiles and may take another one, which is no error of the clock:
    such ratios are told apart.
    """
    ours = [(x, y) for x, y in found.repeated if x.impl == "jaxgemm" and x.ratio and y.ratio]
    kept = [(x, y) for x, y in ours if x.config == y.config]
    others = {
        (x.row, x.mode, x.regime)
        for x, y in found.repeated
        if x.is_baseline and x.kernels != y.kernels
    }
    same = [(x, y) for x, y in kept if (x.row, x.mode, x.regime) not in others]
    sentences = []
    if same:
        sentences.append(
            f"Another run of the same commit gave {len(same)} ratios of jaxgemm to its baseline"
            f" again, with the same config and kernels: they differ by {_differences(same)}."
        )
    if changed := [pair for pair in kept if pair not in same]:
        sentences.append(
            f"{len(changed)} more, for which XLA took another kernel as the baseline, differ by"
            f" {_differences(changed)}."
        )
    if left := len(ours) - len(kept):
        sentences.append(
            f"{left} more are left out, because that run chose another config for them."
        )
    return " ".join(sentences) or None


def _differences(pairs: Sequence[tuple[Record, Record]]) -> str:
    """By how much the ratios of two runs differ."""
    found = [(abs(math.log((x.ratio or 1) / (y.ratio or 1))), x.row) for x, y in pairs]
    most, row = max(found)
    middle, largest = map(math.expm1, (statistics.median(x for x, _ in found), most))
    return f"{100 * middle:.1f} % in the median and by {100 * largest:.1f} % at most (`{row}`)"


def conditions(every: Sequence[Record]) -> str:
    """Where, with what and how: everything that the numbers depend on, from the records."""
    how = (
        "sums of the times of all kernels of a call (CUPTI)"
        if {r.clock for r in every} == {"cupti"}
        else "wall clock of a call, dispatch included"
    )
    drawn = each("uniform" if r.inputs.startswith("uniform") else "normal" for r in every)
    alone = [f"`{r.impl}` of `{r.row}`" for r in every if r.alternated is False]
    but = f" but for {', '.join(alone)}" if alone else ""
    sentences = [
        f"Median of {_span([r.samples for r in every], 'calls')}, {how}; operands are random"
        f" ({drawn}) and rotate through more than twice the last-level cache; launches alternate"
        f" with those of the baseline{but}.",
        f"The baseline is {each(r.baseline or '' for r in every)} under jit; μs of others with"
        " several forms are those of the fastest; a difference under 2 %, or with 1 in its"
        " interval, is a tie.",
        *_clocks(every),
        _place(every),
    ]
    commands = "\n".join(f"`{c}`" for c in dict.fromkeys(r.command for r in every))
    return " ".join(sentences) + f" Made by\n{commands}\nand `python -m benchmarks.report`."


def _clocks(every: Sequence[Record]) -> list[str]:
    """Names the times of which the wall clock says something else."""
    checked = [r for r in every if r.clocks_agree is not None]
    if not checked:
        return []
    apart = [f"`{r.impl}` of `{r.row}`" for r in checked if r.clocks_agree is False]
    return [
        f"Of {len(checked)} of {len(every)} medians kernel times were held against the wall clock;"
        f" more than 5 % apart: {len(apart) or 'none'}{f' ({", ".join(apart)})' if apart else ''}."
    ]


def _place(every: Sequence[Record]) -> str:
    """Device and its state, versions, commits and dates."""
    state = ", ".join(
        x
        for x in (
            _span([r.sm_mhz for r in every], "MHz"),
            _span([r.power_w for r in every], "W"),
            each(reason for r in every for reason in r.throttle),
        )
        if x
    )
    place = each(r.device for r in every)
    driver = each(r.driver or "" for r in every)
    known = ("jax", "torch", "tables")
    versions = each(f"{k} {v}" for r in every for k, v in r.versions.items() if k in known)
    days = each(r.time[:10] for r in every)
    return (
        f"{place}{f', driver {driver}' if driver else ''}{f'; {state}' if state else ''}."
        f" {versions}; {_commits(every)}; {days}."
    )


def _commits(every: Sequence[Record]) -> str:
    """The commits; of several each with how many rows are from it."""
    names = measured.commits(every)
    if len(names) == 1:
        return f"commit {names[0]}"
    rows = {name: {r.row for r in every if measured.short_commit(r) == name} for name in names}
    return "commits " + ", ".join(f"{name} ({_plural(len(rows[name]), 'row')})" for name in names)


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" + ("" if count == 1 else "s")


def origin(some: Sequence[Record]) -> str:
    """Device, commits and commands, for a table whose numbers are no medians of one protocol."""
    commit = ", ".join(measured.commits(some))
    commands = each(f"`{r.command}`" for r in some)
    return f"{each(r.device for r in some)}; commit {commit}. Made by {commands}."


def each(values: Iterable[str]) -> str:
    """What there is, once."""
    return ", ".join(dict.fromkeys(x for x in values if x))


def _ours(rows: Rows) -> list[Record]:
    """The records of jaxgemm that are held against something else."""
    return [r for r in map(measured.ours, rows.values()) if r is not None and not r.is_baseline]


def _mean(ratios: Iterable[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, ratios)))


def _span(values: Sequence[float | None], unit: str) -> str:
    known = [x for x in values if x is not None]
    if not known:
        return ""
    low, high = round(min(known)), round(max(known))
    return f"{low} {unit}" if low == high else f"{low} to {high} {unit}"
