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
from pallas_kernels.common import epilogue
from pallas_kernels.common.schedule import Tile, TileOrder, num_matrices, operand_matrix
from pallas_kernels.common.tiles import swizzled

_NUM_CONSUMERS = 2
_EPILOGUE_ROWS = 64
_EPILOGUE_SLOTS = 2
_PRODUCER_REGISTERS = 40
_CONSUMER_REGISTERS = 232
_MIN_STAGES, _MAX_STAGES = 2, 8
# Barriers, and the alignment of every buffer.
_RESERVED_SMEM_BYTES = 1024
# Per SM: multiply-adds of 16-bit wgmma, bytes that arrive from L2, and what a tile costs besides.
_FMAS_PER_CLOCK, _BYTES_PER_CLOCK, _CLOCKS_PER_TILE = 2048, 48, 2000
# (cta_tile_m, cta_tile_n, consumers_along, cluster_along, strip_width)
_SHAPES: tuple[tuple[int, int, Literal["m", "n"], Literal["m", "n"] | None, int], ...] = (
    (128, 256, "m", "m", 8),
    (128, 256, "m", None, 8),
    (128, 256, "n", "m", 8),
    (256, 128, "m", "n", 8),
    (256, 128, "m", None, 8),
    (128, 192, "m", "m", 8),
    (128, 128, "m", None, 8),
    (128, 64, "m", None, 8),
    (64, 256, "n", None, 8),
    (64, 128, "n", None, 8),
)


@dataclasses.dataclass(frozen=True)
class Config:
    """Choices of this kernel.

    Attributes:
      cta_tile_m: rows of d that a CTA computes at a time.
      cta_tile_n: columns of d that a CTA computes at a time.
      tile_k: contraction depth of one stage.
      stages: slots of the ring of a and b tiles.
      consumers_along: which side of the CTA's tile its two consumers divide.
      cluster_along: along which side of d two CTAs form a cluster and share the loads of the
        other operand; None for CTAs on their own.
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
    cluster_along: Literal["m", "n"] | None
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
    def num_slices(self) -> int:
        """Pieces in which a consumer finishes and stores its part of the tile."""
        rows, columns = self.wg_tile_m // _EPILOGUE_ROWS, self.wg_tile_n // self.epilogue_columns
        return rows * columns

    def slice_offsets(self, index: int) -> tuple[int, int]:
        """Row and column at which a slice begins within a consumer's part; rows vary fastest."""
        column, row = divmod(index, self.wg_tile_m // _EPILOGUE_ROWS)
        return row * _EPILOGUE_ROWS, column * self.epilogue_columns

    @property
    def cluster_size(self) -> int:
        """CTAs that share operand loads."""
        return 1 if self.cluster_along is None else 2

    @property
    def cluster_tile(self) -> tuple[int, int]:
        """Rows and columns of d that a cluster computes at a time."""
        m = self.cta_tile_m * (self.cluster_size if self.cluster_along == "m" else 1)
        n = self.cta_tile_n * (self.cluster_size if self.cluster_along == "n" else 1)
        return m, n

    @property
    def split_k(self) -> int:
        """CTAs that share one tile's contraction."""
        return 1

    @property
    def smem_bytes(self) -> int:
        """The ring of a and b, and the staging of the epilogue."""
        slot = _EPILOGUE_ROWS * self.epilogue_columns * self.staged_itemsize
        return self.stages * self.stage_bytes + _NUM_CONSUMERS * _EPILOGUE_SLOTS * slot

    @property
    def stage_bytes(self) -> int:
        """One slot of the ring."""
        return 2 * (self.cta_tile_m + self.cta_tile_n) * self.tile_k


def why_not(problem: Problem, device: Device) -> str | None:
    return None


def configs(problem: Problem, device: Device) -> tuple[Config, ...]:
    """Every tile with as many stages as fit, the cheapest by `_clocks` first."""
    itemsizes = [problem.dtype(name).itemsize for name in _staged(problem)]
    found = []
    for tile_m, tile_n, consumers_along, cluster_along, strip_width in _SHAPES:
        config = Config(
            cta_tile_m=tile_m,
            cta_tile_n=tile_n,
            tile_k=64,
            stages=0,
            consumers_along=consumers_along,
            cluster_along=cluster_along,
            epilogue_columns=128 // max(itemsizes),
            staged_itemsize=sum(itemsizes),
            minor_dim=0 if tile_m > tile_n else 1,
            strip_width=strip_width,
            num_ctas=device.num_sms,
        )
        free = device.smem_bytes - _RESERVED_SMEM_BYTES - config.smem_bytes
        stages = min(_MAX_STAGES, free // config.stage_bytes)
        if stages >= _MIN_STAGES:
            found.append(dataclasses.replace(config, stages=stages))
    return tuple(sorted(found, key=lambda config: _clocks(problem, config)))


def _clocks(problem: Problem, config: Config) -> float:
    """A rough time, only to order configs: waves of tiles, each bound by wgmma or by its loads."""
    tile_m, tile_n, _ = config.cta_tile
    m, n = config.cluster_tile
    num_tiles = num_matrices(problem, "d") * pl.cdiv(problem.m, m) * pl.cdiv(problem.n, n)
    waves = pl.cdiv(num_tiles, config.num_ctas // config.cluster_size)
    shared = {None: 0, "m": tile_n, "n": tile_m}[config.cluster_along] / 2
    per_k = max(
        tile_m * tile_n / _FMAS_PER_CLOCK, 2 * (tile_m + tile_n - shared) / _BYTES_PER_CLOCK
    )
    return waves * (problem.k * per_k + _CLOCKS_PER_TILE)


def _staged(problem: Problem) -> tuple[str, ...]:
    """The operands and outputs that pass through staging slices, all of the same shape."""
    return (*(("c",) if problem.has("c") else ()), *problem.spec.outputs)


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

    def part(self, tile: Tile) -> Tile:
        """This CTA's part of a cluster's tile."""
        side, size = self.config.cluster_along, self.config.cluster_size
        if side is None:
            return tile
        index = getattr(tile, f"{side}_index") * size + lax.axis_index("peer")
        return dataclasses.replace(tile, **{f"{side}_index": index})

    def stage(self, tile: Tile, step: Any) -> jax.Array:
        """The slot of the ring that a step of a tile uses; the ring goes on across tiles."""
        return lax.rem(tile.turn * self.num_steps + step, self.config.stages)

    def slot(self, tile: Tile, index: int) -> jax.Array:
        """The staging slot of a slice; slots alternate across tiles, which may have odd counts."""
        return lax.rem(tile.turn * self.config.num_slices + index, _EPILOGUE_SLOTS)

    def offsets(self, tile: Tile, wg: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Row and column at which one consumer's part of a tile begins."""
        m_offset = tile.m_index * self.config.cta_tile_m
        n_offset = tile.n_index * self.config.cta_tile_n
        if self.config.consumers_along == "m":
            return m_offset + wg * self.config.wg_tile_m, n_offset
        return m_offset, n_offset + wg * self.config.wg_tile_n

    def slice(self, tile: Tile, wg: jax.Array, index: int) -> tuple[Any, Any]:
        """The rows and columns of c, d and z that a slice of a consumer's part covers."""
        m_offset, n_offset = self.offsets(tile, wg)
        m, n = self.config.slice_offsets(index)
        return (
            _span(m_offset + m, _EPILOGUE_ROWS),
            _span(n_offset + n, self.config.epilogue_columns),
        )

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
    # CTAs side by side along m need the same tile of b, and along n the same tile of a.
    a_shared_by = "peer" if config.cluster_along == "n" else None
    b_shared_by = "peer" if config.cluster_along == "m" else None

    @pl.loop(0, cta.num_steps)
    def _(step: jax.Array) -> None:
        stage = cta.stage(tile, step)
        depth = _span(step * config.tile_k, config.tile_k)
        a_tile = (rows, depth) if spec.a_contract == 1 else (depth, rows)
        b_tile = (depth, columns) if spec.b_contract == 0 else (columns, depth)
        ab_full = refs.ab_full.at[stage]
        plgpu.barrier_wait(refs.ab_empty.at[stage])
        plgpu.copy_gmem_to_smem(
            a_gmem.at[a_tile], refs.a_smem.at[stage], ab_full, collective_axes=a_shared_by
        )
        plgpu.copy_gmem_to_smem(
            b_gmem.at[b_tile], refs.b_smem.at[stage], ab_full, collective_axes=b_shared_by
        )


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


def _copy_c(cta: _Cta, tile: Tile, wg: jax.Array, index: int) -> None:
    """Begins to load one slice of c."""
    refs, slot = cta.refs, cta.slot(tile, index)
    source = cta.matrix("c", tile).at[cta.slice(tile, wg, index)]
    plgpu.copy_gmem_to_smem(source, refs.c_smem.at[wg, slot], refs.c_full.at[wg, slot])


def _load_factors(cta: _Cta, tile: Tile, wg: jax.Array) -> epilogue.Factors:
    problem, config = cta.problem, cta.config

    def scalar(name: str) -> jax.Array | None:
        return cta.matrix(name, tile)[...] if problem.has(name) else None

    bias = None
    if problem.has("bias"):
        _, n_offset = cta.offsets(tile, wg)
        columns = config.epilogue_columns
        bias = epilogue.load_bias(
            cta.matrix("bias", tile), n_offset, columns, config.wg_tile_n // columns
        )
    return epilogue.Factors(scalar("alpha"), scalar("beta"), bias)


def _store(cta: _Cta, tile: Tile, wg: jax.Array, acc: Any, factors: epilogue.Factors) -> None:
    """Finishes one consumer's part of the tile and stores it, slice by slice."""
    problem, config, refs = cta.problem, cta.config, cta.refs
    product = acc[...]
    for index in range(config.num_slices):
        m, n = config.slice_offsets(index)
        slot = cta.slot(tile, index)
        c = None
        if problem.has("c"):
            plgpu.barrier_wait(refs.c_full.at[wg, slot])
            c = refs.c_smem[wg, slot]
        z, d = epilogue.apply(
            problem,
            product[m : m + _EPILOGUE_ROWS, n : n + config.epilogue_columns],
            c,
            factors,
            n // config.epilogue_columns,
        )
        # This warpgroup's stores have read the slot before it is overwritten.
        plgpu.wait_smem_to_gmem(_EPILOGUE_SLOTS - 1, wait_read_only=True)
        staged = {"d": d, "z": z}
        for name in problem.spec.outputs:
            smem = getattr(refs, f"{name}_smem")
            smem[wg, slot] = staged[name].astype(problem.dtype(name))
        plgpu.commit_smem()
        for name in problem.spec.outputs:
            smem = getattr(refs, f"{name}_smem")
            target = cta.matrix(name, tile).at[cta.slice(tile, wg, index)]
            last = name == problem.spec.outputs[-1]
            plgpu.copy_smem_to_gmem(smem.at[wg, slot], target, commit_group=last)
        if problem.has("c") and index + _EPILOGUE_SLOTS < config.num_slices:
            _copy_c(cta, tile, wg, index + _EPILOGUE_SLOTS)


def _span(offset: Any, size: int) -> Any:
    """A slice for a TMA copy, which needs the proof that it starts at a swizzle atom."""
    return pl.ds(pl.multiple_of(offset, 8), size)


def _body(problem: Problem, config: Config, order: TileOrder, refs: types.SimpleNamespace) -> None:
    cta = _Cta(problem, config, refs)
    wg = lax.axis_index("wg")

    def produce() -> None:
        plgpu.set_max_registers(_PRODUCER_REGISTERS, action="decrease")
        order.loop("cluster", lambda tile: _produce(cta, cta.part(tile)))
        # The last tiles' slots are handed back too, so that no barrier is left in mid-phase.
        pl.loop(0, config.stages)(lambda stage: plgpu.barrier_wait(refs.ab_empty.at[stage]))

    def consume() -> None:
        plgpu.set_max_registers(_CONSUMER_REGISTERS, action="increase")
        # All slots are empty at first.
        pl.loop(0, config.stages)(lambda stage: plgpu.barrier_arrive(refs.ab_empty.at[stage]))

        def finish(cluster_tile: Tile) -> None:
            tile = cta.part(cluster_tile)

            def with_accumulator(acc: Any) -> None:
                if problem.has("c"):
                    for index in range(min(_EPILOGUE_SLOTS, config.num_slices)):
                        _copy_c(cta, tile, wg, index)
                _multiply(cta, tile, wg, acc)
                _store(cta, tile, wg, acc, _load_factors(cta, tile, wg))

            shape = (config.wg_tile_m, config.wg_tile_n)
            pl.run_scoped(with_accumulator, plgpu.ACC(shape, jnp.float32))

        order.loop("cluster", finish)
        plgpu.wait_smem_to_gmem(0)

    lax.cond(wg == _NUM_CONSUMERS, produce, consume)


def _scratch(problem: Problem, config: Config) -> dict[str, Any]:
    tile_m, tile_n, tile_k = config.cta_tile
    a_tile = (tile_m, tile_k) if problem.spec.a_contract == 1 else (tile_k, tile_m)
    b_tile = (tile_k, tile_n) if problem.spec.b_contract == 0 else (tile_n, tile_k)
    slots = (_NUM_CONSUMERS, _EPILOGUE_SLOTS)
    staging = (*slots, _EPILOGUE_ROWS, config.epilogue_columns)
    scratch = {
        "a_smem": swizzled((config.stages, *a_tile), problem.dtype("a")),
        "b_smem": swizzled((config.stages, *b_tile), problem.dtype("b")),
        # One arrival for each of the two copies of a stage.
        "ab_full": plgpu.Barrier(num_arrivals=2, num_barriers=config.stages),
        "ab_empty": plgpu.Barrier(num_arrivals=_NUM_CONSUMERS, num_barriers=config.stages),
    }
    if config.cluster_along is not None:
        # A slot is overwritten in both CTAs at once, so the consumers of both arrive, in both.
        scratch["ab_empty"] = plgpu.ClusterBarrier(
            collective_axes=("peer",), num_arrivals=_NUM_CONSUMERS, num_barriers=config.stages
        )
    for name in _staged(problem):
        scratch[f"{name}_smem"] = swizzled(staging, problem.dtype(name))
    if problem.has("c"):
        scratch["c_full"] = plgpu.Barrier(num_arrivals=1, num_barriers=slots)
    return scratch


def run(problem: Problem, config: Config, operands: Operands) -> tuple[jax.Array, ...]:
    """Computes the outputs of the spec; trusts `why_not` and `configs`."""
    spec = problem.spec
    names = (*spec.operands, *spec.outputs)
    order = TileOrder(
        num_matrices(problem, "d"),
        *(pl.cdiv(x, t) for x, t in zip((problem.m, problem.n), config.cluster_tile, strict=True)),
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
        grid=(min(order.num_tiles, config.num_ctas // config.cluster_size),),
        grid_names=("cluster",),
        cluster=(config.cluster_size,),
        cluster_names=("peer",),
        num_threads=_NUM_CONSUMERS + 1,
        thread_name="wg",
        kernel_name="pallas_hopper_dense",
        compiler_params=plgpu.CompilerParams(lowering_semantics=plgpu.LoweringSemantics.Warpgroup),
    )(*(operands[name].reshape(core(name)) for name in spec.operands))
    return tuple(x.reshape(problem.shape(n)) for n, x in zip(spec.outputs, outputs, strict=True))


KERNEL = Kernel("pallas.hopper.dense", 1, why_not, configs, run)
