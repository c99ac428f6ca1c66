"""Times every config of the CUDA kernels for float32 against `jnp.dot` on a GPU.

    PYTHONPATH=. python3 -m tests.gpu.ladder --m=4096 --n=4096 --k=4096

Each row is checked before it is timed. Times are CUPTI kernel times with a warm L2 cache, the
median of a few launches: good for comparing configs, not for a published figure.
"""

import json
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from absl import app, flags
from jax.experimental.mosaic.gpu import profiler

from jaxgemm import device
from jaxgemm.ffi_kernels import KERNELS
from tests.kernel_cases import KernelCase

_M = flags.DEFINE_integer("m", 4096, "rows of d")
_N = flags.DEFINE_integer("n", 4096, "columns of d")
_K = flags.DEFINE_integer("k", 4096, "length of the contraction")
_LAYOUTS = flags.DEFINE_list("layouts", ["NN", "NT", "TN", "TT"], "layouts of a and b")
_KERNEL = flags.DEFINE_string("kernel", "cuda.", "only kernels whose name begins with this")
_OUT = flags.DEFINE_string("out", None, "file that gets one JSON object a line")
_ITERATIONS = flags.DEFINE_integer("iterations", 10, "timed launches of each row")


def _time_us(f: Callable[..., Any], *args: Any) -> float:
    _, times_ms = profiler.measure(f, iterations=_ITERATIONS.value)(*args)
    assert times_ms is not None, "CUPTI saw no kernel"
    return 1e3 * statistics.median(times_ms)


def _report(record: dict[str, Any]) -> None:
    print(
        f"{record['problem']:50} {record['kernel']:22} {record['config']:24}"
        f" {record['us']:10.1f} us {record['tflops']:7.2f} TFLOP/s"
        f" {100 * record['share']:6.1f} % of jnp.dot  error {record['error']:.1e}",
        flush=True,
    )
    if _OUT.value is not None:
        with open(_OUT.value, "a") as out:
            out.write(json.dumps(record) + "\n")


def _measure(layout: str) -> None:
    case = KernelCase(
        _M.value, _N.value, _K.value, layout, dtype="float32", out="float32", precision="highest"
    )
    problem, arrays = case.problem(), case.arrays()

    def dot(x: dict[str, jax.Array]) -> jax.Array:
        a = x["a"] if layout[0] == "N" else x["a"].T
        b = x["b"] if layout[1] == "N" else x["b"].T
        return jnp.dot(a, b, precision="highest")

    expected = jax.jit(dot)(arrays)
    dot_us = _time_us(jax.jit(dot), arrays)
    candidates: list[tuple[str, str, Any]] = [("jnp.dot", "", dot)]
    for kernel in reversed(KERNELS):
        if not kernel.name.startswith(_KERNEL.value):
            continue
        if reason := kernel.why_not(problem, device.current()):
            print(f"{kernel.name}: {reason}")
            continue
        for config in kernel.configs(problem, device.current()):
            run = lambda x, k=kernel, c=config: k.run(problem, c, x)[0]  # noqa: E731
            candidates.append((kernel.name, config.instance, run))
    for name, config, run in candidates:
        f = jax.jit(run)
        error = float(jnp.max(jnp.abs(f(arrays) - expected)) / jnp.max(jnp.abs(expected)))
        us = dot_us if name == "jnp.dot" else _time_us(f, arrays)
        record = {"problem": str(problem), "kernel": name, "config": config, "error": error}
        record |= {"us": us, "tflops": problem.flops / us / 1e6, "share": dot_us / us}
        _report(record | {"device": jax.devices()[0].device_kind, "jax": jax.__version__})


def main(argv: Sequence[str]) -> None:
    """Measures every layout."""
    del argv
    for layout in _LAYOUTS.value:
        _measure(layout)


if __name__ == "__main__":
    app.run(main)
