"""Tables in Markdown, written between markers of a document and nowhere else."""

import re
from collections.abc import Callable, Sequence

from benchmarks import (
    bounds,
    captured,
    footnotes,
    ladder_tables,
    loads,
    markdown,
    measured,
    untuned,
)
from benchmarks.measured import Results
from benchmarks.records import Record

_BLOCK = re.compile(
    r"(<!-- (?P<kind>table|picture):(?P<name>[\w-]+) -->\n).*?(?P<end><!-- end -->)", re.DOTALL
)
_OTHERS = (
    *("jnp.dot", "lax.ragged_dot", "best of XLA", "best of cuBLASLt"),
    *("Pallas in JAX", "torch"),
)
# Columns of a table of products: our time, and the first time of others.
_FIRST_NUMBER, _FIRST_TIME = 3, 5
_LADDER = {
    "ladder": ladder_tables.climb,
    "ladder_bytes": ladder_tables.moved,
    "ladder_roofs": ladder_tables.roofs,
    "ladder_stages": ladder_tables.stages,
}


def fill(text: str, content: Callable[[str, str], str | None]) -> str:
    """The text with what `content` gives for the kind and name of each marker; None leaves it."""

    def replaced(match: re.Match[str]) -> str:
        body = content(match["kind"], match["name"])
        return match[0] if body is None else f"{match[1]}\n{body}\n\n{match['end']}"

    return _BLOCK.sub(replaced, text)


def device_of(name: str, devices: Sequence[Results]) -> tuple[str, Results | None]:
    """The first part of a marker such as "dense-h200", and the results of the device it names."""
    first, _, device = name.rpartition("-")
    return first, next((d for d in devices if d.name.split("_")[-1] == device), None)


def of_marker(name: str, devices: Sequence[Results]) -> str | None:
    """The table that a marker such as "dense-h200" asks for; None if nothing is measured."""
    suite, found = device_of(name, devices)
    if found is None:
        return None
    if suite == "first_use":
        return _first_use([r for r in found.found if r.suite == suite])
    if suite == "spread":
        return footnotes.spread(found)
    if suite == "captured":
        return captured.table(found)
    if suite == "bounds":
        return bounds.table(found)
    if suite == "untuned":
        return untuned.table(found.tried, found.name)
    if suite == "loads":
        return loads.table(found.loads)
    if suite in _LADDER:
        body = _LADDER[suite](found)
        # Once a document is enough.
        if body is None or suite != "ladder":
            return body
        return f"{body}\n\n{footnotes.conditions(ladder_tables.measured(found))}"
    rows = {name: some for name, some in found.of_suite(suite).items() if measured.ours(some)}
    if not rows:
        return None
    lines = _lines(rows, found)
    sustained = _sustained(rows, found.of_suite(suite, "sustained"))
    joined = [[*line, *more] for line, more in zip(lines, sustained, strict=True)]
    cells = (cell for line in lines[2:] for cell in line[_FIRST_TIME:-2])
    return f"{markdown.table(joined)}\n\n{footnotes.of_products(suite, rows, cells, found)}"


def _lines(rows: dict[str, list[Record]], found: Results) -> list[list[str]]:
    """Head, alignment and a line for each row: our time, those of others, the ratio."""
    every = [record for some in rows.values() for record in some]
    others = [name for name in _OTHERS if any(measured.family_of(r.impl) == name for r in every)]
    head = ["row", "m×n×k", "", "jaxgemm μs", "TFLOP/s", *(f"{name} μs" for name in others)]
    head += ["faster than the baseline", "95 %"]
    lines = [head, ["---"] * _FIRST_NUMBER + ["--:"] * (len(head) - _FIRST_NUMBER)]
    for name, some in rows.items():
        record = measured.ours(some)
        assert record is not None
        cells = [f"`{name}`", record.size, measured.what(record), markdown.us(record)]
        cells += [markdown.three_digits(record.tflops)]
        cells += [_time_of(other, record, some, found) for other in others]
        lines.append([*cells, _ratio(record), _interval(record)])
    return lines


def _time_of(family: str, ours: Record, some: Sequence[Record], found: Results) -> str:
    """The time of the baseline or else the fastest of a family, or why there is none."""
    baseline = next((r for r in some if r.impl == ours.baseline), None)
    if baseline is not None and measured.family_of(baseline.impl) == family:
        return markdown.us(baseline)
    fastest = measured.fastest(some, family)
    if fastest is not None:
        return markdown.us(fastest)
    statuses = {
        r.status
        for r in found.refused
        if (r.row, r.mode, measured.run_of(r)) == (ours.row, ours.mode, measured.run_of(ours))
        and measured.family_of(r.impl) == family
    }
    if told := statuses & {"wrong", "failed"}:
        return min(told)
    tried = family in found.families_of_run[measured.run_of(ours)]
    return footnotes.CANNOT if statuses or tried else ""


def _sustained(rows: dict[str, list[Record]], later: dict[str, list[Record]]) -> list[list[str]]:
    """The columns of the sustained regime, one list a line; empty lists where there is none."""
    found = [measured.ours(later.get(name, ())) for name in rows]
    if not any(found):
        return [[] for _ in range(len(rows) + 2)]
    lines = [["sustained TFLOP/s", "sustained"], ["--:", "--:"]]
    lines += [[markdown.three_digits(r.tflops), _ratio(r)] if r else ["", ""] for r in found]
    return lines


def _first_use(some: Sequence[Record]) -> str | None:
    """What a user waits for once."""
    if not some:
        return None
    lines = [["", "", "seconds"], ["---", "---", "--:"]]
    for record in some:
        seconds = 1e-6 * (record.median_us or 0.0)
        lines.append(
            [record.row, record.config, f"{seconds:.3f}" if seconds < 1 else f"{seconds:.1f}"]
        )
    return f"{markdown.table(lines)}\n\nMedians. {footnotes.origin(some)}"


def _ratio(record: Record) -> str:
    if record.ratio is None:
        return ""
    tie = " (tie)" if measured.verdict(record) == "tied" else ""
    return f"{record.ratio:.2f}×{tie}"


def _interval(record: Record) -> str:
    if record.ratio_low is None or record.ratio_high is None:
        return ""
    return f"{record.ratio_low:.2f} to {record.ratio_high:.2f}"
