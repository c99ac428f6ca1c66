"""The tables of docs/ladder.md: every rung at its fastest, its bytes, the roofs, the stages."""

from benchmarks import bounds, markdown, rungs
from benchmarks.measured import SHORT, Results
from benchmarks.records import Record

_STAGED = "cuda.mma_sync"
# Shared memory that CUDA keeps of every CTA for itself, which ncu counts too.
_DRIVER_BYTES = 1024
# Those that say how near a unit came to what it can do.
_LIMITS = ("SM", "L1", "L2", "DRAM")


def measured(found: Results) -> list[Record]:
    """The times of the ladder at the size that was measured last."""
    some = [r for r in found.found if r.suite == "ladder" and r.regime == "burst"]
    size = max(some, key=lambda r: r.time).m if some else None
    return [r for r in some if r.m == size]


def counters(found: Results, record: Record) -> Record | None:
    """The counters of what a record timed."""
    same = (r for r in found.counted if (r.row, r.impl) == (record.row, record.impl))
    return next(same, None)


def climb(found: Results) -> str | None:
    """A line for each rung and reference, and the picture; None where nothing is measured."""
    some = measured(found)
    if not some:
        return None
    head = ["", "dtype", "form", "μs", "TFLOP/s", "of jnp.dot", "registers", "shared memory, KiB"]
    lines = [head, ["---", "---", "---", *["--:"] * 5]]
    for record in rungs.fastest(some):
        share = "" if record.ratio is None else f"{100 * record.ratio:.3g} %"
        cells = [_name(record), SHORT[record.a_dtype], _form(record), markdown.us(record)]
        cells += [markdown.three_digits(record.tflops), share]
        lines.append([*cells, *_resources(record, counters(found, record))])
    size = some[0].m
    what = f"TFLOP/s of each rung against flops a byte, {size} × {size} × {size}"
    return f"{markdown.table(lines)}\n\n![{what}](pictures/{found.name}_ladder.png)"


def moved(found: Results) -> str | None:
    """Bytes by formula and by counter, and how busy each unit was; None without counters."""
    counted = [(r, counters(found, r)) for r in rungs.fastest(measured(found))]
    known = [(record, counts) for record, counts in counted if counts is not None]
    if not known:
        return None
    units = {
        name: field
        for name, field in bounds.UNITS.items()
        if any(getattr(counts, field) is not None for _, counts in known)
    }
    head = ["", "dtype", *(f"{what}, GB" for what in ("asked for", "L2", "at least", "DRAM"))]
    head += [f"{name}, %" for name in units]
    lines = [head, ["---", "---", *["--:"] * (len(head) - 2)]]
    for record, counts in known:
        amounts = (
            *(record.predicted_l2_bytes, counts.l2_bytes),
            *(counts.predicted_dram_bytes, counts.dram_bytes),
        )
        cells = [_name(record), SHORT[record.a_dtype]]
        cells += [markdown.three_digits(x and x / 1e9) for x in amounts]
        lines.append([*cells, *_shares(counts, units)])
    return markdown.table(lines)


def _shares(counts: Record, units: dict[str, str]) -> list[str]:
    """How busy each unit was; in bold the one that came nearest to its limit."""
    shares = {name: getattr(counts, field) for name, field in units.items()}
    nearest = max((shares[name] or 0.0 for name in _LIMITS if name in shares), default=0.0)
    cells = {name: "" if share is None else f"{share:.0f}" for name, share in shares.items()}
    return [
        f"**{text}**" if name in _LIMITS and text and shares[name] == nearest else text
        for name, text in cells.items()
    ]


def roofs(found: Results) -> str | None:
    """The fastest product in each dtype of the ladder, and what DRAM must feed it with."""
    peaks: dict[str, float] = {}
    for record in rungs.fastest(measured(found)):
        peaks[record.a_dtype] = max(record.tflops or 0.0, peaks.get(record.a_dtype, 0.0))
    bandwidth = found.bandwidth_gbps()
    if not peaks or bandwidth is None:
        return None
    head = ["dtype", "fastest product, TFLOP/s", "DRAM, TB/s", "flops a byte at which both bind"]
    lines = [head, ["---", *["--:"] * 3]]
    for dtype, peak in peaks.items():
        numbers = peak, bandwidth / 1e3, 1e3 * peak / bandwidth
        lines.append([SHORT[dtype], *map(markdown.three_digits, numbers)])
    return markdown.table(lines)


def stages(found: Results) -> str | None:
    """A line for each depth of the pipeline of `cuda.mma_sync`, with the same tile."""
    forms = [(rungs.instance_of(r), r) for r in measured(found)]
    depths = {
        form.stages: (form, record)
        for form, record in forms
        if form is not None and form.kernel == _STAGED and form.cta_tile[:2] == (128, 128)
    }
    if not depths:
        return None
    first = depths[min(depths)][1]
    lines = [["stages", "μs", "TFLOP/s", "of one stage", "shared memory, KiB"], ["--:"] * 5]
    for depth, (form, record) in sorted(depths.items()):
        gain = f"{(first.median_us or 0.0) / (record.median_us or 1.0):.2f}×"
        cells = [str(depth), markdown.us(record), markdown.three_digits(record.tflops), gain]
        lines.append([*cells, f"{form.smem_bytes / 1024:.0f}"])
    return markdown.table(lines)


def _name(record: Record) -> str:
    return f"`{rungs.name_of(record)}`"


def _form(record: Record) -> str:
    """Tile and stages of ours; of others the kernel that ran."""
    form = rungs.instance_of(record)
    if form is None:
        kernel = record.kernels[0] if record.kernels else ""
        return f"`{kernel[:28]}…`" if len(kernel) > 29 else f"`{kernel}`" if kernel else ""
    tile = "×".join(map(str, form.cta_tile))
    tile += f", {form.stages} stages" if form.stages > 1 else ""
    along = next((side for side, size in zip("mn", form.cluster, strict=True) if size > 1), None)
    return tile + (f", pairs along {along}" if along else "")


def _resources(record: Record, counted: Record | None) -> tuple[str, str]:
    """Registers of a thread and shared memory of a CTA: by ncu, or as far as they are known."""
    form = rungs.instance_of(record)
    registers = (counted and counted.registers) or record.registers or ""
    smem_bytes = record.smem_bytes
    if form is not None:
        registers, smem_bytes = registers or f"≤ {form.max_registers}", form.smem_bytes
    elif smem_bytes is None and counted is not None and counted.smem_bytes is not None:
        smem_bytes = counted.smem_bytes - _DRIVER_BYTES
    return str(registers), "" if smem_bytes is None else f"{smem_bytes / 1024:.0f}"
