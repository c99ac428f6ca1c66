"""vmap: a mapped axis becomes a batch axis that only the mapped operands have.

An axis that lies between the two dimensions of a matrix, right after the first, stays there: the
spec says that it is inside, and kernels address it by its stride. Any other is moved outermost,
which moves nothing where it is outermost already. `canonical.fold` later folds an axis into m, n
or k where the memory lies that way, which is what a one-sided vmap over a means.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.interpreters import batching

from jaxgemm.policy import Policy
from jaxgemm.primitive import Autodiff, bind, gemm_p
from jaxgemm.spec import GemmSpec

# What can have a batch axis inside, if no dimension is ragged.
_MATRICES = ("a", "b", "b_up", "c", "z")


def mapped(spec: GemmSpec, axes: Mapping[str, int]) -> GemmSpec:
    """The spec of a call that is mapped along these axes of its operands: its axis b0.

    A rule is not told where results are wanted. What is inside of one of a and b only, as heads in
    (s, h, t)·(t, h, n), or as examples that share b in (m, h, k)·(k, n), is inside of d too, where
    it is most often wanted; what is inside of both, as in the scores (s, h, k)·(t, h, k), is not.
    A caller who wants it elsewhere pays for one transpose of d. To move such axes of a and b
    instead would have cost one at least.
    """
    inside = {name for name, axis in axes.items() if _lies_inside(spec, name, axis)}
    if ("a" in inside) != ("b" in inside):
        inside.add("d")
    return spec.with_batch_axis(tuple(axes), tuple(inside))


def _lies_inside(spec: GemmSpec, name: str, axis: int) -> bool:
    if spec.ragged is not None or name not in _MATRICES:
        return False
    return axis == spec.labels(name).index(spec.core_labels(name)[0]) + 1


def mapped_axis(spec: GemmSpec, name: str) -> int:
    """Where a spec that `mapped` has made has the mapped axis of an operand or output."""
    return spec.labels(name).index("b0")


def _batch(
    operands: tuple[Any, ...],
    axes: tuple[Any, ...],
    *,
    spec: GemmSpec,
    policy: Policy,
    autodiff: Autodiff,
) -> tuple[tuple[jax.Array, ...], list[int]]:
    # None marks an operand that is not mapped.
    named = {n: axis for n, axis in zip(spec.operands, axes, strict=True) if axis is not None}
    spec = mapped(spec, named)
    moved = tuple(
        jnp.moveaxis(x, named[name], mapped_axis(spec, name)) if name in named else x
        for name, x in zip(spec.operands, operands, strict=True)
    )
    outputs = bind(spec, policy, moved, autodiff)
    return outputs, [mapped_axis(spec, name) for name in spec.outputs]


batching.primitive_batchers[gemm_p] = _batch
