"""Compiling many functions at the same time."""

import concurrent.futures
import time
from collections.abc import Callable, Sequence
from typing import Any

from jaxgemm.tuning import timing

_WORKERS = 8

# A compiled function, and the seconds that tracing and compiling it took; or why there is none.
Result = tuple[timing.Compiled, float] | Exception


def compile_together(functions: Sequence[Callable[..., Any]], *args: Any) -> list[Result]:
    """Functions, compiled ahead of time for arguments like these, in their order.

    XLA should tune one of them at most: for that it times kernels on the device.
    """
    # Tracing stays in this thread, which has JAX's settings; most of compiling needs no Python.
    with concurrent.futures.ThreadPoolExecutor(_WORKERS) as pool:
        futures = [_submitted(pool, function, args) for function in functions]
    return [_result(future) for future in futures]


def _submitted(
    pool: concurrent.futures.Executor, function: Callable[..., Any], args: tuple[Any, ...]
) -> concurrent.futures.Future[tuple[timing.Compiled, float]]:
    start = time.perf_counter()
    try:
        lowered = timing.lower_for(function, *args)
    except Exception as error:
        failed: concurrent.futures.Future[tuple[timing.Compiled, float]]
        failed = concurrent.futures.Future()
        failed.set_exception(error)
        return failed
    tracing_seconds = time.perf_counter() - start

    def work() -> tuple[timing.Compiled, float]:
        start = time.perf_counter()
        return lowered.compile(), tracing_seconds + time.perf_counter() - start

    return pool.submit(work)


def _result(future: concurrent.futures.Future[tuple[timing.Compiled, float]]) -> Result:
    try:
        return future.result()
    except Exception as error:
        return error
