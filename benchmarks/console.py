"""How results are shown while they come: lines on a terminal, JSON or CSV for a program."""

import contextlib
import csv
import importlib
import json
import sys
from collections.abc import Callable, Iterator
from typing import Any, TextIO

from benchmarks.records import Record, to_json

_HEAD = (
    f"{'row':28} {'size':22} {'implementation':26} {'us':>10} {'TFLOP/s':>8} {'GB/s':>7}"
    f" {'ratio':>7} {'95 %':>13} {'MHz':>5} {'W':>4}  error"
)


def line(record: Record) -> str:
    """One record for people."""
    start = f"{record.row:28.28} {record.size:22} {record.impl:26.26}"
    if record.status == "counted":
        return f"{start} {_counters(record)}"
    if record.status != "ok":
        return f"{start} {record.status}: {record.reason}"
    if record.tflops is None or record.gbps is None:
        return f"{start} {record.median_us:10.2f}"
    ratio = interval = "-"
    if record.ratio is not None and record.impl != record.baseline:
        assert record.ratio_low is not None
        assert record.ratio_high is not None
        ratio = f"{record.ratio:.3f}"
        interval = f"{record.ratio_low:.3f}-{record.ratio_high:.3f}"
    numbers = f"{record.median_us:10.2f} {record.tflops:8.1f} {record.gbps:7.0f}"
    if record.tflops < 10:
        numbers = f"{record.median_us:10.2f} {record.tflops:8.3f} {record.gbps:7.1f}"
    state = f"{_whole(record.sm_mhz):>5} {_whole(record.power_w):>4}"
    notes = "" if record.mode == "forward" else f" {record.mode}"
    notes += " sustained" if record.regime == "sustained" else ""
    notes += " CLOCKS DISAGREE" if record.clocks_agree is False else ""
    error = "-" if record.max_error_ratio is None else f"{record.max_error_ratio:.2f}"
    return f"{start} {numbers} {ratio:>7} {interval:>13} {state}  {error}{notes}"


def _counters(record: Record) -> str:
    parts = []
    for name in ("dram", "l2"):
        measured = getattr(record, f"{name}_bytes")
        predicted = getattr(record, f"predicted_{name}_bytes")
        if measured is not None and predicted:
            parts.append(
                f"{name} {measured / 1e6:.1f} MB ({measured / predicted:.2f} of the model)"
            )
    if record.tensor_active_percent is not None:
        parts.append(f"tensor pipe busy in {record.tensor_active_percent:.1f} % of cycles")
    elif record.tensor_percent is not None:
        parts.append(f"tensor pipe {record.tensor_percent:.1f} % of instructions")
    return ", ".join(parts) or "no counters"


def _whole(x: float | None) -> str:
    return "-" if x is None else f"{x:.0f}"


class Printer:
    """Prints records as they come in one of the formats; progress only on a terminal."""

    def __init__(self, kind: str, stream: TextIO | None = None) -> None:
        self._kind = kind
        self._stream = stream or sys.stdout
        self._started = False
        self._print: Callable[..., None] = print

    @contextlib.contextmanager
    def progress(self, total: int) -> Iterator[Callable[[str], None]]:
        """A function that says which row is done; a bar where rich is and someone watches."""
        rich = _rich() if self._stream.isatty() else None
        if rich is None:
            yield lambda name: None
            return
        with rich.Progress(transient=True) as bar:
            task = bar.add_task("rows", total=total)
            self._print = lambda text, file: bar.console.print(
                text, highlight=False, markup=False, soft_wrap=True
            )
            yield lambda name: bar.update(task, advance=1, description=name)
        self._print = print

    def show(self, record: Record) -> None:
        """Prints one record."""
        if self._kind == "json":
            self._print(to_json(record), file=self._stream)
        elif self._kind == "csv":
            self._csv(record)
        else:
            if not self._started:
                self._print(_HEAD, file=self._stream)
            self._print(line(record), file=self._stream)
        self._started = True
        self._stream.flush()

    def _csv(self, record: Record) -> None:
        fields = dict.fromkeys(Record.__dataclass_fields__, "")
        fields |= json.loads(to_json(record))
        writer = csv.DictWriter(self._stream, list(fields))
        if not self._started:
            writer.writeheader()
        writer.writerow(fields)


def _rich() -> Any | None:
    try:
        return importlib.import_module("rich.progress")
    except ImportError:
        return None
