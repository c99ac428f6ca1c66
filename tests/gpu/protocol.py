"""Runs the measuring protocol on a few rows and compares its clocks, on a GPU.

    PYTHONPATH=. python3 -m tests.gpu.protocol
    PYTHONPATH=. python3 -m tests.gpu.protocol --filter=decode --regime=sustained

For each candidate it prints the median by CUPTI in alternation, then what `graphs.check` found:
how calls were launched, the wall clock and the kernel time of a call, their ratio, what the host
needed for a call and what follows. It fails if two clocks disagree, or if a chain was not captured.
"""

import math
import re
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from absl import app, flags

import jaxgemm
from jaxgemm.tuning import graphs, timing

_FILTER = flags.DEFINE_string("filter", "", "regular expression that a row's name must contain")
_REGIME = flags.DEFINE_enum("regime", "burst", ("burst", "sustained"), "see timing.py")

# name → (batch, m, n, k)
_ROWS = {
    "batch": (64, 512, 512, 128),
    "square_1024": (1, 1024, 1024, 1024),
    "square_2048": (1, 2048, 2048, 2048),
    "square_4096": (1, 4096, 4096, 4096),
    "square_8192": (1, 8192, 8192, 8192),
    "decode": (1, 16, 4096, 4096),
}
_FUNCTIONS: dict[str, Callable[[Any], jax.Array]] = {
    "jaxgemm": lambda x: jaxgemm.gemm(x["a"], x["b"]),
    "jnp.dot": lambda x: jnp.matmul(x["a"], x["b"]),
    # Two kernels a call, at least.
    "jnp.dot+gelu": lambda x: jax.nn.gelu(jnp.matmul(x["a"], x["b"]) + x["bias"]),
}


def _row(name: str) -> list[str]:
    """Prints a row; what is wrong with it, in words."""
    batch, m, n, k = _ROWS[name]
    many = (batch,) if batch > 1 else ()
    shapes = {"a": (*many, m, k), "b": (*many, k, n), "bias": (n,)}
    avals = {x: jax.ShapeDtypeStruct(shape, jnp.bfloat16) for x, shape in shapes.items()}
    scale = {"b": 1 / math.sqrt(k)}
    sets = timing.inputs(avals, total_bytes=timing.rotation_bytes(), scale=scale)
    calls: dict[str, Any] = {x: timing.compile_for(f, sets[0]) for x, f in _FUNCTIONS.items()}
    # What is not known to be a function of JAX is launched call by call.
    calls["jnp.dot, calls"] = calls["jnp.dot"].executable
    measured = timing.measure(calls, sets, regime=_REGIME.value)
    wrong = []
    for candidate, call in calls.items():
        times, start = measured[candidate], time.perf_counter()
        check = graphs.check(call, sets)
        seconds = time.perf_counter() - start
        assert check is not None, "this is for a GPU"
        cupti_us = check.cupti_us or math.nan
        print(
            f"{name:12} {candidate:14} {times.median_us:9.2f} us"
            f"  {check.launched} wall {check.wall_us:9.2f}  CUPTI {cupti_us:9.2f}"
            f"  ratio {check.wall_us / cupti_us:.3f}  host {check.host_us:6.2f}"
            f"  {check.num_kernels} kernels  {check.incomparable or f'agrees: {check.agrees}'}"
            f"  ({seconds:.2f} s; {times.state.sm_mhz} MHz)",
            flush=True,
        )
        if check.launched == "chain":
            wrong.append(f"{name} {candidate}: was not captured as one graph")
        if check.agrees is False:
            wrong.append(f"{name} {candidate}: clocks disagree")
    return wrong


def main(argv: Sequence[str]) -> None:
    """Runs the rows that the flags name."""
    del argv
    wrong = [x for name in _ROWS if re.search(_FILTER.value, name) for x in _row(name)]
    print(*(wrong or ["all agree"]), sep="\n")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    jax.config.config_with_absl()
    app.run(main)
