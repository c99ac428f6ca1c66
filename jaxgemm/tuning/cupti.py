"""The kernels that CUPTI sees: names and times, in the order in which they ran."""

from collections.abc import Callable
from typing import Any

# (name, microseconds)
Record = tuple[str, float]


class _Program:
    """Python functions that `profiler.measure` calls in turn as they are, instead of under jit."""

    def __init__(self, *runs: Callable[[], Any]) -> None:
        self._runs = iter(runs)

    def __call__(self) -> Any:
        return next(self._runs)()

    def trace(self) -> Any:
        raise NotImplementedError

    def lower(self) -> Any:
        raise NotImplementedError


def record(run: Callable[[], Any], warm_up: Callable[[], Any] | None = None) -> list[Record]:
    """Every kernel that `run` launches, which must wait for them.

    Args:
      run: it.
      warm_up: is called before CUPTI looks; None: `run`, which is then called twice.

    Raises:
      RuntimeError: CUPTI saw no kernel, or another profiler holds it.
    """
    from jax.experimental.mosaic.gpu import profiler

    _, records = profiler.measure(_Program(warm_up or run, run), aggregate=False)()
    if not records:
        raise RuntimeError("CUPTI saw no kernel")
    return [(name, 1e3 * time_ms) for name, time_ms in records]
