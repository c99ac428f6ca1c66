"""The order in which a persistent grid walks the output tiles, and who reads what there."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.experimental.pallas.mosaic_gpu as plgpu
from jax import lax
from jax.experimental import pallas as pl

from jaxgemm.problem import Problem


@dataclasses.dataclass(frozen=True)
class Tile:
    """One output tile of one CTA, as traced scalars.

    Attributes:
      batch_index: linear index over the batch axes of d.
      m_index: tiles above it.
      n_index: tiles to the left of it.
      turn: how many tiles this CTA has done before.
    """

    batch_index: jax.Array
    m_index: jax.Array
    n_index: jax.Array
    turn: jax.Array | int


@dataclasses.dataclass(frozen=True)
class TileOrder:
    """A walk over (batch, m, n): batch outermost, snaking in strips that fit the L2 cache.

    Attributes:
      num_batch: matrices in d.
      num_m: tiles along m.
      num_n: tiles along n.
      minor_dim: the dimension (0: m, 1: n) along which tiles of one strip lie side by side.
      strip_width: tiles side by side in a strip.
    """

    num_batch: int
    num_m: int
    num_n: int
    minor_dim: int
    strip_width: int

    @property
    def num_tiles(self) -> int:
        """Tiles of all matrices."""
        return self.num_batch * self.num_m * self.num_n

    def loop(
        self, grid_axis: str, body: Callable[[Tile], None], first: Any = 0, every: int = 1
    ) -> None:
        """Runs `body` on the tiles of this CTA, every `axis_size(grid_axis)`-th of the walk.

        `first` and `every` pick some of these turns: `first`, `first + every` and so on.
        """
        index, stride = lax.axis_index(grid_axis), lax.axis_size(grid_axis)
        num_turns = lax.div(self.num_tiles - 1 - index, stride) + 1
        per_matrix = self.num_m * self.num_n

        @pl.loop(0, lax.div(num_turns - first + every - 1, every))
        def _(step: jax.Array) -> None:
            turn = first + step * every
            position = turn * stride + index
            m_index, n_index = plgpu.planar_snake(
                lax.rem(position, per_matrix),
                (self.num_m, self.num_n),
                self.minor_dim,
                self.strip_width,
            )
            body(Tile(lax.div(position, per_matrix), m_index, n_index, turn))


def gmem_shape(problem: Problem, name: str) -> tuple[int, ...]:
    """The shape of an operand or output of which `operand_matrix` takes matrices.

    Its outermost batch axes are one leading axis, and those between its own dimensions are one too,
    which moves nothing.
    """
    spec, size = problem.spec, problem.size
    outside, inside = spec.outside_labels(name), spec.inside_labels(name)
    core = [size[label] for label in spec.core_labels(name)]
    between = [math.prod(size[label] for label in inside)] if inside else []
    return (math.prod(size[label] for label in outside), *core[:1], *between, *core[1:])


def operand_matrix(problem: Problem, name: str, gmem: Any, batch_index: jax.Array) -> Any:
    """The matrix (or row, or scalar) of an operand or output that makes matrix `batch_index` of d.

    `gmem` has its `gmem_shape`.
    """
    outside, inside = problem.spec.outside_labels(name), problem.spec.inside_labels(name)
    index = _entry_along(problem, outside, batch_index)
    if not inside:
        return gmem.at[index]
    return gmem.at[index, :, _entry_along(problem, inside, batch_index)]


def _entry_along(problem: Problem, own: tuple[str, ...], batch_index: jax.Array) -> jax.Array | int:
    """Which entry along some batch axes, taken as one, belongs to matrix `batch_index` of d.

    The batch axes of d are the digits of `batch_index`; `own` keeps those that it has.
    """
    axes = problem.spec.batch_labels("d")
    if own == axes:
        return batch_index
    index, d_stride, own_stride = 0, 1, 1
    for label in reversed(axes):
        size = problem.size[label]
        if label in own:
            index += own_stride * lax.rem(lax.div(batch_index, d_stride), size)
            own_stride *= size
        d_stride *= size
    return index
