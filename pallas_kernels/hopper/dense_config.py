"""What the kernel of `dense.py` can compute, and the tiles and stages that it can choose."""

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Literal

from jax.experimental.pallas import cdiv

from jaxgemm.device import Device
from jaxgemm.problem import Problem
from pallas_kernels.common import limits, tiles
from pallas_kernels.common.schedule import TileOrder, num_matrices

NUM_CONSUMERS = 2
# A consumer finishes its part of a tile in slices of this many rows, in turns through the slots.
SLICE_ROWS = 64
_MIN_SLOTS = 2
_OPERAND_DTYPES = ("bfloat16", "float16", "float32")
_OTHER_DTYPES = ("bfloat16", "float16", "float32")
# Accumulators a thread may hold; where the epilogue does more than round, more would be spilled.
_MAX_ACCUMULATORS, _MAX_PLAIN_ACCUMULATORS = 128, 192
_STRIP_WIDTH = 8
# Bytes along k of one stage, for operands of which a row is one swizzle atom.
_TILE_K_BYTES = 128
# One stage of six may go for slots; with one of four gone, loads came late (strips.jsonl).
_MIN_STAGES, _ENOUGH_STAGES, _MAX_STAGES = 2, 5, 8
# Operands of one matrix of d that stay in the L2 cache whatever the order of tiles: a part of it.
_L2_PART = 3
# Barriers, and the alignment of every buffer.
_RESERVED_SMEM_BYTES = 1024

Side = Literal["m", "n"]
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


@dataclasses.dataclass(frozen=True)
class Config:
    """Choices of this kernel.

    Attributes:
      cta_tile_m: rows of d that a CTA computes at a time.
      cta_tile_n: columns of d that a CTA computes at a time.
      tile_k: contraction depth of one stage.
      stages: slots of the ring of a and b tiles.
      consumers_along: the side of the CTA's tile that the consumers divide among them; None: they
        take whole tiles in turns, so that one finishes its tile while the other multiplies.
      cluster_along: the side along which two CTAs form a cluster and share the loads of the
        other side's operand; None for CTAs on their own.
      atom_columns: elements in a row of a swizzle atom of a and b.
      slice_columns: columns that a consumer finishes and stores at a time.
      operand_itemsize: bytes of an element of a and b.
      num_products: 1, or 2 for a·b and a·b_up.
      slots: slices of each consumer that can be on their way from or to global memory.
      staged_itemsize: bytes that c, d and z together take per element of a slice.
      strip_along: the side along which tiles that are computed together lie next to each other.
      strip_width: how many of them lie there before the walk turns to the next row.
      num_ctas: size of the persistent grid.
    """

    cta_tile_m: int
    cta_tile_n: int
    tile_k: int
    stages: int
    consumers_along: Side | None
    cluster_along: Side | None
    atom_columns: int
    slice_columns: int
    operand_itemsize: int
    num_products: int
    slots: int
    staged_itemsize: int
    strip_along: Side
    strip_width: int
    num_ctas: int

    @property
    def cta_tile(self) -> tuple[int, int, int]:
        """Rows, columns and contraction depth of one step."""
        return self.cta_tile_m, self.cta_tile_n, self.tile_k

    @property
    def takes_turns(self) -> bool:
        """Whether consumers take whole tiles in turns, so that epilogues hide behind products."""
        return self.consumers_along is None

    @property
    def consumers_per_tile(self) -> int:
        """Consumers that read a slot of the ring."""
        return 1 if self.takes_turns else NUM_CONSUMERS

    @property
    def wg_tile(self) -> tuple[int, int]:
        """Rows and columns of one consumer's part of the tile."""
        if self.takes_turns:
            return self.cta_tile_m, self.cta_tile_n
        if self.consumers_along == "m":
            return self.cta_tile_m // NUM_CONSUMERS, self.cta_tile_n
        return self.cta_tile_m, self.cta_tile_n // NUM_CONSUMERS

    @property
    def cluster_tile(self) -> tuple[int, int]:
        """Rows and columns of d that a cluster computes at a time."""
        m = self.cta_tile_m * (self.cluster_size if self.cluster_along == "m" else 1)
        n = self.cta_tile_n * (self.cluster_size if self.cluster_along == "n" else 1)
        return m, n

    @property
    def num_slices(self) -> int:
        """Slices of one consumer's part of the tile."""
        wg_tile_m, wg_tile_n = self.wg_tile
        return wg_tile_m // SLICE_ROWS * (wg_tile_n // self.slice_columns)

    def slice_within(self, index: int) -> tuple[slice, slice]:
        """Rows and columns of a slice within a consumer's part; rows vary fastest."""
        column, row = divmod(index, self.wg_tile[0] // SLICE_ROWS)
        m, n = row * SLICE_ROWS, column * self.slice_columns
        return slice(m, m + SLICE_ROWS), slice(n, n + self.slice_columns)

    @property
    def cluster_size(self) -> int:
        """CTAs that share operand loads."""
        return 1 if self.cluster_along is None else 2

    @property
    def split_k(self) -> int:
        """CTAs that share one tile's contraction."""
        return 1

    @property
    def stage_bytes(self) -> int:
        """One slot of the ring: a tile of a, and one of b for each product."""
        width = self.cta_tile_m + self.num_products * self.cta_tile_n
        return width * self.tile_k * self.operand_itemsize

    @property
    def smem_bytes(self) -> int:
        """The ring, and the slices that are being loaded or stored."""
        return self.stages * self.stage_bytes + self.slots * self.slot_bytes

    @property
    def slot_bytes(self) -> int:
        """A slice of c, d and z for each consumer."""
        return NUM_CONSUMERS * SLICE_ROWS * self.slice_columns * self.staged_itemsize


def staged(problem: Problem) -> tuple[str, ...]:
    """The operands and outputs that pass through slices, which all have the same shape."""
    return (*(("c",) if problem.has("c") else ()), *problem.spec.outputs)


def products(problem: Problem) -> tuple[str, ...]:
    """The operands that a is multiplied by."""
    return ("b", "b_up") if problem.spec.gated else ("b",)


def _shapes(problem: Problem) -> tuple[_Shape, ...]:
    return _GATED_SHAPES if problem.spec.gated else _SHAPES


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


def _writes_dominate(problem: Problem, device: Device) -> bool:
    """Whether tiles that are computed together should form whole rows of d.

    Strips keep operands in L2. Where those fit anyway and d is larger, long rows are written
    faster: 8192 x 8192 x 64 takes 38.2 us instead of 41.2 with tiles of 128 x 256, and 36.5 instead
    of 40.4 with 128 x 64 (H200, benchmarks/results/nvidia_h200/strips.jsonl).
    """
    matrices = num_matrices(problem, "d")
    operands = sum(
        problem.bytes_of(n) // num_matrices(problem, n) for n in ("a", *products(problem))
    )
    written = sum(problem.bytes_of(name) for name in problem.spec.outputs) // matrices
    return operands < min(written, device.l2_bytes // _L2_PART)


def tile_order(problem: Problem, config: Config) -> TileOrder:
    """The walk over the tiles of d; with clusters, over theirs."""
    tile_m, tile_n = config.cluster_tile
    return TileOrder(
        num_batch=num_matrices(problem, "d"),
        num_m=cdiv(problem.m, tile_m),
        num_n=cdiv(problem.n, tile_n),
        minor_dim="mn".index(config.strip_along),
        strip_width=config.strip_width,
    )


def why_not(problem: Problem, device: Device) -> str | None:
    """None, or why this kernel cannot compute the problem."""
    return limits.first(_reasons(problem, device))


def _reasons(problem: Problem, device: Device) -> Iterator[str | None]:
    yield limits.device_is_not(device, (9, 0), "wgmma")
    yield limits.is_grouped(problem)
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
        f"layout {layout} of float32: wgmma reads 4-byte elements along k only, so a must be"
        " (m, k) and b (n, k), with transpose_b"
    )


def configs(problem: Problem, device: Device) -> tuple[Config, ...]:
    """Every tile shape, the best for large problems first.

    Each with as many stages as fit, and slots for slices in what is left. Where that is no room
    for all slices of a tile, and there are stages enough, it comes again with one stage less.
    """
    found: list[Config] = []
    for shape in _shapes(problem):
        config = _unsized(problem, device, shape)
        if config is not None:
            free = device.smem_bytes - _RESERVED_SMEM_BYTES
            found += _sized(config, free)
    return tuple(found)


def _sized(config: Config, free_bytes: int) -> Iterator[Config]:
    """The config with the stages and slots that fit into shared memory."""
    stages = min(_MAX_STAGES, (free_bytes - _MIN_SLOTS * config.slot_bytes) // config.stage_bytes)
    most_slots = 0
    for count, least in ((stages, _MIN_STAGES), (stages - 1, _ENOUGH_STAGES)):
        slots = (free_bytes - count * config.stage_bytes) // config.slot_bytes
        slots = max(_MIN_SLOTS, min(config.num_slices, slots))
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
    if _writes_dominate(problem, device):
        config = dataclasses.replace(
            config, strip_along="n", strip_width=cdiv(problem.n, config.cluster_tile[1])
        )
    plain = problem.spec.operands == ("a", "b") and problem.spec.activation is None
    max_accumulators = _MAX_PLAIN_ACCUMULATORS if plain else _MAX_ACCUMULATORS
    accumulators = config.num_products * math.prod(config.wg_tile) // 128
    return config if accumulators <= max_accumulators else None
