"""The records of one device, and the questions that tables and pictures ask of them."""

import collections
import dataclasses
import functools
import pathlib
from collections.abc import Iterable, Sequence

from benchmarks import manifest, records
from benchmarks.records import Record
from jaxgemm.tuning.times import TIE

# What tells the runs of a binary apart: commit and command.
Run = tuple[str, str]

# Rows of one implementation beside one another.
BESIDE = "side_by_side"
# Suites with a picture or a table of their own, which are in no picture of all products.
APART = ("sweep", "grouped_sweep", "sawtooth", "waves", "ladder", BESIDE)

SHORT = {
    "bfloat16": "bf16",
    "float16": "f16",
    "float32": "f32",
    "float64": "f64",
    "float8_e4m3fn": "e4m3",
    "float8_e5m2": "e5m2",
}


def family_of(impl: str) -> str:
    """What a reader compares: all of torch is one column, as are all forms of a jnp.dot."""
    if impl.startswith("torch."):
        return "torch"
    if impl.startswith("jax."):
        return "Pallas in JAX"
    named = {"xla.best": "best of XLA", "cublaslt-best": "best of cuBLASLt"}
    return named.get(impl, impl.split("[")[0])


@dataclasses.dataclass(frozen=True)
class Results:
    """Records with a time, those of one run of each row, mode and regime; see `load`.

    Attributes:
      name: the folder, such as "nvidia_h200".
      found: they.
      counted: records with counters instead of a time, in the same way.
      repeated: records of `found` with those of another run of the same commit.
      refused: records of the same runs that say why there is no time.
      tried: the times of every config that a tuner tried, if they are there.
      loads: the same of one kernel that loaded in two ways.
    """

    name: str
    found: tuple[Record, ...]
    counted: tuple[Record, ...] = ()
    repeated: tuple[tuple[Record, Record], ...] = ()
    refused: tuple[Record, ...] = ()
    tried: pathlib.Path | None = None
    loads: pathlib.Path | None = None

    @functools.cached_property
    def families_of_run(self) -> dict[Run, set[str]]:
        """Run → the families of implementations that it timed on any row."""
        families: dict[Run, set[str]] = collections.defaultdict(set)
        for record in self.found:
            families[run_of(record)].add(family_of(record.impl))
        return families

    def of_suite(self, suite: str, regime: str = "burst") -> dict[str, list[Record]]:
        """row → its records, in the order of the manifest, then those that it does not list.

        Of a row of the manifest those in its own mode, or of its forward pass.
        """
        modes = {r.name: r.mode or "forward" for r in manifest.rows()}
        order = [r.name for r in manifest.rows() if suite in r.suites.split()]
        order += [line_of(r) for r in self.found if r.suite == suite and r.row not in order]
        rows: dict[str, list[Record]] = {name: [] for name in order}
        for record in self.found:
            own = modes.get(record.row, record.mode) == record.mode
            if own and record.regime == regime and line_of(record) in rows:
                rows[line_of(record)].append(record)
        return {name: some for name, some in rows.items() if some}

    def bandwidth_gbps(self) -> float | None:
        """The best measured bandwidth."""
        rates = [r.gbps for r in self.found if r.suite == "ceiling" and r.gbps]
        return max(rates, default=None)

    def peak_tflops(self, dtypes: Sequence[str]) -> float | None:
        """The rate of the fastest product of operands of one of these dtypes."""
        rates = [r.tflops for r in self.found if r.a_dtype in dtypes and r.tflops]
        return max(rates, default=None)


def line_of(record: Record) -> str:
    """What a line of a table is about: the row, and the kernel that is measured beside itself."""
    kernel = record.impl if record.suite == BESIDE and record.impl != "jaxgemm" else ""
    return f"{record.row}, {kernel}" if kernel else record.row


def ours(some: Iterable[Record]) -> Record | None:
    """The record of `jaxgemm` among those of one row, or the one that stands beside others."""
    return next((r for r in some if r.impl == "jaxgemm" or r.suite == BESIDE), None)


def fastest(some: Iterable[Record], family: str) -> Record | None:
    """The fastest record of a family of implementations among those of one row."""
    members = [r for r in some if family_of(r.impl) == family]
    return min(members, key=lambda r: r.median_us or 0.0, default=None)


def what(record: Record) -> str:
    """Layout, dtypes, epilogue and mode in a few words."""
    kinds = SHORT.get(record.a_dtype, record.a_dtype)
    if record.out_dtype != record.a_dtype:
        kinds += f"→{SHORT.get(record.out_dtype, record.out_dtype)}"
    parts = [record.layout, kinds]
    parts += [] if record.epilogue == "none" else [record.epilogue.replace("+", " + ")]
    modes = {"vjp": "gradients", "forward_and_vjp": "with gradients"}
    return ", ".join([*parts, *([modes[record.mode]] if record.mode in modes else [])])


def verdict(record: Record) -> str:
    """In one word, how a record compares with its baseline; "" if it is not compared."""
    if record.ratio is None:
        return ""
    low, high = record.ratio_low or record.ratio, record.ratio_high or record.ratio
    if abs(record.ratio - 1) < TIE or low <= 1 <= high:
        return "tied"
    return "faster" if record.ratio > 1 else "slower"


def load(folder: pathlib.Path) -> Results:
    """All records of a folder; where a row was measured again, one run of the last commit counts.

    It is the one with the most implementations, and of several such the last. Of that run alone:
    cards of one kind differ, so times of two runs cannot stand side by side. A file with a
    `.meta.json` beside it holds something else, which that file describes.
    """
    paths = [p for p in sorted(folder.glob("*.jsonl")) if not p.with_suffix(".meta.json").exists()]
    every = sorted((r for path in paths for r in records.read(path)), key=lambda r: r.time)
    kept = [r for r in every if r.status in ("ok", "counted")]
    chosen = _chosen_runs(kept)
    latest = {
        (*_measured_thing(r), r.impl): r for r in kept if chosen[_measured_thing(r)] == run_of(r)
    }
    others = {
        (*_measured_thing(r), r.impl, r.commit): r
        for r in kept
        if chosen[_measured_thing(r)] != run_of(r)
    }
    found, counted = (
        tuple(record for record in latest.values() if record.status == status)
        for status in ("ok", "counted")
    )
    pairs = ((r, others.get((*_measured_thing(r), r.impl, r.commit))) for r in found)
    repeated = tuple((r, other) for r, other in pairs if other is not None)
    runs = {(r.row, r.mode, run_of(r)) for r in found}
    # A run that goes on may time what it could not before.
    timed = {(r.row, r.mode, r.regime, r.impl) for r in found}
    refused = tuple(
        r
        for r in every
        if r.status not in ("ok", "counted")
        and (r.row, r.mode, run_of(r)) in runs
        and (r.row, r.mode, r.regime, r.impl) not in timed
    )
    tried, loads = (
        path if path.exists() else None
        for path in (folder / "tuning_times.jsonl", folder / "loads_by_threads.jsonl")
    )
    return Results(folder.name, found, counted, repeated, refused, tried, loads)


def _chosen_runs(kept: Sequence[Record]) -> dict[tuple[str, ...], Run]:
    """What is measured → the run that counts; `kept` are in the order of time."""
    last_commit = {_measured_thing(r): r.commit for r in kept}
    tried: dict[tuple[str, ...], dict[Run, set[str]]] = collections.defaultdict(dict)
    for record in kept:
        thing = _measured_thing(record)
        if record.commit == last_commit[thing]:
            # A run that goes on later stands behind those before.
            impls = tried[thing].pop(run_of(record), set())
            tried[thing][run_of(record)] = impls | {record.impl}
    return {
        thing: max(reversed(runs), key=lambda run: len(runs[run])) for thing, runs in tried.items()
    }


def _measured_thing(record: Record) -> tuple[str, ...]:
    return (record.status, line_of(record), record.mode, record.regime)


def run_of(record: Record) -> Run:
    """What tells the runs of a binary apart: the commit and the command."""
    return (record.commit, record.command)


def commits(some: Iterable[Record]) -> list[str]:
    """The commits of records, the most frequent first, in as many digits as git shows."""
    counts = collections.Counter(short_commit(r) for r in some)
    return [commit for commit, _ in counts.most_common()]


def short_commit(record: Record) -> str:
    """The commit in a few digits, and "+" where files differed from it."""
    digits = record.commit.rstrip("+")
    return digits[:9] + record.commit[len(digits) :]
