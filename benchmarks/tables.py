"""Tables in Markdown, written between markers of a document and nowhere else."""

import math
import re
import statistics
from collections.abc import Callable, Sequence

from benchmarks import ladder_tables, manifest, markdown, measured
from benchmarks.measured import SHORT, Results
from benchmarks.records import Record
from jaxgemm.tuning.times import TIE

_BLOCK = re.compile(r"(<!-- table:(?P<name>[\w-]+) -->\n)(?P<body>.*?)(<!-- end -->)", re.DOTALL)
_OTHERS = (
    *("jnp.dot", "lax.ragged_dot", "best of XLA", "best of cuBLASLt"),
    *("Pallas in JAX", "torch"),
)
# A marker names a suite and a device; this one is what the README shows.
_SUITES = {"dense": "readme"}
_LADDER = {
    "ladder": ladder_tables.climb,
    "ladder_bytes": ladder_tables.moved,
    "ladder_stages": ladder_tables.stages,
}


def fill(text: str, table: Callable[[str], str | None]) -> str:
    """The text with what `table` gives for the name of each marker; None leaves it as it is."""

    def replaced(match: re.Match[str]) -> str:
        body = table(match["name"])
        return match[0] if body is None else f"{match[1]}\n{body}\n\n{match[4]}"

    return _BLOCK.sub(replaced, text)


def of_marker(name: str, devices: Sequence[Results]) -> str | None:
    """The table that a marker such as "dense-h200" asks for; None if nothing is measured."""
    suite, _, device = name.rpartition("-")
    found = next((d for d in devices if d.name.split("_")[-1] == device), None)
    if found is None:
        return None
    if suite == "first_use":
        return _first_use([r for r in found.found if r.suite == suite])
    if suite in _LADDER:
        body = _LADDER[suite](found)
        # Once a document is enough.
        if body is None or suite != "ladder":
            return body
        return f"{body}\n\n{_footnote({'': ladder_tables.measured(found)})}"
    suite = _SUITES.get(suite, suite)
    if not (rows := found.of_suite(suite)):
        return None
    rows = {name: some for name, some in rows.items() if measured.ours(some)}
    table = _table(rows, found.of_suite(suite, "sustained"))
    return f"{table}\n\n{_footnote(rows, _spread(rows, found))}"


def _table(rows: dict[str, list[Record]], sustained: dict[str, list[Record]]) -> str:
    every = [record for some in rows.values() for record in some]
    others = [name for name in _OTHERS if any(measured.family_of(r.impl) == name for r in every)]
    head = ["m×n×k", "", "jaxgemm μs", "TFLOP/s", *(f"{name} μs" for name in others)]
    head += ["faster than the baseline", "95 %"]
    head += ["sustained TFLOP/s", "sustained"] if sustained else []
    listed = {row.name for row in manifest.rows()}
    lines = [head, ["---", "---", *["--:"] * (len(head) - 2)]]
    for name, some in rows.items():
        record = measured.ours(some)
        assert record is not None
        rate = f"{record.tflops:.3g}"
        cells = [record.size, _what(record), markdown.us(record), rate]
        if name not in listed:
            cells = [name.replace("_", " "), "", markdown.us(record), ""]
        cells += [markdown.us(measured.fastest(some, other)) for other in others]
        cells += [_ratio(record), _interval(record)]
        if sustained:
            later = measured.ours(sustained.get(name, ()))
            cells += [f"{later.tflops:.3g}", _ratio(later)] if later else ["", ""]
        lines.append(cells)
    return markdown.table(lines)


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
    place, commit = (_each([getattr(r, x) for r in some]) for x in ("device", "commit"))
    commands = _each([f"`{r.command}`" for r in some])
    return f"{markdown.table(lines)}\n\nMedians. {place}; commit {commit}. Made by {commands}."


def _what(record: Record) -> str:
    kinds = SHORT.get(record.a_dtype, record.a_dtype)
    if record.out_dtype != record.a_dtype:
        kinds += f"→{SHORT.get(record.out_dtype, record.out_dtype)}"
    parts = [record.layout, kinds]
    parts += [] if record.epilogue == "none" else [record.epilogue.replace("+", " + ")]
    modes = {"vjp": "gradients", "forward_and_vjp": "with gradients"}
    return ", ".join([*parts, *([modes[record.mode]] if record.mode in modes else [])])


def _ratio(record: Record) -> str:
    if record.ratio is None:
        return ""
    tie = " (tie)" if abs(record.ratio - 1) < TIE else ""
    return f"{record.ratio:.2f}×{tie}"


def _interval(record: Record) -> str:
    if record.ratio_low is None or record.ratio_high is None:
        return ""
    return f"{record.ratio_low:.2f} to {record.ratio_high:.2f}"


def _span(values: Sequence[float | None], unit: str) -> str:
    known = [x for x in values if x is not None]
    if not known:
        return ""
    low, high = round(min(known)), round(max(known))
    return f"{low} {unit}" if low == high else f"{low} to {high} {unit}"


def _each(values: Sequence[str]) -> str:
    return ", ".join(dict.fromkeys(x for x in values if x))


def _spread(rows: dict[str, list[Record]], found: Results) -> str:
    """How well another run of the same commit gave the same ratios; "" where there is none."""
    spread = [
        abs(math.log(after.ratio / before.ratio))
        for after, before in found.repeated
        if after.row in rows and after.impl == "jaxgemm" and after.ratio and before.ratio
    ]
    if not spread:
        return ""
    middle, largest = (math.expm1(x) for x in (statistics.median(spread), max(spread)))
    return (
        f"Another run of the same commit gave {len(spread)} of these ratios again: they differ by"
        f" {middle:.1%} in the median and by {largest:.1%} at most."
    )


def _footnote(rows: dict[str, list[Record]], spread: str = "") -> str:
    """Where, with what and how: everything that the numbers depend on, from the records."""
    every = [record for some in rows.values() for record in some]
    clocks = {r.clock for r in every}
    how = (
        "sums of the times of all kernels of a call (CUPTI)"
        if clocks == {"cupti"}
        else "wall clock of a call, dispatch included"
    )
    versions = _each(
        [f"{k} {v}" for r in every for k, v in r.versions.items() if k in ("jax", "torch")]
    )
    state = ", ".join(
        x
        for x in (
            _span([r.sm_mhz for r in every], "MHz"),
            _span([r.power_w for r in every], "W"),
            _each([reason for r in every for reason in r.throttle]),
        )
        if x
    )
    place = _each([r.device for r in every])
    driver = _each([r.driver or "" for r in every])
    sentences = [
        f"Median of {_span([r.samples for r in every], 'calls')}, {how}; operands are random"
        " (normal) and rotate through more than twice the last-level cache; launches alternate"
        " with those of the baseline.",
        f"The baseline is {_each([r.baseline or '' for r in every])} under jit; μs of several"
        " forms are those of the fastest; a difference under 2 % is a tie.",
        f"{place}{f', driver {driver}' if driver else ''}{f'; {state}' if state else ''}.",
        f"{versions}; commit {_each([r.commit for r in every])};"
        f" {_each([r.time[:10] for r in every])}.",
    ]
    sentences[2:2] = [spread] if spread else []
    commands = "\n".join(f"`{c}`" for c in dict.fromkeys(r.command for r in every))
    return " ".join(sentences) + f" Made by\n{commands}\nand `python -m benchmarks.report`."
