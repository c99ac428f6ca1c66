"""Pictures of results: each function gives a figure, or None where nothing is measured."""

import collections
import math
from collections.abc import Callable
from typing import Any

from benchmarks import groups, measured, plotting, rooflines
from benchmarks.measured import APART, SHORT, Results
from benchmarks.records import Record
from jaxgemm.tuning.times import TIE

# From this ratio of the largest size to the smallest on, an axis is logarithmic.
_WIDE = 16
# Of ratios, by what they say.
_COLOURS = {"faster": "#0072B2", "tied": "#777777", "slower": "#D55E00"}


def speedup(found: Results) -> Any | None:
    """The ratio to the baseline with its interval, sorted within each family without groups."""
    return _speedup_figure(found, lambda r: not r.groups)


def speedup_grouped(found: Results) -> Any | None:
    """The same for grouped products, whose ratios are of another size."""
    return _speedup_figure(found, lambda r: r.groups > 0)


def _speedup_figure(found: Results, wanted: Callable[[Record], bool]) -> Any | None:
    families: dict[str, list[Record]] = collections.defaultdict(list)
    for r in found.found:
        shown = r.impl == "jaxgemm" and r.regime == "burst" and r.suite not in APART
        if shown and r.ratio and wanted(r):
            families[r.suite].append(r)
    if not families:
        return None
    columns = _columns(families)
    inches = [sum(0.15 * len(families[f]) + 0.45 for f in column) for column in columns]
    figure = plotting.pyplot().figure(
        figsize=(5.4 * len(columns), 0.9 + max(inches)), layout="constrained"
    )
    every = [r for some in families.values() for r in some]
    parts = figure.subfigures(1, len(columns), squeeze=False)[0]
    for column, part in zip(columns, parts, strict=True):
        heights = [len(families[f]) + 1.5 for f in column]
        grid = part.subplots(len(column), 1, sharex=True, squeeze=False, height_ratios=heights)
        for axes, family in zip(grid[:, 0], column, strict=True):
            _speedups(axes, family, sorted(families[family], key=lambda r: r.ratio or 0.0))
        _ratio_axis(grid[-1, 0], every)
    figure.suptitle("Speed-up over the baseline, 95 % interval", fontweight="bold", fontsize=11)
    label = f"time of the baseline / time of jaxgemm\n{plotting.origin(every)}"
    figure.supxlabel(label, fontsize=8.5)
    return figure


def _columns(families: dict[str, list[Record]]) -> list[list[str]]:
    """One column, or two of about the same height."""
    heights = {family: len(some) + 2 for family, some in families.items()}
    if sum(heights.values()) < 30:
        return [list(families)]
    columns: list[list[str]] = [[], []]
    for family in sorted(heights, key=heights.__getitem__, reverse=True):
        min(columns, key=lambda c: sum(heights[f] for f in c)).append(family)
    return [column for column in columns if column]


def _ratio_axis(axes: Any, every: list[Record]) -> None:
    known = [x for r in every for x in (r.ratio_low, r.ratio_high) if x]
    low, high = min(0.8, *known) / 1.05, max(1.25, *known) * 1.05
    axes.set_xscale("log")
    axes.set_xlim(low, high)
    choices = (
        0.05,
        0.1,
        0.2,
        0.3,
        0.4,
        0.5,
        0.7,
        0.8,
        0.9,
        1,
        1.1,
        1.25,
        1.5,
        2,
        3,
        5,
        10,
        20,
        50,
        100,
        200,
        500,
    )
    ticks = _thinned([t for t in choices if low <= t <= high])
    axes.set_xticks(ticks, [f"{t:g}×" for t in ticks], fontsize=8)
    axes.minorticks_off()


def _thinned(ticks: list[float]) -> list[float]:
    """Ticks far enough apart that their labels do not meet; 1 always stays."""
    span = math.log(max(ticks) / min(ticks)) or 1.0
    kept: list[float] = []
    for tick in sorted(ticks, key=lambda t: (t != 1, abs(math.log(t)))):
        if all(abs(math.log(tick / other)) > span / 7 for other in kept):
            kept.append(tick)
    return sorted(kept)


def _speedups(axes: Any, family: str, some: list[Record]) -> None:
    positions = range(len(some))
    axes.axvspan(1 - TIE, 1 + TIE, color="#EEEEEE")
    axes.axvline(1, color="black", linewidth=0.8)
    for position, r in zip(positions, some, strict=True):
        ratio = r.ratio or 1.0
        colour = _COLOURS[measured.verdict(r)]
        axes.plot([r.ratio_low, r.ratio_high], [position] * 2, color=colour, linewidth=1.4)
        axes.plot(ratio, position, "o", color=colour, markersize=4)
    modes = {"forward": "", "vjp": ", gradients", "forward_and_vjp": " + gradients"}
    labels = [r.row + modes[r.mode] for r in some]
    axes.set_yticks(positions, labels, fontsize=7.5)
    axes.set_ylim(-0.7, len(some) - 0.3)
    axes.grid(axis="y", visible=False)
    axes.set_title(family.replace("_", " "), loc="left", fontsize=9)


def _fixed(record: Record) -> tuple[Any, ...]:
    """What stays the same along a sweep over m; times of two runs make no line."""
    layout = (record.layout, record.a_dtype, record.out_dtype, record.epilogue)
    run = measured.run_of(record)
    return record.n, record.k, record.batch, record.groups, *layout, *run


def _sweeps(found: Results) -> list[list[Record]]:
    """Records of a run that differ only in m."""
    sweeps: dict[tuple[Any, ...], list[Record]] = collections.defaultdict(list)
    for r in found.found:
        if r.mode == "forward" and r.regime == "burst" and r.suite in ("sweep", "decode", "dense"):
            sweeps[_fixed(r)].append(r)
    return [*sweeps.values()]


def rate_over_m(found: Results) -> Any | None:
    """TFLOP/s against m at fixed n and k."""
    return _over_m(
        [[r for r in some if r.m >= 256] for some in _sweeps(found)],
        lambda r: r.tflops,
        "TFLOP/s",
    )


def decode(found: Results) -> Any | None:
    """GB/s against m where m is small, with the measured bandwidth."""
    bandwidth = found.bandwidth_gbps()
    figure = _over_m(
        [[r for r in some if r.m <= 128] for some in _sweeps(found)],
        lambda r: r.gbps,
        "GB/s of bytes that must be moved",
    )
    for axes in () if figure is None else [x for x in figure.axes if x.lines]:
        plotting.powers_of_two(axes, sorted({round(x) for x in axes.lines[0].get_xdata()}), "m")
        if bandwidth is None:
            continue
        axes.set_ylim(0, 1.1 * max(bandwidth, axes.get_ylim()[1] / 1.05))
        axes.axhline(bandwidth, color="black", linewidth=0.8)
        axes.annotate(
            f"measured bandwidth {bandwidth:.0f} GB/s",
            (0.02, bandwidth),
            xycoords=("axes fraction", "data"),
            xytext=(0, 4),
            textcoords="offset points",
            fontsize=8.5,
        )
    return figure


def _over_m(
    sweeps: list[list[Record]], y: Callable[[Record], float | None], label: str
) -> Any | None:
    """A panel for each of the longest sweeps."""
    lengths = {id(some): len({r.m for r in some}) for some in sweeps}
    sweeps = [some for some in sweeps if lengths[id(some)] >= 4]
    sweeps = sorted(sweeps, key=lambda some: -lengths[id(some)])[:4]
    if not sweeps:
        return None
    figure, panels = plotting.panels(len(sweeps))
    for axes, some in zip(panels, sweeps, strict=True):
        plotting.lines(axes, plotting.series(some, lambda r: r.m, y))
        sizes = sorted({r.m for r in some})
        if sizes[-1] >= _WIDE * sizes[0]:
            plotting.powers_of_two(axes, sizes, "m")
        axes.set_xlabel("m")
        axes.set_ylabel(label)
        kind = SHORT.get(some[0].a_dtype, some[0].a_dtype)
        what = f"n = {some[0].n}, k = {some[0].k}, {kind} {some[0].layout}"
        what += "" if some[0].epilogue == "none" else f" {some[0].epilogue}"
        every = [r for members in sweeps for r in members]
        plotting.title(axes, what, every if axes is panels[0] else ())
    plotting.legend(figure, panels)
    return figure


def sawtooth(found: Results) -> Any | None:
    """What alignment of k and partly filled waves cost."""
    suites = {
        "sawtooth": ("Alignment of k, 4096 × 4096 × k", "k", lambda r: r.k),
        "waves": ("Partly filled waves, s × s × 4096", "s", lambda r: r.m),
    }
    present = {
        name: [r for some in rows.values() for r in some]
        for name in suites
        if (rows := found.of_suite(name))
    }
    if not present:
        return None
    figure, panels = plotting.panels(len(present))
    for axes, (name, some) in zip(panels, present.items(), strict=True):
        what, label, x = suites[name]
        plotting.lines(axes, plotting.series(some, x, lambda r: r.tflops))
        axes.set_xticks(sorted({x(r) for r in some}))
        axes.set_xlabel(label)
        axes.set_ylabel("TFLOP/s")
        every = [r for members in present.values() for r in members]
        plotting.title(axes, what, every if axes is panels[0] else ())
    plotting.legend(figure, panels)
    return figure


def grouped(found: Results) -> Any | None:
    """TFLOP/s of grouped products against the number of groups, and against their skew."""
    some = [
        r
        for r in found.found
        if r.suite == "grouped_sweep" and r.regime == "burst" and r.mode == "forward"
    ]
    drawn = [*_over_groups(some), *_over_skew(some)]
    if not drawn:
        return None
    figure, panels = plotting.panels(len(drawn))
    top = max(r.tflops or 0.0 for _, members in drawn for r in members)
    for axes, (what, members) in zip(panels, drawn, strict=True):
        same_groups = len({r.groups for r in members}) == 1
        x = _skew if same_groups else lambda r: r.groups
        plotting.lines(axes, plotting.series(members, x, lambda r: r.tflops))
        axes.set_ylim(0, 1.08 * top)
        label = "rows of the largest group / mean" if same_groups else "groups"
        largest = max(r.groups for r in members).bit_length()
        ticks = [2**i for i in range(largest)] if same_groups else sorted({x(r) for r in members})
        plotting.powers_of_two(axes, ticks, label)
        axes.set_ylabel("TFLOP/s of useful rows")
        plotting.title(axes, what, some if axes is panels[0] else ())
    plotting.legend(figure, panels)
    return figure


def _over_groups(some: list[Record]) -> list[tuple[str, list[Record]]]:
    """Title and records of those that differ in the number of groups only."""
    sweeps: dict[tuple[Any, ...], list[Record]] = collections.defaultdict(list)
    for r in some:
        sweeps[r.m, r.n, r.k, r.distribution].append(r)
    return [
        (f"{m} × {n} × {k}, {distribution}", members)
        for (m, n, k, distribution), members in sweeps.items()
        if len({r.groups for r in members}) >= 2
    ]


def _over_skew(some: list[Record]) -> list[tuple[str, list[Record]]]:
    """Title and records of those that differ in the skew of their groups only."""
    sweeps: dict[tuple[Any, ...], list[Record]] = collections.defaultdict(list)
    for r in some:
        sweeps[r.m, r.n, r.k, r.groups].append(r)
    return [
        (f"{m} × {n} × {k} in {num_groups} groups", members)
        for (m, n, k, num_groups), members in sweeps.items()
        if len({_skew(r) for r in members}) >= 3
    ]


def _skew(record: Record) -> float:
    """Rows of the largest group over the mean: 1 if all are equal, their number if one has all."""
    sizes = groups.sizes(record.distribution, record.m, record.groups)
    return float(sizes.max() / max(1e-9, sizes.mean()))


PICTURES: dict[str, Callable[[Results], Any | None]] = {
    "roofline": rooflines.roofline,
    "ladder": rooflines.ladder,
    "speedup": speedup,
    "speedup_grouped": speedup_grouped,
    "rate_over_m": rate_over_m,
    "sawtooth": sawtooth,
    "grouped": grouped,
    "decode": decode,
}
