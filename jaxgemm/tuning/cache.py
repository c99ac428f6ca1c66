"""Measured choices: the tables that say which config of a kernel was the fastest for a problem.

A table is a value: frozen, hashable, read from a JSON document. There are two for a device:

    user      tuning/<device>.v1.json, which `jaxgemm.tune` writes, in the folder for caches that
              platformdirs names for jaxgemm: $XDG_CACHE_HOME or ~/.cache on Linux
    shipped   jaxgemm/tuning/tables/<device>.json, which comes with the package

    {"format": "jaxgemm tuning table", "version": 1, "device": "nvidia_h200", "entries": [
      {"kernel": "pallas.hopper.dense", "kernel_version": 1,
       "problem": {...every field...}, "config": {...every field...},
       "time_us": 173.2, "measured": {"jax": "0.11.2", "time": "2026-11-30T03:41:00+00:00"}}]}

The key of an entry is the device, the kernel with its version, and the whole canonical problem.
Documents are read once a process. One that is damaged or is something else is ignored, with one
warning; so is an entry that this version does not understand. Writers take the lock beside the
file, merge with what is there, entries of other versions included, and replace the file as a whole,
so that readers need no lock and concurrent writers lose nothing.
"""

import dataclasses
import functools
import json
import math
import os
import re
import tempfile
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import filelock
import platformdirs

from jaxgemm import dtypes
from jaxgemm.device import Device
from jaxgemm.kernel import Kernel
from jaxgemm.problem import Problem
from jaxgemm.tuning import encoding

FORMAT = "jaxgemm tuning table"
# Raised when the document changes; it is in the name of the user's file, so that two versions of
# the package do not take turns in overwriting each other's.
VERSION = 1
_TABLES = Path(__file__).parent / "tables"
# A writer holds the lock for milliseconds; one that waits this long waits for something broken.
_LOCK_TIMEOUT_S = 30.0


class TuningWarning(UserWarning):
    """A tuning table could not be read or written; jaxgemm goes on without it."""


@dataclasses.dataclass(frozen=True)
class Entry:
    """The fastest config of one kernel for one problem.

    Attributes:
      kernel: the kernel's name.
      kernel_version: its version; an entry of another version is never used.
      problem: the canonical problem, as `key_of` has it.
      config: the fields of the config, as canonical JSON.
      time_us: what it took.
      measured: (what, value) pairs that say how.
    """

    kernel: str
    kernel_version: int
    problem: Problem
    config: str
    time_us: float
    measured: tuple[tuple[str, str], ...] = ()

    def is_of(self, kernel: Kernel) -> bool:
        """Whether this is an entry of a kernel as it is now."""
        return (self.kernel, self.kernel_version) == (kernel.name, kernel.version)


@dataclasses.dataclass(frozen=True)
class Table:
    """Entries, at most one for a kernel, its version and a problem."""

    entries: tuple[Entry, ...] = ()

    @functools.cached_property
    def _hash(self) -> int:
        return hash(self.entries)

    def __hash__(self) -> int:
        return self._hash

    @functools.cached_property
    def of_problem(self) -> Mapping[Problem, tuple[Entry, ...]]:
        """Problem → its entries."""
        found: dict[Problem, list[Entry]] = {}
        for entry in self.entries:
            found.setdefault(entry.problem, []).append(entry)
        return {problem: tuple(entries) for problem, entries in found.items()}

    def find(self, problem: Problem, kernel: Kernel) -> Entry | None:
        """The entry of exactly this problem."""
        found = self.of_problem.get(key_of(problem), ())
        return next((entry for entry in found if entry.is_of(kernel)), None)


@dataclasses.dataclass(frozen=True)
class Tables:
    """What was measured on a device: by the user, and by whoever made the package."""

    user: Table = dataclasses.field(default_factory=Table)
    shipped: Table = dataclasses.field(default_factory=Table)

    def find(self, problem: Problem, kernel: Kernel) -> Entry | None:
        """The entry of exactly this problem, the user's before a shipped one."""
        return self.user.find(problem, kernel) or self.shipped.find(problem, kernel)

    def nearest(self, problem: Problem, kernel: Kernel, limit: float) -> list[Entry]:
        """Entries of similar problems, nearest first, the user's before shipped ones."""
        key, scored = key_of(problem), []
        for table in (self.user, self.shipped):
            for neighbour, entries in table.of_problem.items():
                far = distance(key, neighbour)
                if 0 < far <= limit:
                    scored += [(far, entry) for entry in entries if entry.is_of(kernel)]
        return [entry for _, entry in sorted(scored, key=lambda pair: pair[0])]


def key_of(problem: Problem) -> Problem:
    """The canonical problem under which measurements are kept.

    Every field counts, but for a precision that means nothing: other operands than float32 are
    multiplied as they are stored.
    """
    if dtypes.compute(problem.dtype("a"), problem.dtype("b")).name == "float32":
        return problem
    return dataclasses.replace(problem, spec=problem.spec.replace(precision="default"))


def distance(one: Problem, other: Problem) -> float:
    """How far two problems are apart: Σ |log2| of the ratios of sizes; infinite between kinds."""
    if one.spec != other.spec or one.dtypes != other.dtypes or one.size.keys() != other.size.keys():
        return math.inf
    total = 0.0
    for label, size in one.sizes:
        if size != other.size[label]:
            if min(size, other.size[label]) <= 0:
                return math.inf
            total += abs(math.log2(size / other.size[label]))
    return total


def config_text(config: Any) -> str:
    """A config's fields as canonical JSON, which two configs share only if they are equal."""
    return _text(encoding.to_json(config))


def _text(data: Any) -> str:
    return json.dumps(data, sort_keys=True, separators=(",", ":"))


def _entry_to_json(entry: Entry) -> dict[str, Any]:
    data = encoding.to_json(entry)
    return {**data, "config": json.loads(entry.config), "measured": dict(entry.measured)}


def _entry_from_json(data: Any) -> Entry:
    if not isinstance(data, dict) or not isinstance(data.get("config"), dict):
        raise ValueError("an entry is an object with an object `config`")
    measured = data.get("measured", {})
    if not isinstance(measured, dict):
        raise ValueError("`measured` is an object")
    changed = {"config": _text(data["config"]), "measured": [[k, v] for k, v in measured.items()]}
    entry = encoding.from_json(Entry, {**data, **changed})
    if not 0 < entry.time_us < math.inf:
        raise ValueError(f"time_us: {entry.time_us}")
    return entry


# Documents.


def _document(device_name: str, entries: Iterable[Any]) -> str:
    """The text of a table, an entry a line, sorted."""
    head = {"format": FORMAT, "version": VERSION, "device": device_name}
    lines = ",\n".join(sorted(json.dumps(data, sort_keys=True) for data in entries))
    return json.dumps(head)[:-1] + f', "entries": [\n{lines}\n]}}\n'


def parse(text: str, device_name: str) -> tuple[list[Any], str | None]:
    """The entries of a document as JSON data, or none and what is wrong with it."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        return [], f"it is not JSON: {error}"
    expected = {"format": FORMAT, "version": VERSION, "device": device_name}
    if not isinstance(data, dict) or not isinstance(data.get("entries"), list):
        return [], "it is not a tuning table"
    for name, value in expected.items():
        if data.get(name) != value:
            return [], f"{name} is {data.get(name)!r}, and should be {value!r}"
    return data["entries"], None


def load(path: Path, device_name: str) -> Table:
    """The table in a file; empty if there is none, or, with a warning, if it cannot be used."""
    data, fault = _read(path, device_name)
    entries, refused = _entries(data)
    faults = [] if fault is None else [fault]
    faults += [f"an entry is ignored: {reason}" for _, reason in refused]
    if faults:
        more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
        _warn_once(f"tuning table {path}: {faults[0]}{more}")
    return Table(tuple(entries.values()))


def _read(path: Path, device_name: str) -> tuple[list[Any], str | None]:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return [], None
    except (OSError, UnicodeDecodeError) as error:
        return [], f"it cannot be read: {error}"
    return parse(text, device_name)


# What makes an entry the same as another: the values, however a file writes them. Versions that
# knew fewer fields wrote fewer.
_Key = tuple[str, int, Problem]


def _key(entry: Entry) -> _Key:
    return entry.kernel, entry.kernel_version, entry.problem


def _entries(data: Iterable[Any]) -> tuple[dict[_Key, Entry], list[tuple[Any, str]]]:
    """The entries of a document, of equal ones the last that was measured; others with a reason."""
    entries: dict[_Key, Entry] = {}
    refused = []
    for item in data:
        try:
            entry = _entry_from_json(item)
        except (ValueError, TypeError) as error:
            refused.append((item, str(error)))
            continue
        other = entries.get(_key(entry))
        if other is None or _measured_at(other) <= _measured_at(entry):
            entries[_key(entry)] = entry
    return entries, refused


def _measured_at(entry: Entry) -> str:
    return dict(entry.measured).get("time", "")


@functools.cache
def _warn_once(text: str) -> None:
    warnings.warn(text, TuningWarning, stacklevel=3)


# The files of this user, and the tables of this process.


def user_path(device_name: str, folder: Path | None = None) -> Path:
    """Where the user's table of a device is kept.

    Raises:
      RuntimeError: the user has no folder for caches, as one without a home.
    """
    if folder is None:
        folder = platformdirs.user_cache_path("jaxgemm") / "tuning"
        # What older versions of platformdirs return to a user without a home.
        if not folder.is_absolute():
            raise RuntimeError(f"{folder} is relative: $HOME or $XDG_CACHE_HOME should be absolute")
    return folder / f"{_file_name(device_name)}.v{VERSION}.json"


def _file_name(device_name: str) -> str:
    return re.sub(r"[^a-z0-9._-]", "_", device_name.lower())


@functools.cache
def current(device: Device) -> Tables:
    """The tables of this process for a device, as they were when they were first asked for."""
    try:
        user = load(user_path(device.name), device.name)
    except RuntimeError as error:
        _warn_once(f"no tuning table of the user: {error}")
        user = Table()
    shipped = load(_TABLES / f"{_file_name(device.name)}.json", device.name)
    return Tables(user, shipped)


def forget() -> None:
    """Makes the next question for the tables of this process read them again."""
    current.cache_clear()


def save(entries: Iterable[Entry], device_name: str, folder: Path | None = None) -> Path | None:
    """Merges entries into the user's table.

    Returns:
      The file; None, with a warning, if it cannot be written or others keep its lock.
    """
    try:
        path = user_path(device_name, folder)
        path.parent.mkdir(parents=True, exist_ok=True)
        merge(entries, device_name, path)
    except (OSError, RuntimeError) as error:
        _warn_once(f"the tuning table of {device_name} is not saved: {error}")
        return None
    return path


def merge(entries: Iterable[Entry], device_name: str, path: Path) -> None:
    """Merges entries into the table in a file, where they replace those of the same key.

    What is no entry, as one of a later version, stays as it is.

    Raises:
      OSError: the file cannot be written, or its lock not be taken in time.
      NotImplementedError: the file system has no locks.
    """
    new = {_key(entry): entry for entry in entries}
    lock = path.with_suffix(".lock")
    with filelock.FileLock(lock, timeout=_LOCK_TIMEOUT_S, poll_interval=0.01):
        data, fault = _read(path, device_name)
        if fault is not None:
            # It may be somebody's: set aside, not lost.
            path.replace(path.with_suffix(".ignored"))
            _warn_once(f"tuning table {path}: {fault}")
        old, refused = _entries(data)
        kept = [_entry_to_json(entry) for entry in {**old, **new}.values()]
        kept += [item for item, _ in refused if isinstance(item, dict)]
        _replace(path, _document(device_name, kept))
    forget()


def _replace(path: Path, text: str) -> None:
    """Writes a file so that readers see the old or the new one, never a part."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
