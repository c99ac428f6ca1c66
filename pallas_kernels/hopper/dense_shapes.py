"""What the kernel of `dense.py` can compute, and the tiles and stages that it can choose."""

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence

from jax.experimental.pallas import cdiv

from jaxgemm import traffic
from jaxgemm.device import Device
from jaxgemm.problem import Problem
from pallas_kernels.common import limits, tiles
from pallas_kernels.hopper.dense_config import (
    NUM_CONSUMERS,
    WGMMA_ROWS,
    Config,
    Side,
    products,
    staged,
    tile_order,
)

_MIN_SLOTS = 2
_OPERAND_DTYPES = ("bfloat16", "float16", "float32")
_OTHER_DTYPES = ("bfloat16", "float16", "float32")
_STRIP_WIDTH = 8
# Bytes along k of one stage, for operands of which a row is one swizzle atom.
_TILE_K_BYTES = 128
# One stage of six may go for slots; with one of four gone, loads came late (strips.jsonl).
_MIN_STAGES, _ENOUGH_STAGES, _MAX_STAGES = 2, 5, 8
# Barriers, and the alignment of every buffer.
_RESERVED_SMEM_BYTES = 1024

_Shape = tuple[int, int, Side | None, Side | None]
# (cta_tile_m, cta_tile_n, consumers_along, cluster_along)
_SHAPES: tuple[_Shape, ...] = (
    (128, 256, "m", "m"),
    (128, 256, "m", None),
    (256, 128, "m", "n"),
    (256, 128, "m", None),
    (256, 192, "m", None),
    (192, 256, "n", None),
    (128, 192, "m", "m"),
    (128, 192, "m", None),
    (128, 128, "m", None),
    (128, 64, "m", None),
    (64, 256, "n", None),
    (64, 128, "n", None),
    (128, 192, None, "m"),
    (192, 128, None, "n"),
    (128, 128, None, None),
    (64, 256, None, "m"),
)
# With two products a consumer holds twice as many accumulators for the same part of d.
_GATED_SHAPES: tuple[_Shape, ...] = (
    (128, 128, "m", "m"),
    (128, 128, "m", None),
    (256, 64, "m", "n"),
    (128, 64, "m", None),
    (64, 128, None, "m"),
    (128, 64, None, "n"),
    (64, 64, None, None),
)
# Heights between those above, for consumers that compute the transpose.
_FITTING_SHAPES: tuple[_Shape, ...] = (
    (208, 128, None, "n"),
    (208, 128, "n", None),
    (176, 128, None, "n"),
    (176, 128, "n", None),
    (160, 128, None, "n"),
    (160, 128, "n", None),
    (144, 128, None, "n"),
    (144, 128, "n", None),
)


def _contiguous(problem: Problem) -> set[tuple[str, int]]:
    return {tiles.contiguous_size(problem, name) for name in ("a", "b")}


def _atom_columns(problem: Problem, tile: Mapping[str, int]) -> int | None:
    """Elements in a row of a swizzle atom of a and b, for a tile with these sizes."""
    contiguous = _contiguous(problem)
    sizes = [*(size for _, size in contiguous), *(tile[x] for x, _ in contiguous if x in tile)]
    return tiles.atom_columns(sizes, [problem.dtype("a").itemsize])


def _slice_columns(problem: Problem, cta_tile_n: int, wg_tile_n: int) -> int | None:
    """Columns of a slice: the widest atom that divides a consumer's part and d."""
    itemsizes = [problem.dtype(name).itemsize for name in staged(problem)]
    for columns in tiles.atom_widths(itemsizes):
        whole = problem.n % columns == 0 or (problem.n < columns and not problem.has("bias"))
        fits = wg_tile_n % columns == 0 and _stays_inside(problem, cta_tile_n, columns)
        if whole and fits:
            return columns
    return None


def _stays_inside(problem: Problem, cta_tile_n: int, slice_columns: int) -> bool:
    """Whether a slice that lies past the last column of d is left out when it is stored.

    TMA leaves out what is past the end of d. But where d is one atom wide, and a slice too, Mosaic
    (0.11, 0.12) drops this dimension from the copy with its index, and the second slice of a tile
    would land on the first. So then the tile has to be as narrow as d.
    """
    return problem.n > slice_columns or cta_tile_n == slice_columns


def why_not(problem: Problem, device: Device) -> str | None:
    """None, or why this kernel cannot compute the problem."""
    return limits.first(_reasons(problem, device))


def _reasons(problem: Problem, device: Device) -> Iterator[str | None]:
    yield limits.device_is_not(device, (9, 0), "wgmma")
    yield limits.is_grouped(problem)
    yield limits.asks_for_sum(problem)
    yield limits.dtypes_are_not(problem, "a", _OPERAND_DTYPES)
    for name in products(problem):
        yield limits.dtypes_are_not(problem, name, (problem.dtype("a").name,))
    for name in (*staged(problem), *(("bias",) if problem.has("bias") else ())):
        yield limits.dtypes_are_not(problem, name, _OTHER_DTYPES)
    if problem.dtype("a").itemsize == 4:
        yield _why_not_tf32(problem)
    yield limits.has_unknown_activation(problem)
    yield limits.sums_over_batch(problem)
    yield limits.has_bad_size(problem)
    for name in ("a", *products(problem), *staged(problem)):
        yield tiles.why_not_tma(problem, name)
    if _atom_columns(problem, {}) is None:
        sizes = " and ".join(f"{x} = {size}" for x, size in sorted(_contiguous(problem)))
        yield f"{sizes}: swizzled tiles of a and b need these to be multiples of 16"
    if not configs(problem, device):
        yield (
            f"n = {problem.n}: no tile fits: slices of d need a multiple of 16 columns, and at"
            " least two slices"
        )


def _why_not_tf32(problem: Problem) -> str | None:
    """Float32 goes through the Tensor Cores as TF32, which wgmma reads along k only."""
    if problem.spec.precision == "highest":
        return "precision is highest: Tensor Cores round float32 to TF32, with 10 bits of mantissa"
    layout = f"{'TN'[problem.spec.a_contract]}{'NT'[problem.spec.b_contract]}"
    if layout == "NT":
        return None
    return (
        f"layout {layout} of float32: wgmma reads 4-byte elements along k only, and copying them"
        " costs more than it gains over XLA; a must be (m, k) and b (n, k), with transpose_b"
    )


def configs(problem: Problem, device: Device) -> tuple[Config, ...]:
    """Every tile shape, the best for large problems first, then the height that fits best.

    Each with as many stages as fit, and slots for slices in what is left. Where that is no room
    for all slices of a tile, and there are stages enough, it comes again with one stage less.
    """
    shapes = _GATED_SHAPES if problem.spec.gated else _SHAPES
    usual = [x for shape in shapes if (x := _unsized(problem, device, shape)) is not None]
    free_bytes = device.smem_bytes - _RESERVED_SMEM_BYTES
    chosen = [*usual, *_fitting(problem, device, usual)]
    return tuple(sized for config in chosen for sized in _sized(config, free_bytes))


def _fitting(problem: Problem, device: Device, usual: Sequence[Config]) -> Iterator[Config]:
    """The config of the height that fills waves best, if it does so better than the usual ones.

    Consumers take turns where there is more than one wave.

    On 132 SMs 5120 x 5120 takes 7 waves of 128 x 256, or 13 of 128 x 128, which could hold 1.16 and
    1.07 of it. Of 144 x 128 it takes 11, which could hold 1.02.
    """
    found = (_unsized(problem, device, shape) for shape in _FITTING_SHAPES)
    fits = [
        config
        for config in found
        if config is not None
        and config.takes_turns == (_waves(problem, config) > 1)
        and not any(_makes_useless(problem, other, config) for other in usual)
    ]
    if fits:
        yield min(fits, key=lambda config: _covered(problem, config))


def _makes_useless(problem: Problem, usual: Config, other: Config) -> bool:
    """Whether a config is larger than another and covers no more, or smaller in no more waves."""
    if _area(usual) >= _area(other):
        return _covered(problem, usual) <= _covered(problem, other)
    return _waves(problem, usual) <= _waves(problem, other)


def _waves(problem: Problem, config: Config) -> int:
    num_clusters = config.num_ctas // config.cluster_size
    return cdiv(tile_order(problem, config).num_tiles, num_clusters)


def _area(config: Config) -> int:
    return config.cta_tile_m * config.cta_tile_n


def _covered(problem: Problem, config: Config) -> int:
    """Elements that one CTA computes, past the edges of d and in a last, partly filled wave too."""
    return _waves(problem, config) * _area(config)


def _sized(config: Config, free_bytes: int) -> Iterator[Config]:
    """The config with the stages and slots that fit into shared memory."""
    stages = min(_MAX_STAGES, (free_bytes - _MIN_SLOTS * config.slot_bytes) // config.stage_bytes)
    most_slots = 0
    for count, least in ((stages, _MIN_STAGES), (stages - 1, _ENOUGH_STAGES)):
        slots = (free_bytes - count * config.stage_bytes) // config.slot_bytes
        slots = max(_MIN_SLOTS, min(config.num_slices, slots))
        # To turn through a power of two takes fewer registers.
        slots = 2 ** int(math.log2(slots))
        if count >= least and slots > most_slots:
            yield dataclasses.replace(config, stages=count, slots=slots)
        most_slots = slots


def _unsized(problem: Problem, device: Device, shape: _Shape) -> Config | None:
    """The config of a tile shape, yet without stages and slots; None if the shape does not fit."""
    cta_tile_m, cta_tile_n, consumers_along, cluster_along = shape
    wg_tile_n = cta_tile_n // (NUM_CONSUMERS if consumers_along == "n" else 1)
    atom_columns = _atom_columns(problem, {"m": cta_tile_m, "n": cta_tile_n})
    slice_columns = _slice_columns(problem, cta_tile_n, wg_tile_n)
    if atom_columns is None or slice_columns is None:
        return None
    itemsize = problem.dtype("a").itemsize
    config = Config(
        cta_tile_m=cta_tile_m,
        cta_tile_n=cta_tile_n,
        tile_k=_TILE_K_BYTES // itemsize,
        stages=0,
        consumers_along=consumers_along,
        cluster_along=cluster_along,
        atom_columns=atom_columns,
        slice_columns=slice_columns,
        operand_itemsize=itemsize,
        num_products=len(products(problem)),
        slots=0,
        staged_itemsize=sum(problem.dtype(name).itemsize for name in staged(problem)),
        strip_along="m" if cta_tile_m > cta_tile_n else "n",
        strip_width=_STRIP_WIDTH,
        num_ctas=device.num_sms,
    )
    if traffic.writes_dominate(problem, device):
        config = dataclasses.replace(
            config, strip_along="n", strip_width=cdiv(problem.n, config.cluster_tile[1])
        )
    accumulators = config.num_products * math.prod(config.wg_tile) // 128
    if accumulators > _max_accumulators(problem) or not _may_transpose(problem, config):
        return None
    return config


def _max_accumulators(problem: Problem) -> int:
    """Accumulators a thread may hold beside what the epilogue needs; with more, ptxas spills."""
    spec, has_c, has_bias = problem.spec, problem.has("c"), problem.has("bias")
    if has_c and spec.pullback:
        return 96
    if spec.activation == "tanh" and "z" in spec.outputs:
        return 128
    has_wide_bias = has_bias and problem.dtype("bias").itemsize > 2
    has_much = (has_c and (has_bias or spec.batch)) or has_wide_bias or spec.pullback
    if "z" in spec.outputs or has_much or spec.activation == "tanh":
        return 176
    return 192 if has_c or spec.activation == "gelu_exact" else 208


def _may_transpose(problem: Problem, config: Config) -> bool:
    """Whether the tile leaves swizzle atoms of a as wide as they can be, and slices fit wgmma."""
    if not config.computes_transpose:
        return True
    is_wide = config.atom_columns == _atom_columns(problem, {})
    return is_wide and config.slice_columns == WGMMA_ROWS
