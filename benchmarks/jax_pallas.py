"""The Pallas kernels that come with JAX, each in several of its configs."""

import itertools
from collections.abc import Iterator
from typing import Any

import jax

from benchmarks.cases import Case, Function, Operands
from benchmarks.variants import Implementation, Variant, compiled_together

_COMPILED_TOGETHER = 4


def _hopper() -> bool:
    device = jax.devices()[0]
    return device.platform == "gpu" and str(getattr(device, "compute_capability", "")) == "9.0"


def _plain(case: Case, mode: str) -> str | None:
    """What none of these kernels has."""
    row = case.row
    if not _hopper():
        return "not a Hopper GPU"
    if mode != "forward":
        return "has no gradient"
    if row.a_dtype not in ("bfloat16", "float16") or row.out_dtype != row.a_dtype:
        return "its result has the dtype of its operands: bfloat16 or float16"
    if row.b_dtype != row.a_dtype or row.batch > 1:
        return "takes two matrices of one dtype"
    return "has no epilogue" if row.epilogue != "none" or row.beta or row.alpha != 1 else None


def _matmul_why_not(case: Case, mode: str) -> str | None:
    row = case.row
    if row.groups or row.trans_a or row.trans_b:
        return "takes two matrices stored as (m, k) and (k, n)"
    if row.m % 128 or row.n % 128 or row.k % 64 or not row.m * row.n * row.k:
        return "needs m and n that are multiples of 128 and k of 64"
    return _plain(case, mode)


def _matmul_variants(case: Case, mode: str, sample: Operands) -> Iterator[Variant]:
    del case, mode
    from jax.experimental.pallas.ops.gpu import hopper_matmul_mgpu as ops

    rows, columns = ops.MatmulDimension.M, ops.MatmulDimension.N
    # (tile of a warpgroup, axis along which there are two, cluster axis), best guesses first.
    shapes = (
        ((128, 128), columns, columns),
        ((64, 256), rows, None),
        ((128, 128), rows, columns),
        ((128, 128), columns, None),
        ((64, 256), rows, columns),
        ((128, 128), columns, rows),
        ((64, 128), rows, None),
    )
    orders = itertools.product((8, 16), (columns, rows))
    functions: dict[str, Function] = {}
    for (width, minor), (shape, wg, cluster) in itertools.product(orders, shapes):
        config = ops.TuningConfig(
            tile_m=shape[0],
            tile_n=shape[1],
            tile_k=64,
            max_concurrent_steps=4,
            epi_tile_n=64,
            epi_tile_m=64,
            grid_minor_dim=minor,
            grid_tile_width=width,
            wg_dimension=wg,
            cluster_dimension=cluster,
        )

        def function(x: Operands, config: Any = config) -> jax.Array:
            return ops.matmul(x["a"], x["b"], None, config)

        name = f"{shape[0]}x{shape[1]} wg={wg!s} cluster={cluster!s} minor={minor!s} width={width}"
        functions[name] = function
    yield from _in_batches(functions, sample)


def _in_batches(functions: dict[str, Function], sample: Operands) -> Iterator[Variant]:
    """A few at a time: who asks for them may want the first only.

    Raises:
      Exception: none can be compiled. A few may not: too much shared memory, say.
    """
    errors = []
    for batch in itertools.batched(functions.items(), _COMPILED_TOGETHER):
        for found in compiled_together(dict(batch), sample):
            if isinstance(found, Exception):
                errors.append(found)
            else:
                yield found
    if functions and len(errors) == len(functions):
        raise errors[0]


def _ragged_why_not(case: Case, mode: str) -> str | None:
    row = case.row
    if row.layout != "ragged_m":
        return "takes groups of rows"
    if case.sizes is None or case.sizes.sum() != row.m:
        return "leaves rows without a group unwritten"
    if row.k % 64 or row.n % 128:
        return "needs k that is a multiple of 64 and n of 128"
    return _plain(case, mode)


def _ragged_variants(case: Case, mode: str, sample: Operands) -> Iterator[Variant]:
    del mode
    from jax.experimental.pallas.ops.gpu import ragged_dot_mgpu as ops

    functions: dict[str, Function] = {}
    shapes = ((64, 128, 4), (64, 256, 4), (64, 256, 5), (128, 128, 4), (128, 128, 5), (128, 256, 4))
    for (block_m, block_n, stages), width in itertools.product(shapes, (1, 4)):
        if case.row.n % (block_n * width):
            continue
        sizes = {"block_m": block_m, "block_n": block_n, "block_k": 64}
        options = {**sizes, "max_concurrent_steps": stages, "grid_block_n": width}

        def function(x: Operands, options: Any = options) -> jax.Array:
            return ops.ragged_dot(
                x["a"],
                x["b"],
                group_sizes=x["group_sizes"],
                transpose_rhs=case.row.trans_b,
                **options,
            )

        functions[f"{block_m}x{block_n} stages={stages} width={width}"] = function
    yield from _in_batches(functions, sample)


IMPLEMENTATIONS = (
    Implementation("jax.hopper_matmul", _matmul_why_not, _matmul_variants),
    Implementation("jax.ragged_dot_mgpu", _ragged_why_not, _ragged_variants),
)
