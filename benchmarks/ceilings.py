"""Measures the bandwidth that a kernel can reach: the slanted line of the roofline picture.

    python -m benchmarks.ceilings --out=benchmarks/results/nvidia_h200/ceilings.jsonl

`read` sums an array, `copy` adds 1 to it. The flat line, the rate of the fastest product, is in the
records of the products themselves.
"""

import dataclasses
import sys
from collections.abc import Callable, Iterator, Sequence

import jax
import jax.numpy as jnp
from absl import app, flags

from benchmarks import command, fields, records
from benchmarks.records import Record
from jaxgemm.tuning import timing

_MEGABYTES = flags.DEFINE_integer("megabytes", 2048, "size of the array", lower_bound=1)

# name → (function, how often each byte of the array is moved).
_FUNCTIONS: dict[str, tuple[Callable[[jax.Array], jax.Array], int]] = {
    "read": (jnp.sum, 1),
    "copy": (lambda x: x + 1, 2),
}


def _measured(name: str) -> Iterator[Record]:
    function, moves = _FUNCTIONS[name]
    elements = _MEGABYTES.value * 2**20 // 4
    blank = Record(
        row=f"ceiling_{name}",
        suite="ceiling",
        m=elements,
        n=1,
        k=1,
        batch=1,
        groups=0,
        trans_a=False,
        trans_b=False,
        a_dtype="float32",
        b_dtype="float32",
        compute_dtype="float32",
        out_dtype="float32",
        epilogue="none",
        mode="forward",
        regime="burst",
        impl="jax.numpy",
        status="ok",
        tags=command.tags(),
        **fields.stamp(),
    )
    try:
        aval = {"x": jax.ShapeDtypeStruct((elements,), jnp.float32)}
        sets = timing.inputs(aval, total_bytes=timing.rotation_bytes())
        call = timing.compile_for(lambda operands: function(operands["x"]), sets[0])
        times = timing.measure({name: call}, sets, iterations=command.iterations())[name]
        timed = fields.timed(times, None, elements, 4 * elements * moves)
        yield dataclasses.replace(blank, **timed, **fields.checked(call, sets))
    except Exception as error:
        yield records.failed(blank, error)


def main(argv: Sequence[str]) -> None:
    """Measures both."""
    if len(argv) > 1:
        raise app.UsageError(f"{argv[1:]} should be flags")
    names = [name for name in _FUNCTIONS if command.matches(name)]
    sys.exit(command.collect(names, ((name, _measured(name)) for name in names)))


if __name__ == "__main__":
    app.run(main)
