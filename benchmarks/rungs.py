"""The rungs of the ladder: which there are, what each asks for, and the fastest form of each."""

import math
from collections.abc import Iterable
from typing import Any

from benchmarks.records import Record
from jaxgemm.ffi_kernels import instances
from jaxgemm.problem import Problem
from jaxgemm.tuning import roofline

# Kernel → the dtype in which it is a rung, from the ground up.
RUNGS = {
    "cuda.naive": "float32",
    "cuda.coalesced": "float32",
    "cuda.tiled": "float32",
    "cuda.register_blocked": "float32",
    "cuda.warptiled": "float32",
    "cuda.mma_sync": "bfloat16",
    "cuda.sm90.dense": "bfloat16",
}
# What rungs are held against.
REFERENCES = ("pallas.hopper.dense", "cublaslt-best", "jnp.dot")


def compiled() -> tuple[instances.Instance, ...]:
    """The instances of all rungs, in their order; each is measured under its own name."""
    return tuple(
        row
        for kernel, dtype in RUNGS.items()
        for row in instances.of_kernel(kernel)
        if row.dtype == dtype
    )


def instance_of(record: Record) -> instances.Instance | None:
    """The instance that was measured, None for references."""
    return next((row for row in compiled() if row.name == record.impl), None)


def name_of(record: Record) -> str:
    """The kernel that was measured, or the reference without what tells its forms apart."""
    row = instance_of(record)
    return record.impl.split("[")[0] if row is None else row.kernel


def asked_bytes(problem: Problem, config: Any) -> float:
    """Bytes that a config's mapping asks of L2 or memory: the formula at the head of its file.

    A kernel without shared memory loads both operands for each multiply-add. Others load once what
    a tile needs, or the tiles of a cluster together.
    """
    sizes = problem.m, problem.n, problem.k
    in_bytes, out_bytes = (problem.dtype(name).itemsize for name in ("a", "d"))
    if config.smem_bytes == 0:
        return roofline.naive_bytes(*sizes, in_bytes, out_bytes)
    tile_m, tile_n, _ = config.cta_tile
    along = getattr(config, "cluster_along", None)
    tile = (
        tile_m * (config.cluster_size if along == "m" else 1),
        tile_n * (config.cluster_size if along == "n" else 1),
    )
    return roofline.tiled_bytes(*sizes, tile, in_bytes, out_bytes)


def fastest(some: Iterable[Record]) -> list[Record]:
    """The fastest record of each rung and reference, in the order of the ladder.

    References come after the rungs of their dtype.
    """
    order = [*RUNGS, *REFERENCES]
    best: dict[tuple[str, str], Record] = {}
    for record in some:
        key = record.a_dtype, name_of(record)
        if key[1] in order and _us(record) < _us(best.get(key)):
            best[key] = record
    dtypes = list(dict.fromkeys(RUNGS.values()))
    return [
        best[key] for key in sorted(best, key=lambda k: (dtypes.index(k[0]), order.index(k[1])))
    ]


def _us(record: Record | None) -> float:
    return math.inf if record is None or record.median_us is None else record.median_us
