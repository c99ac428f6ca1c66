"""Times every config of `pallas.hopper.dense` against `jnp.dot` on a Hopper GPU.

    PYTHONPATH=. python3 -m tests.gpu.dense_sweep --out=/tmp/dense.jsonl

Each row is checked before it is timed. Times are CUPTI kernel times with a warm L2 cache, the
median of a few launches: good for comparing configs, not for a published figure.
"""

import dataclasses
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
from jaxgemm.spec import GemmSpec
from pallas_kernels.hopper import dense

_OUT = flags.DEFINE_string("out", "/tmp/dense.jsonl", "file that gets one JSON object a line")
_SECONDS = flags.DEFINE_float("seconds", 330.0, "no new row is started after this time")
_ITERATIONS = flags.DEFINE_integer("iterations", 10, "timed launches of each row")
_SHAPE = flags.DEFINE_integer("shape", None, "run only this shape, in this process")
_FIRST = flags.DEFINE_integer("first", 0, "the row of the shape to begin with")
# One shape compiles and runs in a few seconds; a process that takes longer hangs.
_TIMEOUT_SECONDS = 90


@dataclasses.dataclass(frozen=True)
class _Shape:
    """A row of the sweep: sizes, layout (a then b, N or T) and extra operands."""

    m: int
    n: int
    k: int
    batch: int = 1
    layout: str = "NN"
    extras: tuple[str, ...] = ()
    activation: str | None = None

    def problem(self) -> Problem:
        """The bfloat16 problem."""
        dtype = jnp.dtype("bfloat16")
        operands = ("a", "b", *self.extras)
        batched = tuple(sorted({"a", "b", "d"} | ({"c"} & set(self.extras))))
        spec = GemmSpec(
            operands,
            a_contract=1 if self.layout[0] == "N" else 0,
            b_contract=0 if self.layout[1] == "N" else 1,
            out_dtype=dtype,
            residual_dtype=dtype,
            precision="default",
            batch=(batched,) if self.batch > 1 else (),
            activation=self.activation,
        )
        sizes = {"m": self.m, "n": self.n, "k": self.k, "b0": self.batch}
        arrays = []
        for name in operands:
            shape = tuple(sizes[label] for label in spec.labels(name))
            scalar = name in ("alpha", "beta")
            arrays.append(jax.ShapeDtypeStruct(shape, jnp.float32 if scalar else dtype))
        return Problem.of(spec, arrays)


_SHAPES = (
    _Shape(4096, 4096, 4096),
    _Shape(8192, 8192, 8192),
    _Shape(4096, 14336, 4096),
    _Shape(4096, 4096, 4096, layout="NT"),
    _Shape(4096, 4096, 4096, layout="TN"),
    _Shape(4096, 4096, 4096, layout="TT"),
    _Shape(4096, 14336, 4096, extras=("bias",), activation="gelu"),
    _Shape(4096, 14336, 4096, extras=("c", "beta")),
    _Shape(2048, 2048, 2048),
    _Shape(1024, 1024, 1024),
    _Shape(512, 512, 128, batch=64),
    _Shape(4096, 4096, 512, batch=8),
)


def _operands(problem: Problem) -> dict[str, jax.Array]:
    keys = jax.random.split(jax.random.key(0), len(problem.spec.operands))
    return {
        name: jax.random.normal(key, problem.shape(name), problem.dtype(name))
        for name, key in zip(problem.spec.operands, keys, strict=True)
    }


def _xla(problem: Problem, accumulator: Any) -> Callable[..., jax.Array]:
    """The same result by `lax.dot_general`, rounded at the end from `accumulator`."""
    spec = problem.spec
    axes = tuple(range(len(spec.batch)))
    contract = (spec.a_contract + len(axes),), (spec.b_contract + len(axes),)

    def f(operands: dict[str, jax.Array]) -> jax.Array:
        product = jax.lax.dot_general(
            operands["a"],
            operands["b"],
            (contract, (axes, axes)),
            preferred_element_type=accumulator,
        )
        extras = (operands.get(name) for name in ("alpha", "c", "beta", "bias"))
        z = epilogue.preactivation(product, *extras)
        act = spec.activation
        return (z if act is None else epilogue.ACTIVATIONS[act].apply(z)).astype(spec.out_dtype)

    return f


def _time_us(f: Callable[..., Any], *args: Any) -> float:
    _, times_ms = profiler.measure(f, iterations=_ITERATIONS.value)(*args)
    return 1e3 * statistics.median(times_ms)


def _error(d: jax.Array, expected: jax.Array) -> float:
    """Largest difference relative to the largest value."""
    d, expected = d.astype(jnp.float32), expected.astype(jnp.float32)
    return float(jnp.max(jnp.abs(d - expected)) / jnp.max(jnp.abs(expected)))


def _rows(shape: _Shape, first: int) -> Iterator[dict[str, Any]]:
    """Yields a record for XLA (row 0) and one for each config."""
    problem = shape.problem()
    operands = _operands(problem)
    expected = jax.jit(_xla(problem, jnp.float32))(operands)
    base = {"problem": str(problem), **dataclasses.asdict(shape)}
    # XLA may only fuse a product that is rounded before the epilogue, so that is what it gets.
    product_dtype = jnp.float32 if shape.extras or shape.activation else jnp.bfloat16
    xla_us = _time_us(jax.jit(_xla(problem, product_dtype)), operands)
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


def _run_shape(index: int, first: int) -> None:
    """Runs the rows of one shape from `first` on, in this process."""
    with open(_OUT.value, "a") as out:
        for record in _rows(_SHAPES[index], first):
            _print(record)
            out.write(json.dumps(record) + "\n")
            out.flush()


def _num_records() -> int:
    path = pathlib.Path(_OUT.value)
    return len(path.read_text().splitlines()) if path.exists() else 0


def _supervise(index: int, deadline: float) -> None:
    """Runs one shape in processes of its own, and goes on after the row that killed one."""
    start, deaths = _num_records(), 0
    while time.monotonic() < deadline:
        first = _num_records() - start + deaths
        flag_values = [f"--shape={index}", f"--first={first}", f"--out={_OUT.value}"]
        command = [sys.executable, "-m", "tests.gpu.dense_sweep", *flag_values]
        try:
            code = subprocess.run(command, timeout=_TIMEOUT_SECONDS).returncode
        except subprocess.TimeoutExpired:
            code = "timeout"
        if code == 0:
            return
        print(f"# row {_num_records() - start + deaths} of shape {index} ended with {code}")
        deaths += 1


def main(argv: Sequence[str]) -> None:
    """Runs the sweep, best-known shapes first."""
    del argv
    if _SHAPE.value is not None:
        _run_shape(_SHAPE.value, _FIRST.value)
        return
    deadline = time.monotonic() + _SECONDS.value
    for index in range(len(_SHAPES)):
        _supervise(index, deadline)


if __name__ == "__main__":
    app.run(main)
