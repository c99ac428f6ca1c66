"""Rooflines: what was reached, between the measured bandwidth and the fastest product."""

from collections.abc import Sequence
from typing import Any

from benchmarks import ladder_tables, plotting, rungs
from benchmarks.measured import APART, SHORT, Results
from benchmarks.records import Record
from jaxgemm.tuning import roofline as formulas

_HALF = ("bfloat16", "float16")
_GREY = "#555555"


def roofline(found: Results) -> Any | None:
    """Every product of 16-bit operands between the measured bandwidth and the fastest product."""
    rows = [
        r
        for r in found.found
        if r.impl == "jaxgemm"
        and r.regime == "burst"
        and r.mode == "forward"
        and r.a_dtype in _HALF
        and r.suite not in APART
        and r.tflops
        and r.gbps
    ]
    peak = found.peak_tflops(_HALF)
    bandwidth = found.bandwidth_gbps()
    if not rows or peak is None or bandwidth is None:
        return None
    figure, axes = plotting.pyplot().subplots(figsize=(7, 4.6), layout="constrained")
    intensities = [1e3 * (r.tflops or 0) / (r.gbps or 1) for r in rows]
    ridge = 1e3 * peak / bandwidth
    low, high = min(*intensities, ridge) / 2, max(*intensities, ridge) * 2
    _roofs(axes, low, high, bandwidth, {"fastest product": peak})
    axes.axvline(ridge, color="#999999", linewidth=0.8, linestyle=":")
    _note(axes, f"ridge {ridge:.0f}", (ridge, 0), (3, 4), xycoords=("data", "axes fraction"))
    families = sorted({r.suite for r in rows})
    for index, family in enumerate(families):
        points = [
            (x, r.tflops) for x, r in zip(intensities, rows, strict=True) if r.suite == family
        ]
        colour, marker = plotting.style_of(index)
        axes.scatter(
            *zip(*points, strict=True),
            s=30,
            color=colour,
            marker=marker,
            edgecolor="white",
            linewidth=0.5,
            label=family.replace("_", " "),
            zorder=3,
        )
    least = min(r.tflops or peak for r in rows)
    _scales(axes, (low, high), (least / 1.7, peak * 1.8))
    axes.set_xlabel("arithmetic intensity, flop per byte that must be moved")
    plotting.legend(figure, [axes])
    plotting.title(axes, "Roofline: jaxgemm, 16-bit operands, forward", rows)
    return figure


def ladder(found: Results) -> Any | None:
    """The rungs of docs/ladder.md: how many flops each does for a byte that it asks for."""
    some = rungs.fastest(ladder_tables.measured(found))
    climbed = [r for r in some if r.predicted_l2_bytes and r.tflops]
    bandwidth = found.bandwidth_gbps()
    if not climbed or bandwidth is None:
        return None
    figure, axes = plotting.pyplot().subplots(figsize=(7, 4.9), layout="constrained")
    peaks = {}
    for record in some:
        name = f"fastest product in {SHORT[record.a_dtype]}"
        peaks[name] = max(record.tflops or 0.0, peaks.get(name, 0.0))
    low, high = 0.03, 3e3
    _roofs(axes, low, high, bandwidth, peaks)
    for index, dtype in enumerate(dict.fromkeys(rungs.RUNGS.values())):
        mine = [r for r in climbed if r.a_dtype == dtype]
        _climb(axes, mine, plotting.style_of(index), found, bandwidth)
    _scales(axes, (low, high), (min(r.tflops or 0.0 for r in climbed) / 2, max(peaks.values()) * 2))
    hollow = any(ladder_tables.counters(found, r) for r in climbed)
    axes.set_xlabel(
        "flop per byte that the rung asks for" + ("; hollow: that DRAM moved" if hollow else "")
    )
    plotting.legend(figure, [axes])
    size = climbed[0].m
    plotting.title(axes, f"The ladder at {size} × {size} × {size}", climbed)
    return figure


def _climb(
    axes: Any,
    some: Sequence[Record],
    style: tuple[str, str],
    found: Results,
    bandwidth: float,
) -> None:
    """The rungs of one dtype, each with its name, and with its bytes from DRAM if these are known.

    A name stands on the side of its point that is away from the slope of the bandwidth.
    """
    if not some:
        return
    colour, marker = style
    flops = formulas.product_flops(some[0].m, some[0].n, some[0].k)
    xs = [flops / (r.predicted_l2_bytes or 1.0) for r in some]
    ys = [r.tflops or 0.0 for r in some]
    axes.plot(xs, ys, color=colour, linewidth=0.8, alpha=0.5)
    label = f"rungs in {SHORT[some[0].a_dtype]}"
    axes.scatter(xs, ys, s=34, color=colour, marker=marker, label=label, zorder=3)
    for x, y, record in zip(xs, ys, some, strict=True):
        name = rungs.name_of(record).removeprefix("cuda.")
        if y > 1e-3 * bandwidth * x:
            _note(axes, name, (x, y), (-8, -3), colour, ha="right")
        else:
            _note(axes, name, (x, y), (7, -11), colour)
        counted = ladder_tables.counters(found, record)
        if counted is not None and counted.dram_bytes:
            moved = flops / counted.dram_bytes
            axes.plot([x, moved], [y, y], color=colour, linewidth=0.8, linestyle=":")
            axes.scatter([moved], [y], s=34, marker=marker, facecolor="white", edgecolor=colour)


def _roofs(axes: Any, low: float, high: float, bandwidth: float, peaks: dict[str, float]) -> None:
    """The slope of the bandwidth of DRAM up to the highest peak, and a flat line for each peak."""
    top = max(peaks.values())
    axes.plot([low, 1e3 * top / bandwidth], [low * bandwidth / 1e3, top], color="black")
    for name, peak in peaks.items():
        axes.plot([1e3 * peak / bandwidth, high], [peak, peak], color="black")
        _note(axes, f"{name} {peak:.0f} TFLOP/s", (high, peak), (0, 5), "black", ha="right")
    # Above the slope, where nothing can be that DRAM has to feed; most of the way up.
    at = low * (1e3 * top / bandwidth / low) ** 0.8
    text = f"DRAM {bandwidth:.0f} GB/s"
    _note(axes, text, (at, at * bandwidth / 1e3), (-8, 2), "black", ha="right")


def _note(
    axes: Any,
    text: str,
    at: tuple[float, float],
    offset: tuple[float, float],
    colour: str = _GREY,
    **options: Any,
) -> None:
    where = {"textcoords": "offset points", "fontsize": 8.5, "color": colour}
    axes.annotate(text, at, xytext=offset, **where, **options)


def _scales(axes: Any, xs: tuple[float, float], ys: tuple[float, float]) -> None:
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(*xs)
    axes.set_ylim(*ys)
    axes.set_ylabel("TFLOP/s")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter("{x:g}")
        # Labels between powers of ten where there are few of these.
        wide = axis is axes.xaxis or ys[1] / ys[0] > 90
        axis.set_minor_formatter("" if wide else "{x:g}")
