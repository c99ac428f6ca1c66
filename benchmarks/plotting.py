"""How all pictures look: styles that differ in print, titles, legends, axes."""

import importlib
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from benchmarks import measured
from benchmarks.records import Record

# Told apart in print and by readers who see few colours: a colour, a marker and a dash each.
STYLES = {
    "jaxgemm": ("#0072B2", "o", "-"),
    "jnp.dot": ("#D55E00", "s", "--"),
    "lax.ragged_dot": ("#D55E00", "s", "--"),
    "best of XLA": ("#009E73", "^", "-."),
    "best of cuBLASLt": ("#E69F00", "P", (0, (3, 1, 1, 1))),
    "Pallas in JAX": ("#CC79A7", "D", ":"),
    "torch": ("#555555", "v", (0, (5, 1))),
}
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#555555", "#8C564B")
MARKERS = "os^DvPhX"


def style_of(index: int) -> tuple[str, str]:
    """Colour and marker of one of many; pairs repeat late."""
    shift = index // len(COLOURS)
    return COLOURS[index % len(COLOURS)], MARKERS[(index + shift) % len(MARKERS)]


def pyplot() -> Any:
    matplotlib = importlib.import_module("matplotlib")
    matplotlib.use("Agg")
    matplotlib.rcParams.update(
        {
            "figure.dpi": 110,
            "savefig.dpi": 200,
            "font.size": 10,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
            "grid.color": "#DDDDDD",
            "grid.linewidth": 0.6,
            "axes.axisbelow": True,
            "legend.frameon": False,
            "lines.linewidth": 1.6,
            "lines.markersize": 5,
            # The same picture gives the same file.
            "svg.hashsalt": "jaxgemm",
        }
    )
    return importlib.import_module("matplotlib.pyplot")


def title(axes: Any, what: str, some: Iterable[Record] = ()) -> None:
    """A title, and under it where the records are from: once a picture is enough."""
    axes.set_title(f"{what}\n", loc="left", fontsize=11, fontweight="bold")
    small = {"transform": axes.transAxes, "fontsize": 7.5, "color": "#555555"}
    # It may reach over the next panel, which has none, and leaves panels their room.
    axes.text(0, 1.015, origin(some), **small).set_in_layout(False)


def origin(some: Iterable[Record]) -> str:
    """Devices and commits of records in a line, for small print."""
    some = tuple(some)
    commits = measured.commits(some)
    named = f"commit{'s' if len(commits) > 1 else ''} {', '.join(commits)}" if commits else ""
    return "; ".join([*dict.fromkeys(record.device for record in some), named]).strip("; ")


def lines(axes: Any, series: dict[str, dict[float, float]]) -> None:
    """One line for each implementation: x → y."""
    for name, points in series.items():
        colour, marker, dash = STYLES.get(name, ("#000000", "x", "-"))
        xs = sorted(points)
        ys = [points[x] for x in xs]
        axes.plot(xs, ys, color=colour, marker=marker, linestyle=dash, label=name)
    # Room for the markers of the highest points.
    axes.set_ylim(
        0, 1.08 * max((y for points in series.values() for y in points.values()), default=1)
    )


def series(
    some: Iterable[Record], x: Callable[[Record], float], y: Callable[[Record], float | None]
) -> dict[str, dict[float, float]]:
    """implementation → x → the largest y, in a fixed order."""
    found: dict[str, dict[float, float]] = {name: {} for name in STYLES}
    for record in some:
        name, value = measured.family_of(record.impl), y(record)
        if name in found and value is not None:
            found[name][x(record)] = max(value, found[name].get(x(record), 0.0))
    return {name: points for name, points in found.items() if points}


def legend(figure: Any, panels: Sequence[Any]) -> None:
    """One legend for all panels, below them."""
    handles = {}
    for axes in panels:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    # As many as fit below panels that stand beside each other.
    columns = min(len(handles), 3 * min(2, len(panels)))
    figure.legend(
        handles.values(), handles.keys(), loc="outside lower center", ncols=columns, fontsize=9
    )


def powers_of_two(axes: Any, values: Sequence[float], label: str) -> None:
    ticks = [v for v in values if math.log2(v).is_integer()]
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [f"{v:g}" for v in ticks])
    axes.minorticks_off()
    axes.set_xlabel(label)


def panels(count: int) -> tuple[Any, list[Any]]:
    columns = min(2, count)
    rows = -(-count // columns)
    figure, grid = pyplot().subplots(
        rows,
        columns,
        squeeze=False,
        figsize=(0.8 + 4.2 * columns, 3.5 * rows),
        layout="constrained",
    )
    for axes in grid.flat[count:]:
        axes.set_visible(False)
    return figure, list(grid.flat[:count])
