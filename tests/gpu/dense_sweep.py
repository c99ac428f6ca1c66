"""Times every config of `pallas.hopper.dense` against `jnp.dot` on a Hopper GPU.

    PYTHONPATH=. python3 -m tests.gpu.dense_sweep --out=/tmp/dense.jsonl

Each row is checked before it is timed. Times are CUPTI kernel times with a warm L2 cache, the
median of a few launches: good for comparing configs, not for a published figure.
"""

import dataclasses
import functools
import itertools
import json
import pathlib
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from absl import app, flags
from jax.experimental.mosaic.gpu import profiler

from jaxgemm import device, epilogue
from jaxgemm.problem import Problem
from pallas_kernels.hopper import dense
from tests.kernel_cases import LARGE_CASES

_OUT = flags.DEFINE_string("out", "/tmp/dense.jsonl", "file that gets one JSON object a line")
_SECONDS = flags.DEFINE_float("seconds", 330.0, "no new row is started after this time")
_ITERATIONS = flags.DEFINE_integer("iterations", 10, "timed launches of each row")
_CASE = flags.DEFINE_string("case", None, "run only this case, in this process")
_FIRST = flags.DEFINE_integer("first", 0, "the row of the case to begin with")
# One case compiles and runs in a few seconds; a process that takes longer hangs.
_TIMEOUT_SECONDS = 90


def _xla(problem: Problem, accumulator: Any) -> Callable[..., jax.Array]:
    """The same result by `lax.dot_general`, rounded at the end from `accumulator`."""
    spec = problem.spec
    axes = tuple(range(len(spec.batch)))
    contract = (spec.a_contract + len(axes),), (spec.b_contract + len(axes),)

    def f(operands: dict[str, jax.Array]) -> jax.Array:
        products = [
            jax.lax.dot_general(
                operands["a"],
                operands[name],
                (contract, (axes, axes)),
                preferred_element_type=accumulator,
            )
            for name in dense.products(problem)
        ]
        extras = (operands.get(name) for name in ("alpha", "c", "beta", "bias"))
        z = epilogue.preactivation(products[0], *extras)
        d = z if spec.activation is None else epilogue.ACTIVATIONS[spec.activation].apply(z)
        return functools.reduce(jnp.multiply, products[1:], d).astype(spec.out_dtype)

    return f


def _time_us(f: Callable[..., Any], *args: Any) -> float:
    _, times_ms = profiler.measure(f, iterations=_ITERATIONS.value)(*args)
    assert times_ms is not None, "CUPTI saw no kernel"
    return 1e3 * statistics.median(times_ms)


def _error(d: jax.Array, expected: jax.Array) -> float:
    """Largest difference relative to the largest value."""
    d, expected = d.astype(jnp.float32), expected.astype(jnp.float32)
    return float(jnp.max(jnp.abs(d - expected)) / jnp.max(jnp.abs(expected)))


def _rows(name: str, first: int) -> Iterator[dict[str, Any]]:
    """Yields a record for XLA (row 0) and one for each config."""
    case = LARGE_CASES[name]
    problem, operands = case.problem(), case.arrays()
    expected = jax.jit(_xla(problem, jnp.float32))(operands)
    base = {"case": name, "problem": str(problem)}
    base |= {"device": jax.devices()[0].device_kind, "jax": jax.__version__}
    # XLA can fuse its epilogue only into a product that is rounded first, as users write it.
    xla_us = _time_us(jax.jit(_xla(problem, problem.spec.out_dtype)), operands)
    if first == 0:
        yield base | {"kernel": "xla", "us": xla_us, "tflops": problem.flops / xla_us / 1e6}
    configs = dense.configs(problem, device.current())
    for config in itertools.islice(configs, max(first - 1, 0), None):
        record = base | {"kernel": dense.KERNEL.name, "config": dataclasses.asdict(config)}
        try:
            f = jax.jit(lambda x, config=config: dense.run(problem, config, x)[0])
            record["error"] = _error(f(operands), expected)
            us = _time_us(f, operands)
            record |= {"us": us, "tflops": problem.flops / us / 1e6, "speedup": xla_us / us}
        except Exception as e:
            record["failure"] = f"{type(e).__name__}: {str(e)[:300]}"
        yield record


def _print(record: dict[str, Any]) -> None:
    config = record.get("config", {})
    what = " ".join(str(v) for v in config.values())
    if "failure" in record:
        print(f"{record['problem']:58} {record['kernel']:20} {what}: {record['failure']}")
        return
    wrong = "  WRONG" if record.get("error", 0.0) > 0.01 else ""
    print(
        f"{record['problem']:58} {record['kernel']:20} {what:36} {record['us']:9.1f} us"
        f" {record['tflops']:6.1f} TFLOP/s  x{record.get('speedup', 1.0):.3f}"
        f"  error {record.get('error', 0.0):.1e}{wrong}",
        flush=True,
    )


def _run_case(name: str, first: int) -> None:
    """Runs the rows of one case from `first` on, in this process."""
    with open(_OUT.value, "a") as out:
        for record in _rows(name, first):
            _print(record)
            out.write(json.dumps(record) + "\n")
            out.flush()


def _num_records() -> int:
    path = pathlib.Path(_OUT.value)
    return len(path.read_text().splitlines()) if path.exists() else 0


def _supervise(name: str, deadline: float) -> None:
    """Runs one case in processes of its own, and goes on after the row that killed one."""
    start, deaths = _num_records(), 0
    while time.monotonic() < deadline:
        first = _num_records() - start + deaths
        flag_values = [f"--case={name}", f"--first={first}", f"--out={_OUT.value}"]
        command = [sys.executable, "-m", "tests.gpu.dense_sweep", *flag_values]
        try:
            code = subprocess.run(command, timeout=_TIMEOUT_SECONDS).returncode
        except subprocess.TimeoutExpired:
            code = "timeout"
        if code == 0:
            return
        print(f"# row {_num_records() - start + deaths} of {name} ended with {code}")
        deaths += 1


def main(argv: Sequence[str]) -> None:
    """Runs the sweep, best-known shapes first."""
    del argv
    if _CASE.value is not None:
        _run_case(_CASE.value, _FIRST.value)
        return
    deadline = time.monotonic() + _SECONDS.value
    for name in LARGE_CASES:
        _supervise(name, deadline)


if __name__ == "__main__":
    app.run(main)
