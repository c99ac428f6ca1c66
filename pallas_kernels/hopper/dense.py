"""Dense, batched and gated GEMM on Hopper: act(alpha · op(a) op(b) + beta · c + bias) [· a b_up].

Or, in a backward pass, act'(z) · (alpha · op(a) op(b) + beta · c).

For bfloat16 and float16 operands in any of the four layouts, without copies: wgmma reads 16-bit
tiles along either dimension. For float32 (as TF32) where both are contiguous along k. The right
kernel whenever d has enough tiles to fill the device; a long k with few tiles wants a kernel that
splits k.

A persistent grid walks the tiles of all matrices of the batch. In each CTA one producer warpgroup
loads tiles of a and b into a ring of slots, and two consumer warpgroups multiply, finish and store.
The ring goes on across output tiles. The consumers either

    cooperate    each has one half of every tile: the largest tiles, so the fewest loads; while
                 they finish a tile, only the producer works, for the next one
    take turns   (ping-pong) each has every second tile, and finishes it while the other multiplies:
                 smaller tiles, more loads, but Tensor Cores never wait for an epilogue

wgmma's first factor has 64 rows or a multiple, its second any multiple of 8 columns. So where tiles
of other heights fill the waves better, consumers multiply bᵀ · aᵀ and store the transpose.

Nothing but the ring orders the turns: slots arrive tile by tile, so a consumer multiplies when the
other has its last slots. Optionally two neighbouring CTAs form a cluster, in which each loads half
of the tile that both need and sends it to both.

    barrier   from → to             arrivals                           protects
    ab_full   producer → consumers  1 a copy (a, b, b_up), their bytes a_smem, b_smem before reading
    ab_empty  consumers → producer  1 a consumer, of the whole cluster a_smem, b_smem before loading
    c_full    consumer → itself     1 a copy (c, z), their bytes       c_smem, z_smem before reading
    d_smem    consumer → itself     bulk-group wait, no barrier        d_smem, z_smem before writing

A barrier counts its phases, and who waits must see every one. So consumers that take turns have an
`ab_full` each for every slot, and the producer signals that of the consumer whose tile it loads.

Roles, ring and order of tiles follow CUTLASS's persistent cooperative kernel and JAX's example:
https://github.com/NVIDIA/cutlass/blob/main/include/cutlass/gemm/kernel/
https://github.com/jax-ml/jax/blob/main/jax/experimental/pallas/ops/gpu/hopper_matmul_mgpu.py
"""

import dataclasses
import types
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
from jax import lax

from jaxgemm.kernel import Kernel, Operands
from jaxgemm.problem import Problem
from pallas_kernels.common import epilogue, tiles
from pallas_kernels.common.schedule import Tile, gmem_shape, operand_matrix
from pallas_kernels.hopper.dense_config import (
    NUM_CONSUMERS,
    Config,
    Side,
    loaded,
    products,
    staged,
    tile_order,
)
from pallas_kernels.hopper.dense_shapes import configs, why_not

# 128 threads of each role; together they hold at most 65536 registers.
_PRODUCER_REGISTERS, _CONSUMER_REGISTERS = 24, 240
# Steps along k that a producer may have unrolled: with more it spills.
_UNROLLED_STEPS = 6


@dataclasses.dataclass(frozen=True)
class _Cta:
    """What every role knows.

    Attributes:
      problem: the whole problem.
      config: the choices.
      refs: `a_gmem` and so on for operands and outputs, and the entries of `_scratch`.
      wg: the index of the warpgroup that asks; that of the producer comes last.
    """

    problem: Problem
    config: Config
    refs: types.SimpleNamespace
    wg: jax.Array

    @property
    def num_steps(self) -> int:
        """Stages that one tile's contraction takes."""
        return pl.cdiv(self.problem.k, self.config.tile_k)

    def stage(self, tile: Tile, step: Any) -> jax.Array:
        """The slot of the ring that a step of a tile uses; the ring goes on across tiles."""
        return lax.rem(tile.turn * self.num_steps + step, self.config.stages)

    def ab_full(self, tile: Tile, stage: jax.Array) -> Any:
        """The barrier that says that a slot holds a step of a tile."""
        ring = lax.rem(tile.turn, NUM_CONSUMERS) if self.config.takes_turns else 0
        return self.refs.ab_full.at[ring, stage]

    def slot(self, tile: Tile, index: int) -> jax.Array:
        """The staging slot of a slice; slots alternate across tiles, which may have odd counts."""
        turn = lax.div(tile.turn, NUM_CONSUMERS) if self.config.takes_turns else tile.turn
        return lax.rem(turn * self.config.num_slices + index, self.config.slots)

    def part(self, tile: Tile) -> Tile:
        """This CTA's part of a cluster's tile."""
        side, size = self.config.cluster_along, self.config.cluster_size
        if side is None:
            return tile
        index = getattr(tile, f"{side}_index") * size + lax.axis_index("peer")
        return dataclasses.replace(tile, **{f"{side}_index": index})

    def matrix(self, name: str, tile: Tile) -> Any:
        """The matrix (or row, or scalar) of an operand or output that a tile belongs to."""
        gmem = getattr(self.refs, f"{name}_gmem")
        return operand_matrix(self.problem, name, gmem, tile.batch_index)

    def n_offset(self, tile: Tile) -> jax.Array:
        """Column at which this consumer's part of a tile begins."""
        offset = tile.n_index * self.config.cta_tile_n
        return offset + (self.wg * self.config.wg_tile[1] if self._divides("n") else 0)

    def slice_at(self, tile: Tile, index: int) -> tuple[Any, Any]:
        """The rows and columns of c, d and z that a slice of this consumer covers."""
        m_offset = tile.m_index * self.config.cta_tile_m
        m_offset += self.wg * self.config.wg_tile[0] if self._divides("m") else 0
        rows, columns = self.config.slice_within(index)
        return (
            _span(m_offset + rows.start, self.config.slice_rows),
            _span(self.n_offset(tile) + columns.start, self.config.slice_columns),
        )

    def wg_part(self) -> tuple[Any, Any]:
        """The rows of a_smem and the columns of b_smem that this consumer multiplies."""
        rows, columns = (pl.ds(self.wg * size, size) for size in self.config.wg_tile)
        return rows if self._divides("m") else slice(None), (
            columns if self._divides("n") else slice(None)
        )

    def _divides(self, side: Side) -> bool:
        return self.config.consumers_along == side


def _span(offset: Any, size: int) -> Any:
    """A slice for a TMA copy, with the proof that it begins at a swizzle atom."""
    return pl.ds(pl.multiple_of(offset, tiles.ATOM_ROWS), size)


def _produce(cta: _Cta, tile: Tile) -> None:
    """Loads the tiles of a and b that one tile of d needs, as soon as slots become empty."""
    spec, config, refs = cta.problem.spec, cta.config, cta.refs
    names = products(cta.problem)
    rows = _span(tile.m_index * config.cta_tile_m, config.cta_tile_m)
    columns = _span(tile.n_index * config.cta_tile_n, config.cta_tile_n)
    gmem = {name: cta.matrix(name, tile) for name in ("a", *names)}
    # CTAs side by side along m need the same tile of b, and along n the same tile of a.
    a_shared_by = "peer" if config.cluster_along == "n" else None
    b_shared_by = "peer" if config.cluster_along == "m" else None

    @pl.loop(0, _not_unrolled(cta.num_steps, tile))
    def _(step: jax.Array) -> None:
        stage = cta.stage(tile, step)
        depth = _span(step * config.tile_k, config.tile_k)
        a_at = (rows, depth) if spec.a_contract == 1 else (depth, rows)
        b_at = (depth, columns) if spec.b_contract == 0 else (columns, depth)
        full = cta.ab_full(tile, stage)
        plgpu.barrier_wait(refs.ab_empty.at[stage])
        a_tile, a_smem = gmem["a"].at[a_at], refs.a_smem.at[stage]
        plgpu.copy_gmem_to_smem(a_tile, a_smem, full, collective_axes=a_shared_by)
        for name in names:
            b_tile, b_smem = gmem[name].at[b_at], getattr(refs, f"{name}_smem").at[stage]
            plgpu.copy_gmem_to_smem(b_tile, b_smem, full, collective_axes=b_shared_by)


def _not_unrolled(num_steps: int, tile: Tile) -> jax.Array | int:
    """`num_steps`; beyond a few in a form in which LLVM does not see that it is always the same.

    It would unroll loops of up to ten steps, for whose addresses a producer lacks the registers.
    """
    if num_steps <= _UNROLLED_STEPS:
        return num_steps
    always_even = tile.m_index * (tile.m_index + 1)
    return num_steps + (always_even & 1)


def _multiply(cta: _Cta, tile: Tile, accs: Sequence[Any]) -> None:
    """Adds the products of this consumer's part to `accs`; the last step is left in flight."""
    spec, config, refs = cta.problem.spec, cta.config, cta.refs
    rows, columns = cta.wg_part()

    @pl.loop(0, cta.num_steps)
    def _(step: jax.Array) -> None:
        stage = cta.stage(tile, step)
        a_smem = refs.a_smem.at[stage]
        if spec.a_contract == 0:
            a_smem = a_smem.transpose((1, 0))
        plgpu.barrier_wait(cta.ab_full(tile, stage))
        for name, acc in zip(products(cta.problem), accs, strict=True):
            b_smem = getattr(refs, f"{name}_smem").at[stage]
            if spec.b_contract == 1:
                b_smem = b_smem.transpose((1, 0))
            a_part, b_part = a_smem.at[rows], b_smem.at[:, columns]
            if config.computes_transpose:
                plgpu.wgmma(acc, b_part.transpose((1, 0)), a_part.transpose((1, 0)))
            else:
                plgpu.wgmma(acc, a_part, b_part)
        # Only this step may still be reading, so the slot of the step before is empty.
        plgpu.wgmma_wait(len(accs))

        @pl.when(step > 0)
        def _() -> None:
            plgpu.barrier_arrive(refs.ab_empty.at[cta.stage(tile, step - 1)])


def _load_scalars(cta: _Cta, tile: Tile) -> epilogue.Scalars:
    """Reads alpha and beta from global memory."""
    alpha, beta = (
        cta.matrix(name, tile)[...] if cta.problem.has(name) else None for name in ("alpha", "beta")
    )
    return epilogue.Scalars(alpha, beta)


def _load_bias(cta: _Cta, tile: Tile) -> dict[int, jax.Array]:
    """Reads the bias of this consumer's part from global memory, by where columns of slices begin.

    All of it at once: the fence that commits a slice waits for loads that are under way.
    """
    if not cta.problem.has("bias"):
        return {}
    config, bias_gmem, n_offset = cta.config, cta.matrix("bias", tile), cta.n_offset(tile)
    starts = dict.fromkeys(config.slice_within(i)[1].start for i in range(config.num_slices))
    return {
        start: epilogue.load_bias(bias_gmem, n_offset + start, config.slice_columns, config.n_axis)
        for start in starts
    }


def _load(cta: _Cta, tile: Tile, index: int) -> None:
    """Begins to load a slice of c and z, of those there are, if there is such a slice."""
    for name in loaded(cta.problem) if index < cta.config.num_slices else ():
        refs, at = cta.refs, (cta.wg, cta.slot(tile, index))
        source = cta.matrix(name, tile).at[cta.slice_at(tile, index)]
        plgpu.copy_gmem_to_smem(source, getattr(refs, f"{name}_smem").at[at], refs.c_full.at[at])


def _as_in_acc(config: Config, slice_smem: Any) -> Any:
    """A slice of c, d or z (rows, columns), turned as the accumulator is."""
    return slice_smem.transpose((1, 0)) if config.computes_transpose else slice_smem


def _store(
    cta: _Cta,
    tile: Tile,
    accumulated: Sequence[jax.Array],
    scalars: epilogue.Scalars,
    bias: Mapping[int, jax.Array],
) -> None:
    """Finishes this consumer's part of the tile and stores it, slice by slice."""
    problem, config, refs = cta.problem, cta.config, cta.refs
    for index in range(config.num_slices):
        at = cta.wg, cta.slot(tile, index)
        names = loaded(problem)
        if names:
            plgpu.barrier_wait(refs.c_full.at[at])
        slices = {x: _as_in_acc(config, getattr(refs, f"{x}_smem").at[at])[...] for x in names}
        part = [product[config.slice_within_acc(index)] for product in accumulated]
        slice_bias = bias.get(config.slice_within(index)[1].start)
        outputs = epilogue.apply(problem, part, slices, slice_bias, scalars, config.n_axis)
        # The store that used the slot before has read it.
        plgpu.wait_smem_to_gmem(config.slots - 1, wait_read_only=True)
        for name in problem.spec.outputs:
            staging = _as_in_acc(config, getattr(refs, f"{name}_smem").at[at])
            staging[...] = outputs[name].astype(problem.dtype(name))
        plgpu.commit_smem()
        for name in problem.spec.outputs:
            target = cta.matrix(name, tile).at[cta.slice_at(tile, index)]
            # All outputs of a slice are one group, so that the wait above counts slices.
            last = name == problem.spec.outputs[-1]
            source = getattr(refs, f"{name}_smem").at[at]
            plgpu.copy_smem_to_gmem(source, target, commit_group=last)
        _load(cta, tile, index + config.slots)


def _consume(cta: _Cta, tile: Tile, *accs: Any) -> None:
    """Computes this consumer's part of one tile."""
    for index in range(cta.config.slots):
        _load(cta, tile, index)
    _multiply(cta, tile, accs)
    # These loads take place while the last step is multiplied.
    scalars, bias = _load_scalars(cta, tile), _load_bias(cta, tile)
    plgpu.wgmma_wait(0)
    plgpu.barrier_arrive(cta.refs.ab_empty.at[cta.stage(tile, cta.num_steps - 1)])
    _store(cta, tile, [acc[...] for acc in accs], scalars, bias)


def _body(problem: Problem, config: Config, refs: types.SimpleNamespace) -> None:
    """What each warpgroup runs."""
    cta = _Cta(problem, config, refs, lax.axis_index("wg"))
    order = tile_order(problem, config)

    def produce() -> None:
        plgpu.set_max_registers(_PRODUCER_REGISTERS, action="decrease")
        order.loop("cluster", lambda tile: _produce(cta, cta.part(tile)))
        # Takes the last slots back: no CTA may exit while a peer still arrives at its barriers.
        pl.loop(0, config.stages)(lambda stage: plgpu.barrier_wait(refs.ab_empty.at[stage]))

    def consume() -> None:
        plgpu.set_max_registers(_CONSUMER_REGISTERS, action="increase")

        # All slots are empty at first.
        @pl.when(cta.wg < config.consumers_per_tile)
        def _() -> None:
            pl.loop(0, config.stages)(lambda stage: plgpu.barrier_arrive(refs.ab_empty.at[stage]))

        def consume_tile(tile: Tile) -> None:
            accs = [plgpu.ACC(config.acc_shape, jnp.float32)] * config.num_products
            pl.run_scoped(lambda *accs: _consume(cta, cta.part(tile), *accs), *accs)

        turns = (cta.wg, NUM_CONSUMERS) if config.takes_turns else (0, 1)
        order.loop("cluster", consume_tile, *turns)
        plgpu.wait_smem_to_gmem(0)

    lax.cond(cta.wg == NUM_CONSUMERS, produce, consume)


def _scratch(problem: Problem, config: Config) -> dict[str, Any]:
    """Shared memory and barriers by name."""
    tile_m, tile_n, tile_k = config.cta_tile
    a_tile = (tile_m, tile_k) if problem.spec.a_contract == 1 else (tile_k, tile_m)
    b_tile = (tile_k, tile_n) if problem.spec.b_contract == 0 else (tile_n, tile_k)
    slots = (NUM_CONSUMERS, config.slots)
    slices = (*slots, config.slice_rows, config.slice_columns)
    scratch = {
        f"{name}_smem": tiles.swizzled(slices, problem.dtype(name), config.slice_columns)
        for name in staged(problem)
    }
    for name, tile in (("a", a_tile), *((name, b_tile) for name in products(problem))):
        shape = (config.stages, *tile)
        scratch[f"{name}_smem"] = tiles.swizzled(shape, problem.dtype(name), config.atom_columns)
    # Each copy of a stage arrives once.
    rings = NUM_CONSUMERS if config.takes_turns else 1
    scratch["ab_full"] = plgpu.Barrier(
        num_arrivals=1 + config.num_products, num_barriers=(rings, config.stages)
    )
    arrivals = config.consumers_per_tile
    scratch["ab_empty"] = plgpu.Barrier(num_arrivals=arrivals, num_barriers=config.stages)
    if config.cluster_along is not None:
        # A shared slot is overwritten in both CTAs at once: the consumers of both arrive in both.
        scratch["ab_empty"] = plgpu.ClusterBarrier(
            collective_axes=("peer",), num_arrivals=arrivals, num_barriers=config.stages
        )
    if names := loaded(problem):
        scratch["c_full"] = plgpu.Barrier(num_arrivals=len(names), num_barriers=slots)
    return scratch


def run(problem: Problem, config: Config, operands: Operands) -> tuple[jax.Array, ...]:
    """Computes the outputs of the spec; trusts `why_not` and `configs`."""
    spec = problem.spec
    names = (*spec.operands, *spec.outputs)
    shapes = {name: gmem_shape(problem, name) for name in names}

    def body(*gmem: Any, **scratch: Any) -> None:
        gmem_refs = {f"{name}_gmem": ref for name, ref in zip(names, gmem, strict=True)}
        _body(problem, config, types.SimpleNamespace(**gmem_refs, **scratch))

    num_clusters = config.num_ctas // config.cluster_size
    params = plgpu.CompilerParams(
        lowering_semantics=plgpu.LoweringSemantics.Warpgroup,
        # exp2 without steps for subnormal numbers. But tanh would have an error of 2^-11.
        approx_math=spec.activation != "tanh",
    )
    outputs = plgpu.kernel(
        body,
        out_type=tuple(jax.ShapeDtypeStruct(shapes[n], problem.dtype(n)) for n in spec.outputs),
        scratch_types=_scratch(problem, config),
        grid=(min(tile_order(problem, config).num_tiles, num_clusters),),
        grid_names=("cluster",),
        cluster=(config.cluster_size,),
        cluster_names=("peer",),
        num_threads=NUM_CONSUMERS + 1,
        thread_name="wg",
        kernel_name="pallas_hopper_dense",
        compiler_params=params,
    )(*(operands[name].reshape(shapes[name]) for name in spec.operands))
    return tuple(x.reshape(problem.shape(n)) for n, x in zip(spec.outputs, outputs, strict=True))


KERNEL = Kernel("pallas.hopper.dense", 2, why_not, configs, run)
