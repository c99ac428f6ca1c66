"""Tables of measured choices: their keys, damaged files, writers at the same time."""

import contextlib
import dataclasses
import json
import math
import multiprocessing
import threading
import warnings
from pathlib import Path
from typing import Any

import filelock
import jax
import jax.numpy as jnp
import numpy as np
import platformdirs
import pytest

import jaxgemm
from jaxgemm import device, dispatch
from jaxgemm.policy import Policy
from jaxgemm.problem import Problem
from jaxgemm.tuning import cache, encoding, search
from jaxgemm.tuning.cache import Table, TuningWarning
from tests.kernel_cases import EXTRAS, LARGE_CASES, SMALL_CASES
from tests.tuning_fakes import (
    SMALL,
    TALL,
    Clock,
    Config,
    entry_of,
    fake_kernel,
    only_kernels,
    product,
)

H200, CPU = device.named("nvidia_h200"), device.CPU
ROOT = Path(__file__).parent.parent
# As a user has it: a kernel that is wrong or missing never stops a search or a plan.
AUTO = Policy()

pytestmark = pytest.mark.usefixtures("home")


# Values and documents.


def _all_problems() -> dict[str, Problem]:
    cases = {name: case.problem() for name, case in (SMALL_CASES | LARGE_CASES).items()}
    x, w, sizes = np.ones((8, 4)), np.ones((3, 4, 2)), np.array([1, 2, 3], np.int32)

    def loss(w: Any) -> jax.Array:
        return jaxgemm.grouped_gemm(x, w, sizes, bias=np.ones((3, 2))).sum()

    found = search.problems_of(jax.grad(loss), w)
    found += search.problems_of(lambda: jaxgemm.gated_gemm(x, w, w, batch_invariant=True))
    return cases | {f"traced_{i}": problem for i, problem in enumerate(found)}


def test_every_problem_survives_a_table(home: Path) -> None:
    entries = [
        entry_of(problem, time_us=1 + i) for i, problem in enumerate(_all_problems().values())
    ]
    assert {e.problem.spec.ragged for e in entries} == {None, "m", "k"}
    assert any(e.problem.spec.gated for e in entries)
    path = cache.save(entries, "nvidia_h200")
    assert path == home / "nvidia_h200.v1.json"
    table = cache.load(path, "nvidia_h200")
    by_problem = {entry.problem: entry for entry in entries}
    assert {entry.problem: entry for entry in table.entries} == by_problem
    for problem in _all_problems().values():
        found = table.find(problem, fake_kernel())
        assert found == by_problem[cache.key_of(problem)]
        assert found.problem.dtype("d") == problem.dtype("d")


# A value of each field of a problem and of a spec that differs from the one in `product(**FULL)`.
FULL: dict[str, Any] = {"extras": EXTRAS, "activation": "gelu", "save": True}
SPEC_CHANGES: dict[str, Any] = {
    "operands": ("a", "b", "c", "bias", "alpha"),
    "a_contract": 0,
    "b_contract": 1,
    "out_dtype": np.dtype("float32"),
    "residual_dtype": np.dtype("float64"),
    "precision": "highest",
    "ragged": "m",
    "batch": (("a", "b", "d"),),
    "activation": "silu",
    "clamp": (None, 6.0),
    "save_preactivation": False,
    "batch_invariant": True,
    "sum_dtype": np.dtype("float32"),
    "inside": (("a", "d"),),
}
PROBLEM_CHANGES: dict[str, Any] = {
    "sizes": (("k", 64), ("m", 256), ("n", 512)),
    "dtypes": (("a", "float16"), ("b", "float16")),
}


def test_every_field_of_a_problem_is_in_the_key() -> None:
    full = product(**FULL, dtype="float32")
    names = {field.name for field in dataclasses.fields(full.spec)}
    assert SPEC_CHANGES.keys() == names, "name the new field in SPEC_CHANGES"
    names = {field.name for field in dataclasses.fields(full)} - {"spec"}
    assert PROBLEM_CHANGES.keys() == names, "name the new field in PROBLEM_CHANGES"
    changed = [full.spec.replace(**{name: value}) for name, value in SPEC_CHANGES.items()]
    others = [dataclasses.replace(full, spec=spec) for spec in changed]
    others += [dataclasses.replace(full, **{n: x}) for n, x in PROBLEM_CHANGES.items()]
    everything = [full, *others]
    assert len({json.dumps(encoding.to_json(p)) for p in everything}) == len(everything)
    for problem in everything:
        table = Table((entry_of(problem),))
        assert [other for other in everything if table.find(other, fake_kernel())] == [problem]
    table = Table((entry_of(full),))
    assert table.find(full, fake_kernel(version=2)) is None
    assert table.find(full, fake_kernel("fake.two")) is None


def test_a_precision_that_means_nothing_is_not_in_the_key() -> None:
    for dtype, same in (("bfloat16", True), ("float32", False)):
        problem = product(dtype=dtype)
        exact = dataclasses.replace(problem, spec=problem.spec.replace(precision="highest"))
        table = Table((entry_of(exact),))
        assert (table.find(problem, fake_kernel()) is not None) is same
        assert table.find(exact, fake_kernel()) is not None


@dataclasses.dataclass(frozen=True)
class Nested:
    kind: np.dtype
    inner: Config
    maybe: float | None = None


def test_configs_are_told_apart_by_every_field() -> None:
    base = Nested(np.dtype("float32"), SMALL)
    others = [
        dataclasses.replace(base, kind=jnp.dtype("bfloat16")),
        dataclasses.replace(base, inner=TALL),
        dataclasses.replace(base, maybe=1.5),
        *(dataclasses.replace(base, inner=dataclasses.replace(SMALL, stages=n)) for n in (1, 2)),
        dataclasses.replace(base, inner=dataclasses.replace(SMALL, note="x")),
    ]
    assert len({cache.config_text(config) for config in (base, *others)}) == 7
    for config in (base, *others):
        assert encoding.from_json(Nested, encoding.to_json(config)) == config


@pytest.mark.parametrize(
    "data",
    [
        3,
        {},
        {"cta_tile": [1, 2]},
        {"cta_tile": [1, 2, "3"]},
        {"cta_tile": [1, 2, 3], "unknown": 1},
        {"stages": True},
        {"stages": 1.5},
        {"note": 4},
    ],
)
def test_what_is_not_a_config_is_refused(data: Any) -> None:
    kind = Nested if data == {} else Config
    with pytest.raises(ValueError, match="is not a"):
        encoding.from_json(kind, data)


def test_an_absent_field_takes_its_default() -> None:
    assert encoding.from_json(Config, {"cta_tile": [64, 64, 64]}) == SMALL


# Files that are not what they should be.

GOOD = json.loads(cache._document("nvidia_h200", []))


def _damaged() -> dict[str, bytes]:
    text = cache._document("nvidia_h200", [cache._entry_to_json(entry_of(product()))])
    return {
        "empty": b"",
        "truncated": text[: len(text) // 2].encode(),
        "binary": bytes(range(256)),
        "deep": b"[" * 100_000,
        "a list": b"[1, 2]",
        "foreign": b'{"name": "my-settings", "entries": [1]}',
        "no entries": json.dumps({**GOOD, "entries": 7}).encode(),
        "other version": json.dumps({**GOOD, "version": 99}).encode(),
        "other device": json.dumps({**GOOD, "device": "nvidia_b200"}).encode(),
        "odd entries": json.dumps({**GOOD, "entries": [None, 3, {}, {"config": {}}]}).encode(),
    }


@pytest.mark.parametrize("kind", _damaged())
def test_a_damaged_or_foreign_file_is_ignored_with_one_warning(kind: str, home: Path) -> None:
    home.mkdir(parents=True)
    path = home / "nvidia_h200.v1.json"
    path.write_bytes(_damaged()[kind])
    with only_kernels(fake_kernel()):
        with pytest.warns(TuningWarning) as caught:
            plans = [dispatch.plan(product(m), H200, AUTO) for m in (64, 128, 192)]
        dispatch.forget()
        with warnings.catch_warnings(action="error"):
            plans.append(dispatch.plan(product(256), H200, AUTO))
    assert [str(path) in str(w.message) for w in caught] == [True]
    assert {plan.chosen_by for plan in plans} == {"cost model"}


@pytest.mark.parametrize("kind", _damaged())
def test_a_search_sets_a_damaged_file_aside_and_writes_a_good_one(kind: str, home: Path) -> None:
    home.mkdir(parents=True)
    path, content = home / "nvidia_h200.v1.json", _damaged()[kind]
    path.write_bytes(content)
    entry = entry_of(product())
    with contextlib.nullcontext() if kind == "odd entries" else pytest.warns(TuningWarning):
        assert cache.save([entry], "nvidia_h200") == path
    with contextlib.suppress(TuningWarning), warnings.catch_warnings(action="ignore"):
        assert cache.load(path, "nvidia_h200").entries == (entry,)
    if kind != "odd entries":
        assert path.with_suffix(".ignored").read_bytes() == content


def test_entries_that_are_wrong_are_ignored_and_others_used(home: Path) -> None:
    good, other = entry_of(product()), entry_of(product(512))
    data = cache._entry_to_json(other)
    spec = data["problem"]["spec"]
    wrong = [
        {**data, "time_us": "fast"},
        {**data, "time_us": -1.0},
        {**data, "time_us": math.nan},
        {**data, "config": "64x64"},
        {**data, "measured": 3},
        {**data, "new_field": 1},
        {**data, "problem": {**data["problem"], "spec": {**spec, "sparsity": "2:4"}}},
        {**data, "problem": {**data["problem"], "spec": {**spec, "ragged": "x"}}},
        {**data, "problem": {**data["problem"], "spec": {**spec, "out_dtype": "float7"}}},
    ]
    home.mkdir(parents=True)
    for item in wrong:
        cache._warn_once.cache_clear()
        document = {**GOOD, "entries": [cache._entry_to_json(good), item]}
        path = home / "nvidia_h200.v1.json"
        path.write_text(json.dumps(document))
        with pytest.warns(TuningWarning, match="an entry is ignored"):
            assert cache.load(path, "nvidia_h200").entries == (good,)
        # What this version does not understand, another may: it stays in the file.
        cache.save([entry_of(product(1024))], "nvidia_h200")
        assert len(json.loads(path.read_text())["entries"]) == 3


def test_a_folder_that_cannot_be_written_is_one_warning_and_no_crash(
    tmp_path: Path, clock: Clock
) -> None:
    (tmp_path / "file").write_text("")
    with only_kernels(fake_kernel(clock=clock)):
        with pytest.warns(TuningWarning, match="is not saved") as caught:
            found = [jaxgemm.tune(product(), folder=tmp_path / "file" / "x") for _ in range(2)]
        assert [x.path for x in found] == [None, None]
        assert len(caught) == 1
        assert found[0].rows[0].best is not None
        assert "saved" not in str(found[0])


def test_a_folder_stands_where_the_table_should(home: Path) -> None:
    (home / "nvidia_h200.v1.json").mkdir(parents=True)
    with only_kernels(fake_kernel()), pytest.warns(TuningWarning, match="cannot be read"):
        assert dispatch.plan(product(), H200, AUTO).chosen_by == "cost model"


@pytest.mark.parametrize("folder", [None, "~/.cache/jaxgemm"], ids=["raises", "relative"])
def test_a_user_without_a_home_has_no_table(
    folder: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def homeless(name: str) -> Path:
        if folder is None:
            raise RuntimeError(f"no folder for {name}")
        return Path(folder)

    monkeypatch.setattr(platformdirs, "user_cache_path", homeless)
    with pytest.warns(TuningWarning, match="no tuning table of the user"):
        assert cache.current(H200).user == Table()
    with pytest.warns(TuningWarning, match="is not saved"):
        assert cache.save([entry_of(product())], "nvidia_h200") is None


def test_tables_are_where_the_desktop_specification_puts_caches(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    name = "nvidia_h200.v1.json"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache.user_path("nvidia_h200") == tmp_path / "jaxgemm" / "tuning" / name
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache.user_path("nvidia_h200") == tmp_path / ".cache" / "jaxgemm" / "tuning" / name


# Writers.


def test_a_newer_entry_replaces_the_older_one_and_no_other(home: Path) -> None:
    old, new = entry_of(product(), SMALL, 20.0), entry_of(product(), TALL, 10.0)
    kept = [
        entry_of(product(512)),
        entry_of(product(), kernel="fake.two"),
        entry_of(product(), kernel_version=2),
    ]
    cache.save([old, *kept], "nvidia_h200")
    path = cache.save([new], "nvidia_h200")
    assert path is not None
    assert set(cache.load(path, "nvidia_h200").entries) == {new, *kept}
    cache.save([old], "nvidia_b200")
    assert set(cache.load(path, "nvidia_h200").entries) == {new, *kept}
    names = {"nvidia_h200.v1.json", "nvidia_b200.v1.json"}
    assert {x.name for x in home.iterdir() if x.suffix != ".lock"} == names


def test_entries_of_versions_with_fewer_fields_are_the_same_and_the_last_one_counts(
    home: Path,
) -> None:
    def measured(time_us: float, config: Config, time: str) -> Any:
        entry = entry_of(product(), config, time_us)
        return dataclasses.replace(entry, measured=(("time", f"2026-01-01T{time}"),))

    first, last = measured(20.0, SMALL, "10:00"), measured(30.0, TALL, "11:00")
    older = cache._entry_to_json(first)
    del older["problem"]["spec"]["clamp"]
    home.mkdir(parents=True)
    path = home / "nvidia_h200.v1.json"
    for items in ([older, cache._entry_to_json(last)], [cache._entry_to_json(last), older]):
        path.write_text(json.dumps({**GOOD, "entries": items}))
        assert cache.load(path, "nvidia_h200").entries == (last,)
    path.write_text(json.dumps({**GOOD, "entries": [older]}))
    cache.save([last], "nvidia_h200")
    assert json.loads(path.read_text())["entries"] == [cache._entry_to_json(last)]


def test_a_lock_that_is_not_released_is_one_warning_and_no_wait_without_end(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = cache.save([entry_of(product())], "nvidia_h200")
    assert path is not None
    monkeypatch.setattr(cache, "_LOCK_TIMEOUT_S", 0.1)
    with filelock.FileLock(home / "nvidia_h200.v1.lock"):
        with pytest.warns(TuningWarning, match="is not saved: .*could not be acquired") as caught:
            paths = [cache.save([entry_of(product(512))], "nvidia_h200") for _ in range(2)]
        assert paths == [None, None]
        assert len(caught) == 1
        # Readers need no lock, and what is there stays.
        assert cache.load(path, "nvidia_h200").entries == (entry_of(product()),)
    assert cache.save([entry_of(product(512))], "nvidia_h200") == path


def _write_some(folder: Path, first: int, count: int) -> None:
    for i in range(first, first + count):
        assert cache.save([entry_of(product(i + 1))], "nvidia_h200", folder)


def test_concurrent_writers_lose_nothing(tmp_path: Path) -> None:
    spawn, count = multiprocessing.get_context("spawn"), 25
    processes = [
        spawn.Process(target=_write_some, args=(tmp_path, i * count, count)) for i in range(2)
    ]
    threads = [
        threading.Thread(target=_write_some, args=(tmp_path, i * count, count)) for i in (2, 3)
    ]
    for writer in (*processes, *threads):
        writer.start()
    path = cache.user_path("nvidia_h200", tmp_path)
    # A reader in between sees whole documents.
    while any(process.is_alive() for process in processes):
        with warnings.catch_warnings(action="error"):
            cache.load(path, "nvidia_h200")
        processes[0].join(0.01)
    for writer in (*processes, *threads):
        writer.join()
    assert [process.exitcode for process in processes] == [0, 0]
    found = cache.load(path, "nvidia_h200")
    assert sorted(entry.problem.m for entry in found.entries) == list(range(1, 4 * count + 1))
    assert [x.name for x in tmp_path.iterdir() if x.suffix != ".lock"] == [path.name]
