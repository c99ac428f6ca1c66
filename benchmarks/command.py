"""The flags that the measuring binaries share, and the loop that runs, prints and writes."""

import math
import os
import re
import sys
from collections.abc import Iterable, Sequence

from absl import flags

from benchmarks import console, implementations, manifest, records
from benchmarks.manifest import Row
from benchmarks.records import Record
from benchmarks.runner import Options, Runner
from jaxgemm.tuning import timing

_FILTER = flags.DEFINE_string("filter", None, "regular expression that a row's name must contain")
_BACKENDS = flags.DEFINE_list(
    "backends",
    ["all"],
    "implementations: names or their beginnings; 'all' leaves out single kernels of jaxgemm,"
    " which 'kernels' adds",
)
_MODE = flags.DEFINE_enum("mode", "forward", manifest.MODES, "for rows that have none of their own")
_ITERATIONS = flags.DEFINE_integer(
    "iterations", None, "timed calls; default: as the protocol asks", lower_bound=1
)
_REGIME = flags.DEFINE_enum("regime", "burst", ("burst", "sustained", "both"), "see timing.py")
_FORMAT = flags.DEFINE_enum("format", "console", ("console", "json", "csv"), "of the output")
_OUT = flags.DEFINE_string("out", None, "file to which records are appended, one JSON a line")
_TAGS = flags.DEFINE_list("tags", [], "added to every record")
_LIST = flags.DEFINE_bool("list", False, "list what would be measured, measure nothing")
_MAX_VARIANTS = flags.DEFINE_integer(
    "max_variants", 8, "ways of one implementation that are tried, best first", lower_bound=1
)
_GRAPHS = flags.DEFINE_bool(
    "graphs",
    False,
    "time short calls in a captured graph, too: by the device's clock, gaps included",
)
_MAX_SECONDS = flags.DEFINE_float("max_seconds", math.inf, "begin no row after this time")


@flags.validator("filter")
def _is_pattern(text: str | None) -> bool:
    try:
        re.compile(text or "")
    except re.error as error:
        raise flags.ValidationError(f"it should be a regular expression: {error}") from None
    return True


def filter_pattern() -> str | None:
    """The value of --filter."""
    return _FILTER.value


def select(suites: flags.FlagHolder[list[str]]) -> tuple[Row, ...]:
    """The rows of the manifest that --suite and --filter ask for; of all suites for --filter alone.

    Raises:
      ValueError: there is no such suite.
    """
    everywhere = _FILTER.present and not suites.present
    return manifest.select(["all"] if everywhere else suites.value, _FILTER.value)


def matches(name: str) -> bool:
    """Whether --filter lets a row through."""
    return _FILTER.value is None or re.search(_FILTER.value, name) is not None


def present(*names: str) -> list[str]:
    """Which of these flags the user gave."""
    return [f"--{name}" for name in names if flags.FLAGS[name].present]


def tags() -> tuple[str, ...]:
    """The value of --tags."""
    return tuple(_TAGS.value)


def iterations() -> int | None:
    """The value of --iterations."""
    return _ITERATIONS.value


def regimes() -> tuple[timing.Regime, ...]:
    """What --regime asks for."""
    both = ("burst", "sustained")
    return both if _REGIME.value == "both" else (both[both.index(_REGIME.value)],)


def options(backends: tuple[str, ...] | None = None) -> Options:
    """What the flags say; `backends` unless the user names some."""
    named = backends if backends and not _BACKENDS.present else tuple(_BACKENDS.value)
    return Options(
        backends=named,
        mode=_MODE.value,
        regimes=regimes(),
        iterations=_ITERATIONS.value,
        max_variants=_MAX_VARIANTS.value,
        max_seconds=_MAX_SECONDS.value,
        graphs=_GRAPHS.value,
        tags=tags(),
    )


def measure(rows: Sequence[Row]) -> int:
    """Measures rows as the flags say; returns the exit code.

    It is 1 if anything failed or was wrong, 2 if the flags ask for nothing, or for what is unknown.
    """
    if not rows:
        print("no row matches", file=sys.stderr)
        return 2
    if _LIST.value:
        _list(rows)
        return 0
    try:
        runner = Runner(options())
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    return collect([row.name for row in rows], runner.run(rows))


def collect(names: Sequence[str], found: Iterable[tuple[str, Iterable[Record]]]) -> int:
    """Prints and writes records as they come; returns the exit code.

    What has come stays, whatever ends it: an interrupt, or that time is up.

    Args:
      names: of all rows.
      found: each row's name with its records, measured when it is their turn.
    """
    if _LIST.value:
        _print_lines(names)
        return 0
    printer, total, done, bad = console.Printer(_FORMAT.value), len(names), 0, 0
    try:
        with printer.progress(total) as advance:
            for name, some in found:
                for record in some:
                    printer.show(record)
                    bad += record.status in ("failed", "wrong")
                    if _OUT.value:
                        records.append(_OUT.value, record)
                done += 1
                advance(name)
    except KeyboardInterrupt:
        print(f"interrupted after {done} of {total} rows; they are kept", file=sys.stderr)
        return 130
    if done < total:
        print(f"time was up after {done} of {total} rows", file=sys.stderr)
    if bad:
        print(f"{bad} failed or wrong", file=sys.stderr)
    return 1 if bad else 0


def _list(rows: Sequence[Row]) -> None:
    names = ", ".join(implementations.implementations())
    lines = [f"{row.name:36} {row.suites:24} {row}" for row in rows]
    _print_lines([*lines, f"implementations: {names}"])


def _print_lines(lines: Sequence[str]) -> None:
    """Prints lines for as long as someone reads them, such as `head`."""
    try:
        print(*lines, sep="\n", flush=True)
    except BrokenPipeError:
        # At its end Python flushes again what could not be written.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
