"""Result records: one JSON object a line, validated on write and on read.

A record is one implementation of one row in one mode and one regime. One without a time says why in
`status` and `reason`. Times, percentiles included, are kernel times where `clock` is "cupti", as on
a GPU, and the wall clock of calls on the host where it is "wall".
"""

import dataclasses
import json
import math
import pathlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

# ok: timed; counted: counters instead of times; wrong: does not pass the gate; unsupported: cannot
# express or run the row; failed: raised.
STATUSES = ("ok", "counted", "wrong", "unsupported", "failed")
# How calls were launched when their kernel times were checked; see `graphs.Check`.
CHECKS = ("graph", "chain", "calls")
_TIMES = ("median_us", "p10_us", "p90_us", "p99_us")


@dataclasses.dataclass(frozen=True)
class Record:
    """What is kept of one measurement.

    Attributes:
      row: name in the manifest, or of the sweep; "one beside another" of `side_by_side.py`.
      suite: the row's family.
      m, n, k, batch, groups: sizes.
      distribution: how rows are dealt to groups.
      trans_a, trans_b: layouts.
      a_dtype, b_dtype, compute_dtype, out_dtype: numpy's names, and "tfloat32".
      epilogue: of the row.
      mode: "forward", "vjp" or "forward_and_vjp".
      regime: "burst" or "sustained".
      impl: a kernel's registry name, that of a compiled instance, "jaxgemm", "jnp.dot", "xla.best",
        "torch.mm" …
      config: what the implementation chose, as text.
      status: one of `STATUSES`.
      reason: why there is no time, or why its check says nothing.
      clock: "cupti" or "wall".
      samples: timed calls.
      median_us, p10_us, p90_us, p99_us: microseconds a call; by which clock, `clock` says.
      check: how calls were launched when their kernel times were checked, one of `CHECKS`.
      graph_us: wall clock of a call, gaps between kernels included, for "graph" and "chain"; of
        short calls in a graph that of the device. wall_us: the same for "calls".
      check_cupti_us: kernel time of a call in the same conditions.
      clocks_agree: whether these two are the same within 5 %; None where gaps between launches
        would decide.
      agrees: only in older records, without `check`: the same of times under different clocks.
      alternated: whether launches alternated with those of the other implementations.
      kernels: names of the kernels of one call.
      tflops: useful operations over the median, 1e12 a second.
      gbps: bytes that must be moved over the median, 1e9 a second.
      ratio: the baseline's median over this one: > 1 is faster; ratio_low, ratio_high: its 95 %
        bootstrap interval.
      baseline: the implementation that `ratio` refers to, or the row, of `side_by_side.py`.
      max_error_ratio: largest error over its bound; a chain of rounded operations may exceed 1.
      compile_seconds: tracing and compiling.
      registers, spill_bytes, stack_bytes, smem_bytes: what ptxas said of our kernels, or ncu.
      waves, tail_utilisation: of our kernels, by the cost model.
      dram_bytes, l2_bytes: hardware counters of one call, all its kernels together. Shares are of
        the busiest kernel: occupancy_percent of the warps that fit;
        tensor_active_percent of the cycles, those in which the tensor pipe was busy;
        tensor_percent of the instructions that it could be given, of which one of wgmma keeps it
        busy for many cycles.
      sm_percent, l1_percent, l2_percent, dram_percent: how near each came to its limit.
      predicted_dram_bytes, predicted_l2_bytes: what must be moved, and what the cost model expects.
      rotation_bytes: operands that are rotated through; inputs: how they are drawn.
      sm_mhz, power_w, temperature_c, throttle: what NVML saw meanwhile.
      device, driver, versions, commit, time, command: where, with what, when and how. Among the
        versions are those of Python and packages, and "tables": a hash of the tuning tables that
        were in force, the user's and the shipped one.
      tags: whatever the command line adds.
    """

    row: str
    suite: str
    m: int
    n: int
    k: int
    batch: int
    groups: int
    trans_a: bool
    trans_b: bool
    a_dtype: str
    b_dtype: str
    compute_dtype: str
    out_dtype: str
    epilogue: str
    mode: str
    regime: str
    impl: str
    status: str
    device: str
    versions: dict[str, str]
    commit: str
    time: str
    command: str
    driver: str | None = None
    distribution: str = ""
    config: str = ""
    reason: str = ""
    clock: str | None = None
    samples: int = 0
    median_us: float | None = None
    p10_us: float | None = None
    p90_us: float | None = None
    p99_us: float | None = None
    check: str | None = None
    graph_us: float | None = None
    wall_us: float | None = None
    check_cupti_us: float | None = None
    clocks_agree: bool | None = None
    agrees: bool | None = None
    alternated: bool | None = None
    kernels: tuple[str, ...] = ()
    tflops: float | None = None
    gbps: float | None = None
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    baseline: str | None = None
    max_error_ratio: float | None = None
    compile_seconds: float | None = None
    registers: int | None = None
    spill_bytes: int | None = None
    stack_bytes: int | None = None
    smem_bytes: int | None = None
    waves: float | None = None
    tail_utilisation: float | None = None
    dram_bytes: float | None = None
    l2_bytes: float | None = None
    tensor_percent: float | None = None
    tensor_active_percent: float | None = None
    occupancy_percent: float | None = None
    sm_percent: float | None = None
    l1_percent: float | None = None
    l2_percent: float | None = None
    dram_percent: float | None = None
    predicted_dram_bytes: float | None = None
    predicted_l2_bytes: float | None = None
    rotation_bytes: int | None = None
    inputs: str = ""
    sm_mhz: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    throttle: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()

    @property
    def size(self) -> str:
        """The sizes in a few characters."""
        many = f"{self.batch}×" if self.batch > 1 else ""
        groups = f" in {self.groups}" if self.groups else ""
        return f"{many}{self.m}×{self.n}×{self.k}{groups}"

    @property
    def is_baseline(self) -> bool:
        """Whether its ratio is to itself."""
        return self.baseline == self.impl or self.row == f"{self.baseline} beside {self.baseline}"

    @property
    def layout(self) -> str:
        """Of a and b: "NN", "NT", "TN" or "TT"."""
        return "NT"[self.trans_a] + "NT"[self.trans_b]


def failed(record: Record, error: Exception) -> Record:
    """The record of something that raised."""
    reason = f"{type(error).__name__}: {str(error).strip()[:400]}"
    return dataclasses.replace(record, status="failed", reason=reason)


_KINDS: dict[str, Any] = {field.name: field.type for field in dataclasses.fields(Record)}
_REQUIRED = {f.name for f in dataclasses.fields(Record) if f.default is dataclasses.MISSING}


def _fits(value: Any, kind: Any) -> bool:
    if kind == tuple[str, ...]:
        return isinstance(value, list | tuple) and all(isinstance(x, str) for x in value)
    if kind == dict[str, str]:
        return isinstance(value, Mapping) and all(isinstance(x, str) for x in value.values())
    options = getattr(kind, "__args__", (kind,))
    if float in options and isinstance(value, int) and not isinstance(value, bool):
        return True
    if isinstance(value, bool) and bool not in options:
        return False
    return isinstance(value, tuple(options))


def validate(fields: Mapping[str, Any]) -> None:
    """Raises ValueError unless the fields are those of a record, and consistent."""
    if unknown := sorted(set(fields) - set(_KINDS)):
        raise ValueError(f"record: {unknown} should not be there")
    if missing := sorted(_REQUIRED - set(fields)):
        raise ValueError(f"record: {missing} should be there")
    for name, value in fields.items():
        if not _fits(value, _KINDS[name]):
            raise ValueError(f"record: {name} = {value!r} should be {_KINDS[name]}")
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"record: {name} = {value} should be finite")
    if fields["status"] not in STATUSES:
        raise ValueError(f"record: status {fields['status']!r} should be one of {STATUSES}")
    _validate_check(fields)
    timed = [name for name in _TIMES if fields.get(name) is not None]
    if fields["status"] == "ok" and len(timed) < len(_TIMES):
        raise ValueError(f"record: {fields['row']} is ok and should have all of {_TIMES}")
    if fields["status"] != "ok" and timed:
        raise ValueError(f"record: {fields['row']} is {fields['status']} and should have no time")
    if fields["status"] not in ("ok", "counted") and not fields.get("reason"):
        raise ValueError(f"record: {fields['row']} is {fields['status']} and should have a reason")


def _validate_check(fields: Mapping[str, Any]) -> None:
    check = fields.get("check")
    if check not in (None, *CHECKS):
        raise ValueError(f"record: check {check!r} should be one of {CHECKS}")
    wall = "wall_us" if check == "calls" else "graph_us"
    needed = {
        wall: check is not None,
        "check": fields.get("graph_us") is not None,
        "check_cupti_us": fields.get("clocks_agree") is not None,
    }
    for name, needs in needed.items():
        if needs and fields.get(name) is None:
            raise ValueError(f"record: {fields['row']} has a check and should have {name}")


def to_json(record: Record) -> str:
    """One line, without the fields that are unknown."""
    fields = {
        name: value for name, value in dataclasses.asdict(record).items() if value not in (None, ())
    }
    validate(fields)
    return json.dumps(fields, allow_nan=False)


def from_json(line: str) -> Record:
    """The record of one line.

    Raises:
      ValueError: it is not JSON, or not a record.
    """
    fields = json.loads(line)
    if not isinstance(fields, dict):
        raise ValueError(f"record: {line[:80]!r} should be a JSON object")
    validate(fields)
    lists = {name: tuple(x) for name, x in fields.items() if isinstance(x, list)}
    return Record(**{**fields, **lists})


def read(path: str | pathlib.Path) -> tuple[Record, ...]:
    """Every record of a file.

    Raises:
      ValueError: a line is not a record; the message has its number.
    """
    return tuple(_numbered(path, pathlib.Path(path).read_text().splitlines()))


def _numbered(path: str | pathlib.Path, lines: Iterable[str]) -> Iterator[Record]:
    for number, line in enumerate(lines, 1):
        try:
            yield from_json(line)
        except ValueError as error:
            raise ValueError(f"{path}:{number}: {error}") from None


def append(path: str | pathlib.Path, record: Record) -> None:
    """Adds a line, so that what is measured survives whatever comes next."""
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(to_json(record) + "\n")
