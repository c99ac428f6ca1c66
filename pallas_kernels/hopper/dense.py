"""Dense and batched GEMM on Hopper: TMA, wgmma, warp-specialised and persistent."""

import dataclasses
import types
from typing import Any, Literal

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
from jax import lax

from jaxgemm.device import Device
from jaxgemm.kernel import Kernel, Operands
from jaxgemm.problem import Problem
from pallas_kernels.common.schedule import Tile, TileOrder, num_matrices, operand_matrix
from pallas_kernels.common.tiles import swizzled

_NUM_CONSUMERS = 2
_EPILOGUE_ROWS = 64
_EPILOGUE_SLOTS = 2
_PRODUCER_REGISTERS = 40
_CONSUMER_REGISTERS = 232


@dataclasses.dataclass(frozen=True)
class Config:
    """Choices of this kernel.

    Attributes:
      cta_tile_m: rows of d that a CTA computes at a time.
      cta_tile_n: columns of d that a CTA computes at a time.
      tile_k: contraction depth of one stage.
      stages: slots of the ring of a and b tiles.
      consumers_along: which side of the CTA's tile its two consumers divide.
      epilogue_columns: columns that a consumer stages at a time.
      staged_itemsize: bytes that c, d and z together take per staged element.
      minor_dim: the side (0: m, 1: n) along which neighbouring CTAs lie.
      strip_width: how many tiles lie side by side before the walk turns to the next row.
      num_ctas: size of the persistent grid.
    """

    cta_tile_m: int
    cta_tile_n: int
    tile_k: int
    stages: int
    consumers_along: Literal["m", "n"]
    epilogue_columns: int
    staged_itemsize: int
    minor_dim: int
    strip_width: int
    num_ctas: int

    @property
    def cta_tile(self) -> tuple[int, int, int]:
        """Rows, columns and contraction depth of one step."""
        return self.cta_tile_m, self.cta_tile_n, self.tile_k

    @property
    def wg_tile_m(self) -> int:
        """Rows of one consumer's part of the tile."""
        return self.cta_tile_m // (_NUM_CONSUMERS if self.consumers_along == "m" else 1)

    @property
    def wg_tile_n(self) -> int:
        """Columns of one consumer's part of the tile."""
        return self.cta_tile_n // (_NUM_CONSUMERS if self.consumers_along == "n" else 1)

    @property
    def cluster_size(self) -> int:
        """CTAs that share operand loads."""
        return 1

    @property
    def split_k(self) -> int:
        """CTAs that share one tile's contraction."""
        return 1

    @property
    def smem_bytes(self) -> int:
        """The ring of a and b, and the staging of the epilogue."""
        ring = self.stages * (self.cta_tile_m + self.cta_tile_n) * self.tile_k * 2
        slot = _EPILOGUE_ROWS * self.epilogue_columns * self.staged_itemsize
        return ring + _NUM_CONSUMERS * _EPILOGUE_SLOTS * slot


def why_not(problem: Problem, device: Device) -> str | None:
    return None


def configs(problem: Problem, device: Device) -> tuple[Config, ...]:
    names = [n for n in ("c", "d", "z") if n in (*problem.spec.operands, *problem.spec.outputs)]
    itemsizes = [problem.dtype(n).itemsize for n in names]
    columns = 128 // max(itemsizes)
    out = []
    for m, n, stages, along, minor, width in (
        (128, 256, 4, "m", 1, 8),
        (128, 256, 4, "n", 1, 8),
        (256, 128, 4, "m", 0, 8),
        (128, 256, 4, "m", 0, 8),
        (128, 256, 3, "m", 1, 16),
        (128, 128, 6, "m", 1, 8),
        (128, 64, 6, "m", 1, 8),
    ):
        out.append(
            Config(m, n, 64, stages, along, columns, sum(itemsizes), minor, width, device.num_sms)
        )
    return tuple(c for c in out if c.smem_bytes + 1024 <= device.smem_bytes)


@dataclasses.dataclass(frozen=True)
class _Cta:
    """What every role of a CTA knows.

    Attributes:
      problem: the whole problem.
      config: the choices.
      refs: `a_gmem` and so on for operands and outputs, and the entries of `_scratch`.
    """

    problem: Problem
    config: Config
    refs: types.SimpleNamespace

    @property
    def num_steps(self) -> int:
        """Stages that one tile's contraction takes."""
        return pl.cdiv(self.problem.k, self.config.tile_k)

    def stage(self, tile: Tile, step: Any) -> jax.Array:
        """The slot of the ring that a step of a tile uses; the ring goes on across tiles."""
        return lax.rem(tile.turn * self.num_steps + step, self.config.stages)

    def matrix(self, name: str, tile: Tile) -> jax.Ref:
        """The matrix (or row, or scalar) of an operand or output that a tile belongs to."""
        index = operand_matrix(self.problem, name, tile.batch_index)
        return getattr(self.refs, f"{name}_gmem").at[index]


def _produce(cta: _Cta, tile: Tile) -> None:
    """Loads the tiles of a and b of one output tile, as fast as slots become empty."""
    spec, config, refs = cta.problem.spec, cta.config, cta.refs
    rows = _span(tile.m_index * config.cta_tile_m, config.cta_tile_m)
    columns = _span(tile.n_index * config.cta_tile_n, config.cta_tile_n)
    a_gmem, b_gmem = cta.matrix("a", tile), cta.matrix("b", tile)

    @pl.loop(0, cta.num_steps)
    def _(step: jax.Array) -> None:
        stage = cta.stage(tile, step)
        depth = _span(step * config.tile_k, config.tile_k)
        a_tile = (rows, depth) if spec.a_contract == 1 else (depth, rows)
        b_tile = (depth, columns) if spec.b_contract == 0 else (columns, depth)
        ab_full = refs.ab_full.at[stage]
        plgpu.barrier_wait(refs.ab_empty.at[stage])
        plgpu.copy_gmem_to_smem(a_gmem.at[a_tile], refs.a_smem.at[stage], ab_full)
        plgpu.copy_gmem_to_smem(b_gmem.at[b_tile], refs.b_smem.at[stage], ab_full)


def _multiply(cta: _Cta, tile: Tile, wg: jax.Array, acc: Any) -> None:
    """Sums the products of one consumer's part of the tile into `acc`."""
    spec, config, refs = cta.problem.spec, cta.config, cta.refs
    along_m = config.consumers_along == "m"
    rows = pl.ds(wg * config.wg_tile_m, config.wg_tile_m) if along_m else slice(None)
    columns = slice(None) if along_m else pl.ds(wg * config.wg_tile_n, config.wg_tile_n)

    @pl.loop(0, cta.num_steps)
    def _(step: jax.Array) -> None:
        stage = cta.stage(tile, step)
        a_smem, b_smem = refs.a_smem.at[stage], refs.b_smem.at[stage]
        if spec.a_contract == 0:
            a_smem = a_smem.transpose((1, 0))
        if spec.b_contract == 1:
            b_smem = b_smem.transpose((1, 0))
        plgpu.barrier_wait(refs.ab_full.at[stage])
        plgpu.wgmma(acc, a_smem.at[rows], b_smem.at[:, columns])
        # At most this step is still reading, so the slot of the step before is empty.
        plgpu.wgmma_wait(1)

        @pl.when(step > 0)
        def _() -> None:
            plgpu.barrier_arrive(refs.ab_empty.at[cta.stage(tile, step - 1)])

    plgpu.wgmma_wait(0)
    plgpu.barrier_arrive(refs.ab_empty.at[cta.stage(tile, cta.num_steps - 1)])


def _store(cta: _Cta, tile: Tile, wg: jax.Array, acc: Any) -> None:
    """Finishes one consumer's part of the tile and stores it, slice by slice."""
    problem, config, refs = cta.problem, cta.config, cta.refs
    m_offset = tile.m_index * config.cta_tile_m
    n_offset = tile.n_index * config.cta_tile_n
    if config.consumers_along == "m":
        m_offset += wg * config.wg_tile_m
    else:
        n_offset += wg * config.wg_tile_n
    d_gmem = cta.matrix("d", tile)
    product = acc[...]
    num_slices = config.wg_tile_m // _EPILOGUE_ROWS * (config.wg_tile_n // config.epilogue_columns)
    index = 0
    for n in range(0, config.wg_tile_n, config.epilogue_columns):
        for m in range(0, config.wg_tile_m, _EPILOGUE_ROWS):
            z = product[m : m + _EPILOGUE_ROWS, n : n + config.epilogue_columns]
            # Slots alternate across tiles too: a tile may have an odd number of slices.
            slot = lax.rem(tile.turn * num_slices + index, _EPILOGUE_SLOTS)
            d_smem = refs.d_smem.at[wg, slot]
            plgpu.wait_smem_to_gmem(_EPILOGUE_SLOTS - 1, wait_read_only=True)
            d_smem[...] = z.astype(problem.dtype("d"))
            plgpu.commit_smem()
            target = (
                _span(m_offset + m, _EPILOGUE_ROWS),
                _span(n_offset + n, config.epilogue_columns),
            )
            plgpu.copy_smem_to_gmem(d_smem, d_gmem.at[target])
            index += 1


def _span(offset: Any, size: int) -> Any:
    """A slice for a TMA copy, which needs the proof that it starts at a swizzle atom."""
    return pl.ds(pl.multiple_of(offset, 8), size)


def _body(problem: Problem, config: Config, order: TileOrder, refs: types.SimpleNamespace) -> None:
    cta = _Cta(problem, config, refs)
    wg = lax.axis_index("wg")

    def produce() -> None:
        plgpu.set_max_registers(_PRODUCER_REGISTERS, action="decrease")
        order.loop("cta", lambda tile: _produce(cta, tile))
        # The last tiles' slots are handed back too, so that no barrier is left in mid-phase.
        pl.loop(0, config.stages)(lambda stage: plgpu.barrier_wait(refs.ab_empty.at[stage]))

    def consume() -> None:
        plgpu.set_max_registers(_CONSUMER_REGISTERS, action="increase")
        # All slots are empty at first.
        pl.loop(0, config.stages)(lambda stage: plgpu.barrier_arrive(refs.ab_empty.at[stage]))

        def finish(tile: Tile) -> None:
            def with_accumulator(acc: Any) -> None:
                _multiply(cta, tile, wg, acc)
                _store(cta, tile, wg, acc)

            shape = (config.wg_tile_m, config.wg_tile_n)
            pl.run_scoped(with_accumulator, plgpu.ACC(shape, jnp.float32))

        order.loop("cta", finish)
        plgpu.wait_smem_to_gmem(0)

    lax.cond(wg == _NUM_CONSUMERS, produce, consume)


def _scratch(problem: Problem, config: Config) -> dict[str, Any]:
    tile_m, tile_n, tile_k = config.cta_tile
    a_tile = (tile_m, tile_k) if problem.spec.a_contract == 1 else (tile_k, tile_m)
    b_tile = (tile_k, tile_n) if problem.spec.b_contract == 0 else (tile_n, tile_k)
    staging = (_NUM_CONSUMERS, _EPILOGUE_SLOTS, _EPILOGUE_ROWS, config.epilogue_columns)
    return {
        "a_smem": swizzled((config.stages, *a_tile), problem.dtype("a")),
        "b_smem": swizzled((config.stages, *b_tile), problem.dtype("b")),
        "d_smem": swizzled(staging, problem.dtype("d")),
        # One arrival for each of the two copies of a stage.
        "ab_full": plgpu.Barrier(num_arrivals=2, num_barriers=config.stages),
        "ab_empty": plgpu.Barrier(num_arrivals=_NUM_CONSUMERS, num_barriers=config.stages),
    }


def run(problem: Problem, config: Config, operands: Operands) -> tuple[jax.Array, ...]:
    """Computes the outputs of the spec; trusts `why_not` and `configs`."""
    spec = problem.spec
    names = (*spec.operands, *spec.outputs)
    order = TileOrder(
        num_matrices(problem, "d"),
        pl.cdiv(problem.m, config.cta_tile_m),
        pl.cdiv(problem.n, config.cta_tile_n),
        config.minor_dim,
        config.strip_width,
    )

    def core(name: str) -> tuple[int, ...]:
        """Own matrices first, whatever the number of batch axes."""
        return num_matrices(problem, name), *(problem.size[x] for x in spec.core_labels(name))

    def body(*gmem: jax.Ref, **scratch: Any) -> None:
        gmem_refs = {f"{name}_gmem": ref for name, ref in zip(names, gmem, strict=True)}
        _body(problem, config, order, types.SimpleNamespace(**gmem_refs, **scratch))

    outputs = plgpu.kernel(
        body,
        out_type=tuple(jax.ShapeDtypeStruct(core(n), problem.dtype(n)) for n in spec.outputs),
        scratch_types=_scratch(problem, config),
        grid=(min(order.num_tiles, config.num_ctas),),
        grid_names=("cta",),
        num_threads=_NUM_CONSUMERS + 1,
        thread_name="wg",
        kernel_name="pallas_hopper_dense",
        compiler_params=plgpu.CompilerParams(lowering_semantics=plgpu.LoweringSemantics.Warpgroup),
    )(*(operands[name].reshape(core(name)) for name in spec.operands))
    return tuple(x.reshape(problem.shape(n)) for n, x in zip(spec.outputs, outputs, strict=True))


KERNEL = Kernel("pallas.hopper.dense", 1, why_not, configs, run)
