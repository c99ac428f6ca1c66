"""Numbers and tables as text in Markdown."""

from collections.abc import Sequence

from benchmarks.records import Record


def table(lines: Sequence[Sequence[str]]) -> str:
    """Lines of cells; the first is the head, the second says how columns are aligned."""
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def us(record: Record | None) -> str:
    """The median in microseconds, "" where there is none."""
    if record is None or record.median_us is None:
        return ""
    return f"{record.median_us:.1f}" if record.median_us < 1000 else f"{record.median_us:.0f}"


def three_digits(x: float | None) -> str:
    """Three significant digits, without an exponent; "" for None."""
    if x is None:
        return ""
    return f"{x:.3g}" if abs(x) < 1000 else f"{x:.0f}"
