"""The tables of docs/ladder.md: every rung at its fastest, its bytes, and the pipeline's stages."""

from benchmarks import markdown, rungs
from benchmarks.measured import SHORT, Results
from benchmarks.records import Record

_STAGED = "cuda.mma_sync"
# Counter → the unit that it tells of.
_UNITS = {
    "sm_percent": "instructions of the SM",
    "l1_percent": "L1 and shared memory",
    "l2_percent": "L2",
    "dram_percent": "DRAM",
}


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
    """Bytes by formula and by counter, and the busiest unit; None where nothing is counted."""
    head = ["", "dtype", "asked for, GB", "through L2, GB", "DRAM, GB", "busiest"]
    lines = [head, ["---", "---", "--:", "--:", "--:", "---"]]
    for record in rungs.fastest(measured(found)):
        counted = counters(found, record)
        if counted is None:
            continue
        amounts = record.predicted_l2_bytes, counted.l2_bytes, counted.dram_bytes
        cells = [_name(record), SHORT[record.a_dtype]]
        cells += [markdown.three_digits(x and x / 1e9) for x in amounts]
        lines.append([*cells, _busiest(counted)])
    return markdown.table(lines) if len(lines) > 2 else None


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
    seen = counted or record
    registers = "" if seen.registers is None else str(seen.registers)
    smem_bytes = seen.smem_bytes
    if form is not None:
        registers, smem_bytes = registers or f"≤ {form.max_registers}", form.smem_bytes
    return registers, "" if smem_bytes is None else f"{smem_bytes / 1024:.0f}"


def _busiest(counted: Record) -> str:
    """The unit that came nearest to what it can do."""
    shares = {unit: getattr(counted, field) for field, unit in _UNITS.items()}
    known = {unit: share for unit, share in shares.items() if share is not None}
    if not known:
        return ""
    unit = max(known, key=known.__getitem__)
    return f"{unit}, {known[unit]:.0f} %"
