"""The choices of the kernel of `dense.py`, and what follows from them."""

import dataclasses
from typing import Literal

from jax.experimental.pallas import cdiv

from jaxgemm import traffic
from jaxgemm.problem import Problem
from pallas_kernels.common.schedule import TileOrder

NUM_CONSUMERS = 2
# The first factor of wgmma has this many rows, or a multiple.
WGMMA_ROWS = 64

Side = Literal["m", "n"]


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
    def computes_transpose(self) -> bool:
        """Whether consumers compute columns times rows: bᵀ · aᵀ, the transpose of their part of d.

        Then the rows of d lie along the second factor of wgmma, which may have any multiple of 8.
        """
        return self.wg_tile[0] % WGMMA_ROWS != 0

    @property
    def n_axis(self) -> int:
        """The axis of an accumulator along which columns of d lie."""
        return 0 if self.computes_transpose else 1

    @property
    def acc_shape(self) -> tuple[int, int]:
        """Rows and columns of a consumer's accumulator."""
        m, n = self.wg_tile
        return (n, m) if self.computes_transpose else (m, n)

    @property
    def slice_rows(self) -> int:
        """Rows that a consumer finishes and stores at a time."""
        return self.wg_tile[0] // 2 if self.computes_transpose else WGMMA_ROWS

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
        return wg_tile_m // self.slice_rows * (wg_tile_n // self.slice_columns)

    def slice_within(self, index: int) -> tuple[slice, slice]:
        """Rows and columns of a slice within a consumer's part; rows vary fastest."""
        column, row = divmod(index, self.wg_tile[0] // self.slice_rows)
        m, n = row * self.slice_rows, column * self.slice_columns
        return slice(m, m + self.slice_rows), slice(n, n + self.slice_columns)

    def slice_within_acc(self, index: int) -> tuple[slice, slice]:
        """Where a slice lies in an accumulator."""
        rows, columns = self.slice_within(index)
        return (columns, rows) if self.computes_transpose else (rows, columns)

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
        """A slice of c, d and z, of those there are, for each consumer."""
        return NUM_CONSUMERS * self.slice_rows * self.slice_columns * self.staged_itemsize


def staged(problem: Problem) -> tuple[str, ...]:
    """The operands and outputs that pass through slices, which all have the same shape."""
    return (*loaded(problem), *problem.spec.outputs)


def loaded(problem: Problem) -> tuple[str, ...]:
    """The operands of the shape of d."""
    return tuple(name for name in ("c", "z") if problem.has(name))


def products(problem: Problem) -> tuple[str, ...]:
    """The operands that a is multiplied by."""
    return ("b", "b_up") if problem.spec.gated else ("b",)


def tile_order(problem: Problem, config: Config) -> TileOrder:
    """The walk over the tiles of d; with clusters, over theirs."""
    tile_m, tile_n = config.cluster_tile
    return TileOrder(
        num_batch=traffic.num_matrices(problem, "d"),
        num_m=cdiv(problem.m, tile_m),
        num_n=cdiv(problem.n, tile_n),
        minor_dim="mn".index(config.strip_along),
        strip_width=config.strip_width,
    )
