"""Measures what calling jaxgemm costs on a CPU, where the product itself is XLA's.

    JAX_PLATFORMS=cpu python -m benchmarks.cpu --out=benchmarks/results/cpu/overhead.jsonl

Squares under jit, one eager call, and the time to trace a model of 24 layers, each against jnp.dot.
"""

import dataclasses
import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from absl import app

import jaxgemm
from benchmarks import command, fields, manifest, records
from benchmarks.records import Record
from benchmarks.runner import Runner
from jaxgemm.tuning import timing

_EAGER_SIZE = 256
_LAYERS = 24
_WIDTH = 64


def _blank(row: str, size: int, tags: tuple[str, ...]) -> Record:
    return Record(
        row=row,
        suite="cpu",
        m=size,
        n=size,
        k=size,
        batch=1,
        groups=0,
        trans_a=False,
        trans_b=False,
        a_dtype="float32",
        b_dtype="float32",
        compute_dtype="tfloat32",
        out_dtype="float32",
        epilogue="none",
        mode="forward",
        regime="burst",
        impl="jaxgemm",
        status="ok",
        baseline="jnp.dot",
        tags=(*command.tags(), *tags),
        **fields.stamp(),
    )


def _compared(
    blank: Record, calls: dict[str, Callable[[Any], Any]], sets: list[Any], iterations: int | None
) -> Iterator[Record]:
    try:
        measured = timing.measure(calls, sets, iterations=iterations)
    except Exception as error:
        yield records.failed(blank, error)
        return
    size = blank.m
    for name, times in measured.items():
        counts = 2 * size**3, 12 * size**2
        yield dataclasses.replace(
            blank, impl=name, **fields.timed(times, measured["jnp.dot"], *counts)
        )


def _eager() -> Iterator[Record]:
    aval = jax.ShapeDtypeStruct((_EAGER_SIZE, _EAGER_SIZE), jnp.float32)
    sets = timing.inputs({"a": aval, "b": aval}, total_bytes=1)
    calls = {
        "jaxgemm": lambda x: jaxgemm.gemm(x["a"], x["b"]),
        "jnp.dot": lambda x: jnp.dot(x["a"], x["b"]),
    }
    blank = _blank(f"eager_{_EAGER_SIZE}", _EAGER_SIZE, ("eager",))
    yield from _compared(blank, calls, sets, command.iterations())


def _ours(x: jax.Array, layer: dict[str, jax.Array]) -> jax.Array:
    h = jaxgemm.gemm(x, layer["w1"], bias=layer["v1"], activation="gelu")
    return jaxgemm.gemm(h, layer["w2"], x)


def _theirs(x: jax.Array, layer: dict[str, jax.Array]) -> jax.Array:
    h = jax.nn.gelu(jnp.dot(x, layer["w1"]) + layer["v1"])
    return x + jnp.dot(h, layer["w2"])


def _trace(grad: bool) -> Iterator[Record]:
    """The time to trace a model for the first time: JAX's caches are emptied before each."""
    square = jax.ShapeDtypeStruct((_WIDTH, _WIDTH), jnp.float32)
    layer = {"w1": square, "w2": square, "v1": jax.ShapeDtypeStruct((_WIDTH,), jnp.float32)}
    model = [layer] * _LAYERS

    def tracer(block: Callable[..., jax.Array]) -> Callable[[Any], None]:
        def call(x: Any) -> None:
            jax.clear_caches()

            def run(layers: Any) -> jax.Array:
                y = x
                for weights in layers:
                    y = block(y, weights)
                return y.sum()

            jax.make_jaxpr(jax.grad(run) if grad else run)(model)

        return call

    calls = {"jaxgemm": tracer(_ours), "jnp.dot": tracer(_theirs)}
    sets = [jnp.ones((_WIDTH, _WIDTH))] * 2
    name = f"trace_{_LAYERS}_layers" + ("_grad" if grad else "")
    yield from _compared(_blank(name, _WIDTH, ("trace",)), calls, sets, 9)


def main(argv: Sequence[str]) -> None:
    """Measures all of it."""
    if len(argv) > 1:
        raise app.UsageError(f"{argv[1:]} should be flags")
    rows = manifest.select(["cpu"], command.filter_pattern())
    extras = [
        (name, found)
        for name, found in (
            (f"eager_{_EAGER_SIZE}", _eager()),
            (f"trace_{_LAYERS}_layers", _trace(False)),
            (f"trace_{_LAYERS}_layers_grad", _trace(True)),
        )
        if command.matches(name)
    ]
    squares = Runner(command.options(backends=("jaxgemm", "jnp.dot"))).run(rows)
    names = [*(row.name for row in rows), *(name for name, _ in extras)]
    sys.exit(command.collect(names, itertools.chain(squares, extras)))


if __name__ == "__main__":
    app.run(main)
