"""Short calls in a captured graph, as a table: `benchmarks.gemm --graphs` times them.

A sum of kernel times leaves out the gaps between kernels and counts twice what kernels do at the
same time, as where a product is launched while the copies before it still run. Of a short call both
are a large part. The time of many calls in one graph, by the device's own clock, has neither fault.
"""

from benchmarks import footnotes, markdown, measured
from benchmarks.measured import Results
from benchmarks.records import Record
from jaxgemm.tuning.graphs import GAPS_COUNT


def table(found: Results) -> str | None:
    """A line for each row of which our call and the baseline's were captured; None without any."""
    lines = [["row", "m×n×k", "", "jaxgemm μs", "baseline μs", "", "faster", "by sums of kernels"]]
    lines.append([*["---"] * 3, *["--:"] * 2, "---", *["--:"] * 2])
    shown: list[Record] = []
    calls = {(r.row, r.mode, r.impl): r for r in found.found if _is_captured(r)}
    for (row, mode, impl), ours in calls.items():
        baseline = calls.get((row, mode, ours.baseline or ""))
        if impl == "jaxgemm" and ours.clocks_agree is None and baseline is not None:
            lines.append([f"`{row}`", ours.size, measured.what(ours), *_times(ours, baseline)])
            shown += [ours, baseline]
    if not shown:
        return None
    return f"{markdown.table(lines)}\n\n{footnotes.origin(shown)}"


def _is_captured(record: Record) -> bool:
    """Whether the wall clock of its graph is that of the device, and the right one."""
    is_right = record.clocks_agree or (record.clocks_agree is None and GAPS_COUNT in record.reason)
    return record.regime == "burst" and record.check == "graph" and bool(is_right)


def _times(ours: Record, baseline: Record) -> list[str]:
    assert ours.graph_us is not None
    assert baseline.graph_us is not None
    ratio = baseline.graph_us / ours.graph_us
    sums = f"{ours.ratio:.2f}×" if ours.ratio else ""
    return [
        *(f"{ours.graph_us:.1f}", f"{baseline.graph_us:.1f}", baseline.impl),
        *(f"{ratio:.2f}×", sums),
    ]
