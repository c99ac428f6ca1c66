"""What binds: hardware counters of single products as a table, from `benchmarks.counters`."""

from benchmarks import footnotes, markdown, measured
from benchmarks.measured import Results

# Column → the counter that it shows.
UNITS = {
    "warps": "occupancy_percent",
    "SM": "sm_percent",
    "Tensor Cores": "tensor_active_percent",
    "L1": "l1_percent",
    "L2": "l2_percent",
    "DRAM": "dram_percent",
}


def table(found: Results) -> str | None:
    """A line for each row with counters, but for those of the ladder; None without any."""
    counted = [r for r in found.counted if r.suite != "ladder"]
    if not counted:
        return None
    amounts = ("at least", "DRAM", "asked for", "L2")
    head = ["row", "m×n×k", "", "form", *(f"{what}, GB" for what in amounts)]
    head += ["waves", "last wave, %", "registers", *(f"{name}, %" for name in UNITS)]
    lines = [head, [*["---"] * 4, *["--:"] * (len(head) - 4)]]
    for record in counted:
        moved = (record.predicted_dram_bytes, record.dram_bytes)
        moved += (record.predicted_l2_bytes, record.l2_bytes)
        cells = [f"`{record.row}`", record.size, measured.what(record), record.config]
        cells += [markdown.three_digits(x and x / 1e9) for x in moved]
        tail = record.tail_utilisation
        cells += [markdown.three_digits(record.waves), "" if tail is None else f"{100 * tail:.0f}"]
        cells.append(str(record.registers or ""))
        shares = (getattr(record, field) for field in UNITS.values())
        lines.append([*cells, *("" if x is None else f"{x:.0f}" for x in shares)])
    return f"{markdown.table(lines)}\n\n{footnotes.origin(counted)}"
