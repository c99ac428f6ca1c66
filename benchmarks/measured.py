"""The records of one device, and the questions that tables and pictures ask of them."""

import dataclasses
import pathlib
from collections.abc import Iterable, Sequence

from benchmarks import manifest, records
from benchmarks.records import Record

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
    """Records with a time, those of the last run of each row, mode and regime.

    Attributes:
      name: the folder, such as "nvidia_h200".
      found: they.
      counted: records with counters instead of a time, in the same way.
      repeated: records of `found` with those of an earlier run of the same commit.
    """

    name: str
    found: tuple[Record, ...]
    counted: tuple[Record, ...] = ()
    repeated: tuple[tuple[Record, Record], ...] = ()

    def of_suite(self, suite: str, regime: str = "burst") -> dict[str, list[Record]]:
        """row → its records, in the order of the manifest, then those that it does not list."""
        order = [r.name for r in manifest.rows() if suite in r.suites.split()]
        order += [r.row for r in self.found if r.suite == suite and r.row not in order]
        rows: dict[str, list[Record]] = {name: [] for name in order}
        for record in self.found:
            if record.regime == regime and record.row in rows:
                rows[record.row].append(record)
        return {name: some for name, some in rows.items() if some}

    def bandwidth_gbps(self) -> float | None:
        """The best measured bandwidth."""
        rates = [r.gbps for r in self.found if r.suite == "ceiling" and r.gbps]
        return max(rates, default=None)

    def peak_tflops(self, dtypes: Sequence[str]) -> float | None:
        """The rate of the fastest product of operands of one of these dtypes."""
        rates = [r.tflops for r in self.found if r.a_dtype in dtypes and r.tflops]
        return max(rates, default=None)


def ours(some: Iterable[Record]) -> Record | None:
    """The record of `jaxgemm` among those of one row."""
    return next((r for r in some if r.impl == "jaxgemm"), None)


def fastest(some: Iterable[Record], family: str) -> Record | None:
    """The fastest record of a family of implementations among those of one row."""
    members = [r for r in some if family_of(r.impl) == family]
    return min(members, key=lambda r: r.median_us or 0.0, default=None)


def load(folder: pathlib.Path) -> Results:
    """All records of a folder; where a row was measured again, the last run counts.

    Of that run alone: cards of one kind differ, so times of two runs cannot stand side by side. A
    file with a `.meta.json` beside it holds something else, which that file describes.
    """
    paths = [p for p in sorted(folder.glob("*.jsonl")) if not p.with_suffix(".meta.json").exists()]
    kept = [r for path in paths for r in records.read(path) if r.status in ("ok", "counted")]
    kept.sort(key=lambda r: r.time)
    last_run = {_measured_thing(r): _run(r) for r in kept}
    latest = {
        (*_measured_thing(r), r.impl): r for r in kept if last_run[_measured_thing(r)] == _run(r)
    }
    found, counted = (
        tuple(record for record in latest.values() if record.status == status)
        for status in ("ok", "counted")
    )
    earlier = {
        (*_measured_thing(r), r.impl, r.commit): r
        for r in kept
        if last_run[_measured_thing(r)] != _run(r)
    }
    pairs = ((r, earlier.get((*_measured_thing(r), r.impl, r.commit))) for r in found)
    repeated = tuple((r, before) for r, before in pairs if before is not None)
    return Results(folder.name, found, counted, repeated)


def _measured_thing(record: Record) -> tuple[str, ...]:
    return (record.status, record.row, record.mode, record.regime)


def _run(record: Record) -> tuple[str, str]:
    return (record.commit, record.command)
