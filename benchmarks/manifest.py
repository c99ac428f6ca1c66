"""The rows of `manifest.csv`: which GEMMs are measured."""

import csv
import dataclasses
import functools
import itertools
import pathlib
import re
from collections.abc import Iterable, Sequence

MODES = ("forward", "vjp", "forward_and_vjp")
_PATH = pathlib.Path(__file__).with_name("manifest.csv")


@dataclasses.dataclass(frozen=True)
class Row:
    """One GEMM to measure: a line of the manifest. Dtypes have numpy's names.

    Attributes:
      name: unique.
      suites: what it belongs to, separated by spaces; the first is its family.
      mode: "forward", "vjp", "forward_and_vjp", or empty: whatever is asked for.
      m: rows of d. For `ragged_m` of all groups together.
      n: columns of d; of both halves together for a gated epilogue.
      k: length of the contraction; for `ragged_k` of all groups together.
      batch: number of matrices.
      groups: number of groups, 0 where there are none.
      trans_a: whether a is stored as (k, m).
      trans_b: whether b is stored as (n, k).
      layout: "row"; "row+bcast_b": b is shared by the batch; "row+batch_interleaved": the batch
        axis of a and d is the second; "ragged_m", "ragged_k", "masked_m": grouped.
      distribution: how rows are dealt to groups; see `groups.py`.
      scaling: of 8-bit operands; "tensor" is one factor for the product.
      a_dtype: of a.
      b_dtype: of b.
      compute_dtype: in which products are summed; "tfloat32" lets float32 operands be rounded.
      out_dtype: of d.
      alpha: factor of the product.
      beta: factor of c; at 0 there is no c.
      epilogue: "none" or parts joined by "+"; "residual" and "accumulate" say what c is for.
      alignment: bytes to which operands are aligned.
      workspace_bytes: largest workspace, empty for no limit.
      frequency: weight of the row in a mean.
      source: where the sizes come from.
    """

    name: str
    m: int
    n: int
    k: int
    suites: str = "sweep"
    mode: str = ""
    batch: int = 1
    groups: int = 0
    trans_a: bool = False
    trans_b: bool = False
    layout: str = "row"
    distribution: str = ""
    scaling: str = ""
    a_dtype: str = "bfloat16"
    b_dtype: str = "bfloat16"
    compute_dtype: str = "float32"
    out_dtype: str = "bfloat16"
    alpha: float = 1.0
    beta: float = 0.0
    epilogue: str = "none"
    alignment: int = 256
    workspace_bytes: int | None = None
    frequency: float = 1.0
    source: str = ""

    @property
    def family(self) -> str:
        """The suite that the row is listed under."""
        return self.suites.split()[0]

    def __str__(self) -> str:
        size = f"{self.m}x{self.n}x{self.k}"
        size += f" batch {self.batch}" if self.batch > 1 else ""
        size += f" groups {self.groups}" if self.groups else ""
        kinds = f"{self.a_dtype}·{self.b_dtype}→{self.out_dtype}"
        tail = "" if self.epilogue == "none" else f" {self.epilogue}"
        return f"{size} {'NT'[self.trans_a]}{'NT'[self.trans_b]} {kinds}{tail}"


_FIELDS = {field.name: field.type for field in dataclasses.fields(Row)}


def _parse(name: str, text: str) -> object:
    kind = _FIELDS[name]
    if kind is bool:
        return {"0": False, "1": True}[text]
    if kind == int | None:
        return int(text) if text else None
    return kind(text)  # pyright: ignore[reportCallIssue]


def parse(lines: Iterable[str]) -> tuple[Row, ...]:
    """The rows of CSV text.

    Raises:
      ValueError: a column is missing or unknown, a value does not fit, a name is used twice.
    """
    reader = csv.DictReader(lines)
    if set(reader.fieldnames or ()) != set(_FIELDS):
        wrong = sorted(set(reader.fieldnames or ()) ^ set(_FIELDS))
        raise ValueError(f"manifest: columns {wrong} should not differ from those of Row")
    rows = []
    for number, line in enumerate(reader, 2):
        try:
            row = Row(**{name: _parse(name, text) for name, text in line.items()})  # pyright: ignore
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"manifest: line {number}: {error}") from None
        if row.mode not in ("", *MODES):
            raise ValueError(f"manifest: line {number}: mode {row.mode!r} should be one of {MODES}")
        rows.append(row)
    names = [row.name for row in rows]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"manifest: {twice} should each be the name of one row")
    return tuple(rows)


@functools.cache
def rows() -> tuple[Row, ...]:
    """Every row of the manifest."""
    with _PATH.open(newline="") as file:
        return parse(file)


def select(suites: Sequence[str], pattern: str | None) -> tuple[Row, ...]:
    """The rows of any of these suites ("all" is every one) whose name the pattern is found in.

    Raises:
      ValueError: there is no such suite.
    """
    known = {suite for row in rows() for suite in row.suites.split()}
    if unknown := set(suites) - known - {"all"}:
        raise ValueError(f"--suite: {sorted(unknown)} should be among {sorted(known | {'all'})}")
    return tuple(
        row
        for row in rows()
        if ("all" in suites or set(suites) & set(row.suites.split()))
        and (pattern is None or re.search(pattern, row.name))
    )


def span(flag: str, text: str) -> tuple[int, ...]:
    """The sizes that a flag names: "4096", "1024,4096", or "1024:8192:1024" with both ends.

    Raises:
      ValueError: it is none of these.
    """
    parts = text.split(":")
    try:
        if len(parts) == 1:
            return tuple(int(x) for x in text.split(","))
        first, last, *step = (int(x) for x in parts)
        return tuple(range(first, last + 1, *step))
    except (TypeError, ValueError):
        message = f"{flag}: {text!r} should be a size, 1024,4096 or first:last:step"
        raise ValueError(message) from None


def _sweep_name(row: Row) -> str:
    """Says all of a row that is not the default: two rows of sweeps with one name are the same."""
    parts = [f"sweep_{row.m}x{row.n}x{row.k}", row.a_dtype]
    parts += ["nt"[row.trans_a] + "nt"[row.trans_b]] if row.trans_a or row.trans_b else []
    parts += [f"b{row.batch}"] if row.batch > 1 else []
    parts += row.epilogue.split("+") if row.epilogue != "none" else []
    parts += [f"{row.out_dtype}out"] if row.out_dtype != row.a_dtype else []
    return "_".join(parts)


def sweep(ms: str, ns: str, ks: str, **common: object) -> tuple[Row, ...]:
    """A row for each combination; a size that is empty follows m."""
    found = []
    sizes = (("--m", ms), ("--n", ns), ("--k", ks))
    for m, n, k in itertools.product(*(span(flag, text or "0") for flag, text in sizes)):
        n, k = n or m, k or m
        row = Row("", m, n, k, **common)  # pyright: ignore
        found.append(dataclasses.replace(row, name=_sweep_name(row)))
    return tuple(found)
