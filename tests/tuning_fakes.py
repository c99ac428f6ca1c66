"""Kernels and a clock that are not real, for the tests of tables and of the search.

The kernels run the reference, changed or not, and advance the clock by a time that a test gives
them, so that the whole protocol runs on a CPU and every time is known.
"""

import contextlib
import dataclasses
import functools
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import pytest

from jaxgemm import dispatch, reference, registry
from jaxgemm.kernel import Kernel, Operands
from jaxgemm.problem import Problem
from jaxgemm.spec import GemmSpec
from jaxgemm.tuning import cache, search, timing
from jaxgemm.tuning.cache import Entry, Table, Tables
from tests.kernel_cases import KernelCase


@dataclasses.dataclass(frozen=True)
class Config:
    """A config of a fake."""

    cta_tile: tuple[int, int, int] = (128, 128, 64)
    stages: int = 4
    cluster_size: int = 1
    split_k: int = 1
    smem_bytes: int = 1000
    note: str | None = None
    keeps_operands: bool = False


SMALL, TALL, WIDE = Config((64, 64, 64)), Config((256, 64, 64)), Config((64, 256, 64))


class Clock:
    """A clock that stands still unless a fake moves it."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds


@functools.cache
def _compiled(spec: GemmSpec) -> Callable[[Operands], tuple[jax.Array, ...]]:
    return jax.jit(lambda xs: reference.evaluate(spec, xs, reference.Config(False)))


def run_reference(problem: Problem, config: Any, operands: Operands) -> tuple[jax.Array, ...]:
    return _compiled(problem.spec)(dict(operands))


REFERENCE = dataclasses.replace(reference.KERNEL, run=run_reference)


def fake_kernel(
    name: str = "fake.one",
    *,
    version: int = 1,
    configs: tuple[Any, ...] = (SMALL, TALL, WIDE),
    reason: str | None = None,
    change: Callable[[str, jax.Array], jax.Array] = lambda name, x: x,
    error: Exception | None = None,
    clock: Clock | None = None,
    times_ms: dict[Any, float] | None = None,
    efficiency: float = 1.0,
) -> Kernel:
    """The reference, changed; or a kernel that declines or breaks. It takes `times_ms`."""

    def run(problem: Problem, config: Any, operands: Operands) -> tuple[jax.Array, ...]:
        if error is not None:
            raise error
        if clock is not None:
            clock.sleep((times_ms or {}).get(config, 50.0) / 1e3)
        outputs = run_reference(problem, config, operands)
        return tuple(change(n, x) for n, x in zip(problem.spec.outputs, outputs, strict=True))

    return Kernel(name, version, lambda p, d: reason, lambda p, d: configs, run, efficiency)


def reference_on(clock: Clock, time_ms: float) -> Kernel:
    """The reference, which takes this time."""

    def run(problem: Problem, config: Any, operands: Operands) -> tuple[jax.Array, ...]:
        clock.sleep(time_ms / 1e3)
        return run_reference(problem, config, operands)

    return dataclasses.replace(REFERENCE, run=run)


@contextlib.contextmanager
def only_kernels(*fakes: Kernel, last: Kernel = REFERENCE) -> Iterator[None]:
    """Makes these, and the reference, all the kernels there are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "kernels", lambda: (*fakes, last))
        dispatch.forget()
        yield
    dispatch.forget()


@contextlib.contextmanager
def user_home(folder: Path) -> Iterator[Path]:
    """A user without tables, whose cache is in a temporary folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        cache._warn_once.cache_clear()
        dispatch.forget()
        yield folder / "jaxgemm" / "tuning"
    dispatch.forget()


@dataclasses.dataclass
class _Lowered:
    """A function that is "compiled" to itself."""

    function: Callable[..., Any]
    argument: Any

    def compile(self, options: Any = None) -> Callable[..., Any]:
        del options
        return self.function


@contextlib.contextmanager
def fake_time() -> Iterator[Clock]:
    """Time as the protocol and the search see it; what they compile runs eagerly."""
    fake = Clock()
    module = types.SimpleNamespace(perf_counter=fake.now, monotonic=fake.now, sleep=fake.sleep)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timing, "time", module)
        patch.setattr(search, "time", module)
        patch.setattr(timing, "lower_for", _Lowered)
        patch.setattr(timing, "rotation_bytes", lambda: 1)
        yield fake


def product(m: int = 256, n: int = 256, k: int = 64, **fields: Any) -> Problem:
    return KernelCase(m, n, k, **fields).problem()


def entry_of(problem: Problem, config: Any = SMALL, time_us: float = 10.0, **fields: Any) -> Entry:
    known = {"kernel": "fake.one", "kernel_version": 1}
    return Entry(
        problem=cache.key_of(problem),
        config=cache.config_text(config),
        time_us=time_us,
        **(known | fields),
    )


def tables_of(user: tuple[Entry, ...] = (), shipped: tuple[Entry, ...] = ()) -> Tables:
    return Tables(Table(user), Table(shipped))
