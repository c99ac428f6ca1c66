"""Sharding of `gemm_p` under jit: a label sharded alike wherever it appears needs no traffic.

    label                  sharded over a mesh axis means
    m, n, batch axes of d  each device computes its part; nothing is exchanged
    k, batch axes d lacks  each device has a partial sum: psum in the accumulator, then the epilogue
    m, with d_sum          each device sums its own rows, and a psum adds these
    m with ragged="m"      each device clips the groups to its window of rows
    k with ragged="k"      the same, and a psum of the partial sums
    g with ragged="m"      each device fills the rows of its own groups; psum adds zeros elsewhere
    g with ragged="k"      each device sums its own groups; nothing is exchanged

Inside shard_map operands are local already, and this file is not involved.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.custom_partitioning import (
    ArrayMapping,
    SdyShardingRule,
    custom_partitioning,
)
from jax.interpreters import mlir
from jax.sharding import NamedSharding, PartitionSpec

from jaxgemm import dtypes, reference
from jaxgemm.policy import Policy
from jaxgemm.primitive import bind, gemm_p
from jaxgemm.rules.derivative import aligned_product
from jaxgemm.spec import OPERAND_ORDER, GemmSpec

try:
    # jit tells a lowering rule the devices only for primitives in this set, and there is no
    # public way into it. Without it a multi-device jit falls back to gathering all operands.
    from jax._src.dispatch import prim_requires_devices_during_lowering

    prim_requires_devices_during_lowering.add(gemm_p)
except ImportError:
    pass


def is_global(ctx: Any) -> bool:
    """Whether the operands being lowered are whole arrays that several devices share."""
    context = ctx.module_context.axis_context
    devices = getattr(context, "device_assignment", None)
    return devices is not None and len(devices) > 1


def lower_partitioned(ctx: Any, operands: tuple[Any, ...], spec: GemmSpec, policy: Policy) -> Any:
    """Emits the product for whole arrays: XLA's partitioner asks `_partition`, or types decide."""
    if any(any(aval.sharding.spec) for aval in ctx.avals_in):
        return mlir.lower_fun(
            functools.partial(_as_types_say, spec, policy, ctx.avals_in), multiple_results=True
        )(ctx, *operands)
    call = custom_partitioning(lambda *xs: bind(spec, policy, xs))
    call.def_partition(
        partition=functools.partial(_partition, spec, policy), sharding_rule=_rule(spec)
    )
    return mlir.lower_fun(lambda *xs: call(*xs), multiple_results=True)(ctx, *operands)


def _as_types_say(
    spec: GemmSpec, policy: Policy, avals: Any, *operands: jax.Array
) -> tuple[jax.Array, ...]:
    """Explicit sharding: the operands' types are the placement, so this is a shard_map."""
    axes = _assign(spec, avals[0].sharding.mesh, avals, ())

    def place(name: str) -> PartitionSpec:
        return PartitionSpec(*(axes.get(label) or None for label in _factors(spec, name)))

    moved = tuple(
        jax.sharding.reshard(x, place(name))
        for name, x in zip(spec.operands, operands, strict=True)
    )
    return jax.shard_map(
        functools.partial(_local, spec, policy, axes),
        in_specs=tuple(place(name) for name in spec.operands),
        out_specs=tuple(place(name) for name in spec.outputs),
        # Sums over devices are written out in `_local`; there is nothing left to check.
        check_vma=False,
    )(*moved)


def _factors(spec: GemmSpec, name: str) -> tuple[str, ...]:
    """The labels of an operand; every device needs all group sizes, so their label is apart."""
    labels = spec.labels(name)
    return tuple("s" if name == "group_sizes" and x == "g" else x for x in labels)


def _rule(spec: GemmSpec) -> SdyShardingRule:
    operands = tuple(ArrayMapping(*_factors(spec, name)) for name in spec.operands)
    results = tuple(ArrayMapping(*_factors(spec, name)) for name in spec.outputs)
    kept = {label for mapping in results for label in mapping} | {"s"}
    # Shardy wants them in the order in which they first appear.
    reduced = dict.fromkeys(x for mapping in operands for x in mapping if x not in kept)
    sizes = ("s",) if "group_sizes" in spec.operands else ()
    return SdyShardingRule(
        operands, results, reduction_factors=tuple(reduced), need_replication_factors=sizes
    )


def _partition(
    spec: GemmSpec, policy: Policy, mesh: Any, arguments: Any, results: Any
) -> tuple[Any, Any, Any, Any]:
    """What each device computes, and where operands and results must lie for it."""
    axes = _assign(spec, mesh, arguments, results)

    def place(name: str) -> NamedSharding:
        parts = [axes.get(label) or None for label in _factors(spec, name)]
        return NamedSharding(mesh, PartitionSpec(*parts))

    arg_shardings = tuple(place(name) for name in spec.operands)
    result_shardings = tuple(place(name) for name in spec.outputs)
    local = functools.partial(_local, spec, policy, axes)
    return mesh, local, result_shardings, arg_shardings


def _assign(spec: GemmSpec, mesh: Any, arguments: Any, results: Any) -> dict[str, tuple[str, ...]]:
    """label → the mesh axes it is divided over; results, if given, decide before operands."""
    axes: dict[str, tuple[str, ...]] = {}
    used: set[str] = set()
    named = [*zip(spec.outputs, results, strict=False), *zip(spec.operands, arguments, strict=True)]
    for name, struct in named:
        parts = getattr(struct.sharding, "spec", None) or ()
        for label, part, size in zip(_factors(spec, name), parts, struct.shape, strict=False):
            wanted = (part,) if isinstance(part, str) else tuple(part or ())
            count = functools.reduce(lambda n, axis: n * mesh.shape[axis], wanted, 1)
            if label in axes or not wanted or used & set(wanted) or label == "s" or size % count:
                continue
            axes[label] = wanted
            used |= set(wanted)
    if spec.ragged == "m" and spec.batch:
        # `reference.finish` takes the bias of one grouped product at a time.
        axes.pop("k", None)
    return axes


def _local(
    spec: GemmSpec, policy: Policy, axes: dict[str, tuple[str, ...]], *operands: jax.Array
) -> tuple[jax.Array, ...]:
    """One device's share, with the collectives that its result needs."""
    named = dict(zip(spec.operands, operands, strict=True))
    if spec.ragged and (axes.get("g") or axes.get(spec.ragged)):
        spec, named = _window_of_groups(spec, axes, named)
    kept = spec.labels("d")
    summed = [label for label in axes if label not in kept and label != "g"]
    partial = tuple(axis for label in summed for axis in axes[label])
    ordered = tuple(named[name] for name in spec.operands)
    if partial:
        outputs = _finish_partial(spec, policy, partial, named)
    else:
        outputs = bind(spec, policy, ordered)
    if spec.sum_dtype is not None:
        summed = [label for label in kept if label not in spec.labels("d_sum")]
        rows = tuple(axis for label in summed for axis in axes.get(label, ()))
        outputs = (*outputs[:-1], lax.psum(outputs[-1], rows) if rows else outputs[-1])
    if spec.ragged == "m" and axes.get("g"):
        # Every row was filled by one device and is zero on the others: exact in any dtype.
        outputs = tuple(lax.psum(x, axes["g"]) for x in outputs)
    return outputs


def _finish_partial(
    spec: GemmSpec, policy: Policy, axes: tuple[str, ...], operands: dict[str, jax.Array]
) -> tuple[jax.Array, ...]:
    """Adds the devices' partial products in the accumulator, then applies the epilogue once."""
    acc = dtypes.accumulator(operands["a"].dtype, operands["b"].dtype)
    products = []
    for weight in ("b", "b_up") if spec.gated else ("b",):
        product = spec.for_weight(weight).product(acc)
        part = aligned_product(product, policy, {**operands, "b": operands[weight]})
        products.append(lax.psum(part, axes))
    return reference.finish(spec, products, operands)


def _window_of_groups(
    spec: GemmSpec, axes: dict[str, tuple[str, ...]], operands: dict[str, jax.Array]
) -> tuple[GemmSpec, dict[str, jax.Array]]:
    """The local groups, clipped to the local rows, as group_sizes and row_start."""
    assert spec.ragged is not None
    row_axes, group_axes = axes.get(spec.ragged, ()), axes.get("g", ())
    num_local = operands["a"].shape[spec.labels("a").index(spec.ragged)]
    num_rows = num_local * lax.axis_size(row_axes) if row_axes else num_local

    def clip(sizes: jax.Array, first: jax.Array) -> tuple[jax.Array, jax.Array]:
        whole = {"group_sizes": sizes, "row_start": first}
        starts, ends = reference.group_bounds(whole, num_rows)
        if row_axes:
            window = lax.axis_index(row_axes) * num_local
            starts, ends = (jnp.clip(x - window, 0, num_local) for x in (starts, ends))
        if group_axes:
            count = sizes.shape[0] // lax.axis_size(group_axes)
            at = lax.axis_index(group_axes) * count
            starts, ends = (lax.dynamic_slice_in_dim(x, at, count) for x in (starts, ends))
        return ends - starts, starts[0]

    first = operands["row_start"] if "row_start" in operands else jnp.int32(0)
    labels = {
        "group_sizes": spec.batch_labels("group_sizes"),
        "row_start": spec.batch_labels("row_start") if "row_start" in operands else (),
    }
    either = {*labels["group_sizes"], *labels["row_start"]}
    lead = [label for label in (f"b{i}" for i in range(len(spec.batch))) if label in either]
    for label in reversed(lead):
        clip = jax.vmap(
            clip,
            in_axes=tuple(0 if label in labels[n] else None for n in ("group_sizes", "row_start")),
        )
    sizes, first = clip(operands["group_sizes"], first)
    batch = tuple(
        tuple(sorted({*names, "group_sizes", "row_start"})) if f"b{i}" in lead else names
        for i, names in enumerate(spec.batch)
    )
    kinds = {*spec.operands, "row_start"}
    spec = spec.replace(operands=tuple(n for n in OPERAND_ORDER if n in kinds), batch=batch)
    return spec, {**operands, "group_sizes": sizes, "row_start": first}
