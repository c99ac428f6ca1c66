"""Measures forward and backward passes of an MLP and of the projections around attention.

    python -m benchmarks.train_step --tokens=4096 --width=4096 --hidden=14336

A gradient is right if its relative error is at most twice that of the same layer in jnp, both
against float32 at full precision; `max_error_ratio` is the error over that.
"""

import dataclasses
import sys
from collections.abc import Iterator, Sequence

import jax.numpy as jnp
from absl import app, flags

from benchmarks import command, fields, records, steps
from benchmarks.records import Record
from benchmarks.steps import Step
from jaxgemm.tuning import timing

_TOKENS = flags.DEFINE_integer("tokens", 4096, "rows of the input", lower_bound=1)
_WIDTH = flags.DEFINE_integer("width", 4096, "columns of the input", lower_bound=1)
_HIDDEN = flags.DEFINE_integer("hidden", 14336, "columns of the MLP's hidden layer", lower_bound=1)
_KV_WIDTH = flags.DEFINE_integer("kv_width", 1024, "columns of k and of v", lower_bound=1)
_DTYPE = flags.DEFINE_string("dtype", "bfloat16", "of all arrays")


def _rows_of(step: Step) -> Iterator[Record]:
    dtype = jnp.dtype(_DTYPE.value)
    m, n, k = step.sizes
    blank = Record(
        row=f"{step.name}_{m}x{n}x{k}",
        suite="train_step",
        m=m,
        n=n,
        k=k,
        batch=1,
        groups=0,
        trans_a=False,
        trans_b=False,
        a_dtype=dtype.name,
        b_dtype=dtype.name,
        compute_dtype="float32",
        out_dtype=dtype.name,
        epilogue=step.name,
        mode="forward_and_vjp",
        regime=command.regimes()[0],
        impl="jaxgemm",
        status="ok",
        tags=command.tags(),
        **fields.stamp(),
    )
    try:
        yield from _measured(step, dtype, blank)
    except Exception as error:  # reported, and the next one goes on
        yield records.failed(blank, error)


def _measured(step: Step, dtype: jnp.dtype, blank: Record) -> Iterator[Record]:
    scale = {name: shape[0] ** -0.5 for name, shape in step.shapes.items() if len(shape) == 2}
    arrays = steps.avals(step, dtype)
    scale["x"] = 1.0
    sets = timing.inputs(arrays, total_bytes=timing.rotation_bytes(), scale=scale)
    layers = {"jaxgemm": step.ours, "jnp.dot": step.theirs}
    calls = {n: timing.compile_for(steps.gradients(f), sets[0]) for n, f in layers.items()}
    exact = steps.exact(step, sets[0])
    errors = {name: steps.error(call(sets[0]), exact) for name, call in calls.items()}
    ratio = errors["jaxgemm"] / max(2 * errors["jnp.dot"], 1e-30)
    if ratio > 1:
        del calls["jaxgemm"]
        reason = f"relative error {errors['jaxgemm']:.3g}; that of jnp is {errors['jnp.dot']:.3g}"
        yield dataclasses.replace(blank, status="wrong", reason=reason)
    moved = 2 * sum(x.nbytes for x in sets[0].values())
    checks = {name: fields.checked(call, sets) for name, call in calls.items()}
    for regime in command.regimes():
        measured = timing.measure(calls, sets, regime=regime, iterations=command.iterations())
        for name, times in measured.items():
            yield dataclasses.replace(
                blank,
                impl=name,
                regime=regime,
                baseline="jnp.dot",
                max_error_ratio=fields.significant(ratio if name == "jaxgemm" else 0.5, 4),
                **fields.timed(times, measured["jnp.dot"], 3 * step.flops, moved),
                **checks[name],
            )


def main(argv: Sequence[str]) -> None:
    """Measures what the flags say."""
    if len(argv) > 1:
        raise app.UsageError(f"{argv[1:]} should be flags")
    tokens, width, hidden = _TOKENS.value, _WIDTH.value, _HIDDEN.value
    layers = [
        steps.mlp(tokens, width, hidden),
        steps.mlp_as_one(tokens, width, hidden),
        steps.swiglu(tokens, width, hidden),
        steps.attention(tokens, width, _KV_WIDTH.value),
    ]
    chosen = [step for step in layers if command.matches(step.name)]
    measured = ((step.name, _rows_of(step)) for step in chosen)
    sys.exit(command.collect([step.name for step in chosen], measured))


if __name__ == "__main__":
    app.run(main)
