"""The meaning of every spec in plain JAX: what CPUs run and what every kernel is checked against.

Where plain jnp is wrong, this is not: results are rounded once, at the end; beta = 0 hides NaN in
c; rows outside every group are exactly zero and influence nothing; and a grouped product walks
tiles of rows, so its memory does not grow with the number of groups.
"""

import dataclasses
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxgemm import dtypes, epilogue
from jaxgemm.device import Device
from jaxgemm.kernel import Kernel, Operands
from jaxgemm.problem import Problem
from jaxgemm.spec import GemmSpec


@dataclasses.dataclass(frozen=True)
class Config:
    """How the grouped loop counts.

    Attributes:
      dynamic_trip_count: stop after the last row tile that has rows. A CPU saves the work; a GPU
        would copy the count to the host on every step, so there the loop has its longest length.
    """

    dynamic_trip_count: bool

    cta_tile: tuple[int, int, int] = (128, 128, 64)
    stages: int = 1
    cluster_size: int = 1
    split_k: int = 1
    smem_bytes: int = 0


def align(x: jax.Array, labels: tuple[str, ...], target: tuple[str, ...]) -> jax.Array:
    """x in the order of `target`, with a dimension of size 1 for every label that it lacks."""
    x = lax.transpose(x, [labels.index(label) for label in target if label in labels])
    return lax.expand_dims(x, [i for i, label in enumerate(target) if label not in labels])


def evaluate(spec: GemmSpec, operands: Operands, config: Config) -> tuple[jax.Array, ...]:
    """The outputs of a spec, in the order of `spec.outputs`."""
    if spec.ragged and spec.batch:
        return _over_batch(spec, operands, config)
    weights = ("b", "b_up") if spec.gated else ("b",)
    return finish(spec, [_product(spec, operands, b, config) for b in weights], operands)


def finish(spec: GemmSpec, products: list[jax.Array], operands: Operands) -> tuple[jax.Array, ...]:
    """The outputs, given a·b (and a·b_up) in the accumulator dtype: the epilogue of every spec."""
    saved = [_preactivation(spec, product, operands) for product in products]
    d = saved[0]
    if spec.function is not None:
        if spec.pullback:
            z = align(operands["z"].astype(d.dtype), spec.labels("z"), spec.labels("d"))
            d = spec.function.pullback(jnp.broadcast_to(z, d.shape), d)
        else:
            d = spec.function.apply(d)
    if spec.gated:
        d = d * saved[1]
    if spec.ragged == "m" and spec.function is not None:
        _, valid = rows_of_groups(*group_bounds(operands, d.shape[-2]), d.shape[-2])
        d = jnp.where(valid[:, None], d, 0)
    found = [d.astype(spec.out_dtype)]
    found += [z.astype(spec.residual_dtype) for z in saved if spec.save_preactivation]
    if spec.sum_dtype is not None:
        found.append(sum_of_rows(spec, d))
    return tuple(found)


def sum_of_rows(spec: GemmSpec, d: jax.Array) -> jax.Array:
    """d_sum, from d in the accumulator dtype."""
    return sum_out(d, spec.labels("d"), spec.labels("d_sum")).astype(spec.sum_dtype)


def sum_out(x: jax.Array, labels: tuple[str, ...], kept: tuple[str, ...]) -> jax.Array:
    """x summed over the labels that are not kept, with the others in the order of `kept`."""
    left = tuple(label for label in labels if label in kept)
    summed = [i for i, label in enumerate(labels) if label not in kept]
    return align(x.sum(summed), left, kept)


def _over_batch(spec: GemmSpec, operands: Operands, config: Config) -> tuple[jax.Array, ...]:
    """A batched grouped product, by mapping over the outermost batch axis."""
    names, inner = spec.batch[0], spec.replace(batch=spec.batch[1:])
    summed = "d" not in names
    if summed:
        acc = dtypes.accumulator(operands["a"].dtype, operands["b"].dtype)
        inner = inner.replace(out_dtype=acc)
    outputs = jax.vmap(
        lambda *xs: evaluate(inner, dict(zip(spec.operands, xs, strict=True)), config),
        in_axes=tuple(0 if name in names else None for name in spec.operands),
    )(*(operands[name] for name in spec.operands))
    return (outputs[0].sum(0).astype(spec.out_dtype),) if summed else outputs


def _preactivation(spec: GemmSpec, product: jax.Array, operands: Operands) -> jax.Array:
    """alpha · product + beta · c + bias in the accumulator dtype, with all labels of d."""
    target = spec.labels("d")

    def get(name: str) -> jax.Array | None:
        if name not in spec.operands:
            return None
        x = operands[name].astype(product.dtype)
        if name == "bias" and spec.ragged == "m":
            if not x.shape[0]:
                return None
            num_rows = product.shape[-2]
            group, valid = rows_of_groups(*group_bounds(operands, num_rows), num_rows)
            return jnp.where(valid[:, None], x[group], 0)
        return align(x, spec.labels(name), target)

    z = epilogue.preactivation(product, get("alpha"), get("c"), get("beta"), get("bias"))
    size = {
        label: length
        for name in spec.operands
        for label, length in zip(spec.labels(name), operands[name].shape, strict=True)
    }
    return jnp.broadcast_to(z, tuple(size[label] for label in target))


def _product(spec: GemmSpec, operands: Operands, b_name: str, config: Config) -> jax.Array:
    """a · b in the accumulator dtype; dimensions of d that neither has are of size 1."""
    a, b = operands["a"], operands[b_name]
    acc = dtypes.accumulator(a.dtype, b.dtype)
    both = dtypes.compute(a.dtype, b.dtype)
    a, b = a.astype(both), b.astype(both)
    if spec.ragged == "m":
        return _ragged_rows(spec, a, b, operands, acc, config)
    if spec.ragged == "k":
        return _ragged_contraction(spec, a, b, operands, acc, config)
    if spec.batch_invariant:
        return _row_by_row(spec, a, b, spec.labels(b_name), acc)
    return _dot(a, spec.labels("a"), b, spec.labels(b_name), spec.labels("d"), acc, spec.precision)


def _dot(
    a: jax.Array,
    a_labels: tuple[str, ...],
    b: jax.Array,
    b_labels: tuple[str, ...],
    target: tuple[str, ...],
    acc: np.dtype,
    precision: str,
) -> jax.Array:
    """Σ a·b over the labels that `target` lacks, as one dot_general; other labels get size 1."""
    a, a_labels = _sum_out(a, a_labels, {*b_labels, *target}, acc)
    b, b_labels = _sum_out(b, b_labels, {*a_labels, *target}, acc)
    both = jnp.promote_types(a.dtype, b.dtype)
    shared = [label for label in a_labels if label in b_labels]
    batch = [label for label in shared if label in target]
    contract = [label for label in shared if label not in target]
    product = lax.dot_general(
        a.astype(both),
        b.astype(both),
        (
            ([a_labels.index(x) for x in contract], [b_labels.index(x) for x in contract]),
            ([a_labels.index(x) for x in batch], [b_labels.index(x) for x in batch]),
        ),
        precision=lax.Precision(precision),
        preferred_element_type=acc,
    )
    free = [x for x in (*a_labels, *b_labels) if x not in shared]
    labels = tuple(batch + free)
    order = tuple(label for label in target if label in labels)
    product = lax.transpose(product, [labels.index(label) for label in order])
    return align(product, order, target)


def _sum_out(
    x: jax.Array, labels: tuple[str, ...], kept: set[str], acc: np.dtype
) -> tuple[jax.Array, tuple[str, ...]]:
    """x summed, in the accumulator dtype, over labels that nothing else has."""
    lone = tuple(i for i, label in enumerate(labels) if label not in kept)
    if not lone:
        return x, labels
    return x.astype(acc).sum(lone), tuple(label for label in labels if label in kept)


def _row_by_row(
    spec: GemmSpec, a: jax.Array, b: jax.Array, b_labels: tuple[str, ...], acc: np.dtype
) -> jax.Array:
    """The product with one dot a row, so that no row's bits depend on how many there are."""
    a_labels, target = spec.labels("a"), spec.labels("d")
    rows = [label for label in a_labels if label in target and label not in b_labels]
    a = jnp.moveaxis(a, [a_labels.index(label) for label in rows], range(len(rows)))
    rest = tuple(label for label in a_labels if label not in rows)
    lead = a.shape[: len(rows)]
    inner_target = tuple(label for label in target if label not in rows)
    out = lax.map(
        lambda row: _dot(row, rest, b, b_labels, inner_target, acc, spec.precision),
        a.reshape(math.prod(lead), *a.shape[len(rows) :]),
    )
    out = out.reshape(*lead, *out.shape[1:])
    labels = (*rows, *inner_target)
    return lax.transpose(out, [labels.index(label) for label in target])


def group_bounds(operands: Operands, num_rows: int) -> tuple[jax.Array, jax.Array]:
    """First and one past the last row of each group, clipped to the rows there are."""
    sizes = jnp.clip(operands["group_sizes"], 0, num_rows)
    ends = _saturating_cumsum(sizes, num_rows)
    first = operands.get("row_start", jnp.int32(0))
    starts = jnp.concatenate([jnp.zeros_like(ends[:1]), ends[:-1]])
    # In this order no sum exceeds num_rows, and so none wraps.
    room = num_rows - first
    return jnp.minimum(starts, room) + first, jnp.minimum(ends, room) + first


def _saturating_cumsum(sizes: jax.Array, limit: int) -> jax.Array:
    """Running sums of sizes in [0, limit]: exact up to the limit, and at least it beyond."""
    if sizes.shape[0] * limit < 2**31:
        return jnp.cumsum(sizes, dtype=jnp.int32)
    # Upper and lower 16 bits apart: neither sum wraps with up to 2^16 groups.
    high, low = (jnp.cumsum(x, dtype=jnp.uint32) for x in (sizes >> 16, sizes & 0xFFFF))
    high = high + (low >> 16)
    whole = ((high << 16) | (low & 0xFFFF)).astype(jnp.int32)
    return jnp.where(high < 2**15, whole, limit)


def rows_of_groups(
    starts: jax.Array, ends: jax.Array, num_rows: int
) -> tuple[jax.Array, jax.Array]:
    """For each row, its group (clipped) and whether it has one."""
    rows = jnp.arange(num_rows, dtype=jnp.int32)
    if not ends.shape[0]:
        return rows, jnp.zeros(num_rows, bool)
    group = jnp.searchsorted(ends, rows, side="right").astype(jnp.int32)
    group = jnp.minimum(group, ends.shape[0] - 1)
    return group, (rows >= starts[0]) & (rows < ends[-1])


def _for_each_row_tile(
    num_rows: int,
    operands: Operands,
    config: Config,
    init: jax.Array,
    body: Callable[[jax.Array, jax.Array, jax.Array, jax.Array], jax.Array],
    *,
    batch_invariant: bool = False,
) -> jax.Array:
    """Folds body(carry, group, first_row, rows_mask) over tiles of at most `tile` rows a group.

    `first_row` is clamped so that the tile is inside the array; the mask tells its rows.
    """
    starts, ends = group_bounds(operands, num_rows)
    num_groups = starts.shape[0]
    # m + groups · tile rows are multiplied in the worst case: about twice m for this tile.
    tile = min(num_rows, max(8, min(512, 1 << (num_rows // num_groups).bit_length())))
    tile = 1 if batch_invariant else tile
    tile_ends = jnp.cumsum(-((starts - ends) // tile), dtype=jnp.int32)
    # Where each tile begins, worked out before the loop: XLA:GPU (0.11) fails to compile a loop
    # whose slices begin where a search in the loop says.
    index = jnp.arange(num_rows // tile + num_groups, dtype=jnp.int32)
    groups = jnp.searchsorted(tile_ends, index, side="right").astype(jnp.int32)
    groups = jnp.minimum(groups, num_groups - 1)
    tiles_before = jnp.where(groups > 0, tile_ends[groups - 1], 0)
    firsts = starts[groups] + (index - tiles_before) * tile
    lasts = jnp.minimum(firsts + tile, ends[groups])
    clamped = jnp.clip(firsts, 0, num_rows - tile)

    def step(i: jax.Array, carry: jax.Array) -> jax.Array:
        rows = clamped[i] + jnp.arange(tile, dtype=jnp.int32)
        mask = (rows >= firsts[i]) & (rows < lasts[i])
        return body(carry, groups[i], clamped[i], mask[:, None])

    steps = tile_ends[-1] if config.dynamic_trip_count else index.shape[0]
    return lax.fori_loop(0, steps, step, init)


def _ragged_rows(
    spec: GemmSpec, a: jax.Array, b: jax.Array, operands: Operands, acc: np.dtype, config: Config
) -> jax.Array:
    """(m, n): each group's rows of a times its own matrix of b; rows without a group are 0."""
    num_rows, n = a.shape[0], b.shape[-1 if spec.b_contract == 0 else -2]
    if 0 in a.shape or 0 in b.shape:
        return jnp.zeros((num_rows, n), acc)

    def body(out: jax.Array, group: jax.Array, first: jax.Array, mask: jax.Array) -> jax.Array:
        rows = lax.dynamic_slice_in_dim(a, first, mask.shape[0])
        weights = lax.dynamic_index_in_dim(b, group, keepdims=False)
        new = _dot(
            rows, ("m", "k"), weights, spec.core_labels("b")[1:], ("m", "n"), acc, spec.precision
        )
        old = lax.dynamic_slice_in_dim(out, first, mask.shape[0])
        return lax.dynamic_update_slice_in_dim(out, jnp.where(mask, new, old), first, 0)

    zeros = jnp.zeros((num_rows, n), acc)
    return _for_each_row_tile(
        num_rows, operands, config, zeros, body, batch_invariant=spec.batch_invariant
    )


def _ragged_contraction(
    spec: GemmSpec, a: jax.Array, b: jax.Array, operands: Operands, acc: np.dtype, config: Config
) -> jax.Array:
    """(g, m, n): for each group, the sum over its rows of the outer product of a's and b's rows."""
    (num_rows, m), n = a.shape, b.shape[1]
    zeros = jnp.zeros((operands["group_sizes"].shape[0], m, n), acc)
    if 0 in a.shape or 0 in b.shape or 0 in zeros.shape:
        return zeros

    def body(out: jax.Array, group: jax.Array, first: jax.Array, mask: jax.Array) -> jax.Array:
        # Select, not multiply: NaN of a neighbouring group must not enter the sum.
        rows_a, rows_b = (
            jnp.where(mask, lax.dynamic_slice_in_dim(x, first, mask.shape[0]), 0) for x in (a, b)
        )
        new = _dot(rows_a, ("k", "m"), rows_b, ("k", "n"), ("m", "n"), acc, spec.precision)
        old = lax.dynamic_index_in_dim(out, group, keepdims=False)
        return lax.dynamic_update_index_in_dim(out, old + new, group, 0)

    return _for_each_row_tile(num_rows, operands, config, zeros, body)


def _why_not(problem: Problem, device: Device) -> str | None:
    del problem, device
    return None


def _configs(problem: Problem, device: Device) -> tuple[Config, ...]:
    del problem
    return (Config(dynamic_trip_count=device.platform == "cpu"),)


def _run(problem: Problem, config: Config, operands: Operands) -> tuple[jax.Array, ...]:
    return evaluate(problem.spec, operands, config)


KERNEL = Kernel("xla.reference", 1, _why_not, _configs, _run, efficiency=0.9, is_black_box=True)
