"""Tables and configs as text for a terminal."""

from collections.abc import Sequence
from typing import Any


def columns(cells: Sequence[Sequence[str]]) -> str:
    """Lines of cells as text, each column as wide as its widest cell."""
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in cells
    )


def short(config: Any) -> str:
    """A config in a word, such as 128x256x64/m2: the cluster along m has two CTAs."""
    tile = "x".join(map(str, config.cta_tile))
    if config.cluster_size > 1:
        tile += f"/{getattr(config, 'cluster_along', None) or ''}{config.cluster_size}"
    return tile + (f"/k{config.split_k}" if config.split_k > 1 else "")
