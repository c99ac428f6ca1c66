"""Tunes the rows of a manifest: `python -m jaxgemm.tuning benchmarks/manifest.csv`.

Without --out, what is found goes to this user's table; with --out=table.json, into that file, which
is how the shipped table of a chip is made:

    python -m jaxgemm.tuning benchmarks/manifest.csv --out=jaxgemm/tuning/tables/nvidia_h200.json

What the columns of a manifest mean is said in `benchmarks/manifest.py`.
"""

import dataclasses
import importlib
import json
import math
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
from absl import app, flags

from jaxgemm import device as devices
from jaxgemm import registry
from jaxgemm.device import Device
from jaxgemm.kernel import Kernel
from jaxgemm.problem import Problem
from jaxgemm.tuning import cache, search, timing
from jaxgemm.tuning.found import Tuned, Tuning

# A problem, and its operands that are not random.
_Job = tuple[Problem, dict[str, Any]]


@dataclasses.dataclass(frozen=True)
class Options:
    """What the flags say.

    Attributes:
      pattern: regular expression that a row's name must contain.
      backend: which kernels to try.
      backward: whether to tune the products of the gradients too.
      regime: as in `tune`.
      max_seconds: no new problem is begun after this time.
      only_missing: leave out problems that the table has: to go on where an earlier run stopped.
      out: the table to write; None means the user's.
      times: a file that gets the time of every config that was tried, a JSON object a line.
    """

    pattern: str = ""
    backend: str = "auto"
    backward: bool = False
    regime: timing.Regime = "burst"
    max_seconds: float = math.inf
    only_missing: bool = False
    out: Path | None = None
    times: Path | None = None


def run(manifest: Path, options: Options) -> int:
    """Tunes the rows of a manifest and prints what was found; the exit code is 1 after a fault.

    Raises:
      UsageError: the manifest, the pattern or the backend is not what it should be.
    """
    try:
        kernels, rows = registry.selected(options.backend), _rows(manifest, options.pattern)
    except (OSError, ValueError) as error:
        raise app.UsageError(str(error)) from None
    target = devices.current()
    table = _table(target.name, options.out) if options.only_missing else cache.Table()
    found = _jobs(rows, options.backward)
    jobs = [job for job in found if not table.of_problem.get(cache.key_of(job[0]))]
    if not jobs:
        print(f"nothing to tune: {len(rows)} rows have no problem that the table lacks")
        return 0
    return _tune(jobs, kernels, target, options)


def _tune(jobs: Sequence[_Job], kernels: Sequence[Kernel], target: Device, options: Options) -> int:
    deadline, rows, code = time.monotonic() + options.max_seconds, [], 0
    try:
        for problem, fixed in search.progress(jobs):
            if time.monotonic() > deadline:
                break
            with jax.enable_x64(problem.accumulator.name == "float64"):
                row = search.tune_problem(problem, kernels, regime=options.regime, fixed=fixed)
            rows.append(row)
            _write(row, target.name, options)
    except KeyboardInterrupt:
        print(f"interrupted after {len(rows)} of {len(jobs)} problems; they are kept", flush=True)
        code = 130
    skipped = tuple(problem for problem, _ in jobs[len(rows) :])
    written = options.out if any(row.entries() for row in rows) else None
    print(Tuning(target, tuple(rows), written, skipped))
    return code or int(any(row.faults for row in rows))


def _table(device_name: str, out: Path | None) -> cache.Table:
    return cache.load(cache.user_path(device_name) if out is None else out, device_name)


def _write(row: Tuned, device_name: str, options: Options) -> None:
    """Keeps what was found at once, so that an interrupted run loses nothing."""
    if entries := row.entries():
        if options.out is None:
            cache.save(entries, device_name)
        else:
            options.out.parent.mkdir(parents=True, exist_ok=True)
            cache.merge(entries, device_name, options.out)
    if options.times is not None:
        options.times.parent.mkdir(parents=True, exist_ok=True)
        with options.times.open("a") as file:
            file.writelines(json.dumps(x) + "\n" for x in row.measurements())


def _rows(manifest: Path, pattern: str) -> list[Any]:
    """The rows whose names the pattern is found in, at least one.

    Raises:
      OSError: the manifest cannot be read.
      ValueError: it is no manifest, the pattern is no regular expression, or no row matches.
    """
    parse = importlib.import_module("benchmarks.manifest").parse
    try:
        wanted = re.compile(pattern)
    except re.error as error:
        raise ValueError(f"--filter: {pattern!r} is no regular expression: {error}") from None
    with manifest.open(newline="") as file:
        rows = [row for row in parse(file) if wanted.search(row.name)]
    if not rows:
        raise ValueError(f"--filter: no row's name contains {pattern!r}")
    return rows


def _jobs(rows: Sequence[Any], backward: bool) -> Iterator[_Job]:
    """The distinct problems of rows."""
    cases = importlib.import_module("benchmarks.cases")
    seen = set()
    for row in rows:
        try:
            case = cases.of(row)
        except cases.Unsupported as reason:
            print(f"skipped  {row.name}: {reason}")
            continue
        with jax.enable_x64(row.a_dtype == "float64"):
            problems = _problems(cases.call(case), case, backward)
        for problem in problems:
            key = cache.key_of(problem)
            if key not in seen:
                seen.add(key)
                yield problem, {} if case.sizes is None else {"group_sizes": case.sizes}


def _problems(call: Any, case: Any, backward: bool) -> list[Problem]:
    operands = case.avals("forward")
    if not backward or not case.differentiable:
        return search.problems_of(call, operands)
    wanted = {name: operands[name] for name in case.differentiable}
    others = {name: x for name, x in operands.items() if name not in wanted}

    def step(wanted: Any, others: Any) -> Any:
        result, pull = jax.vjp(lambda xs: call({**xs, **others}), wanted)
        return result, pull(result)

    return search.problems_of(step, wanted, others)


def _define_flags() -> None:
    """Here and not at import, so that other programs can use these names too."""
    flags.DEFINE_string("filter", "", "regular expression that a row's name must contain")
    flags.DEFINE_string("backend", "auto", "kernels to try: a name, or the beginning of one")
    flags.DEFINE_bool("backward", False, "tune the products of the gradients too")
    flags.DEFINE_enum("regime", "burst", ("burst", "sustained"), "see timing.py")
    flags.DEFINE_float("max_seconds", math.inf, "begin no problem after this time")
    flags.DEFINE_bool("only_missing", False, "leave out problems that the table has")
    flags.DEFINE_string("out", None, "table to write instead of this user's")
    flags.DEFINE_string("times", None, "file for the times of all configs, as JSON lines")


def main(argv: Sequence[str]) -> int:
    """Reads the flags and runs."""
    if len(argv) != 2:
        raise app.UsageError("name one manifest, such as benchmarks/manifest.csv")
    found = flags.FLAGS
    options = Options(
        found.filter,
        found.backend,
        found.backward,
        found.regime,
        found.max_seconds,
        found.only_missing,
        None if found.out is None else Path(found.out),
        None if found.times is None else Path(found.times),
    )
    return run(Path(argv[1]), options)


if __name__ == "__main__":
    _define_flags()
    app.run(main)
