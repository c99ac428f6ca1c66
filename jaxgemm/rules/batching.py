"""vmap: a mapped axis becomes a batch axis that only the mapped operands have.

Nothing is moved or copied here. `canonical.fold` later folds such an axis into m where the rows
of all examples lie one after the other, which is what a one-sided vmap over a means.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.interpreters import batching

from jaxgemm.policy import Policy
from jaxgemm.primitive import Autodiff, bind, gemm_p
from jaxgemm.spec import GemmSpec


def _batch(
    operands: tuple[Any, ...],
    axes: tuple[Any, ...],
    *,
    spec: GemmSpec,
    policy: Policy,
    autodiff: Autodiff,
) -> tuple[tuple[jax.Array, ...], list[int]]:
    # None marks an operand that is not mapped.
    mapped = tuple(n for n, axis in zip(spec.operands, axes, strict=True) if axis is not None)
    moved = tuple(
        x if axis is None else jnp.moveaxis(x, axis, 0)
        for x, axis in zip(operands, axes, strict=True)
    )
    outputs = bind(spec.with_batch_axis(mapped), policy, moved, autodiff)
    return outputs, [0] * len(outputs)


batching.primitive_batchers[gemm_p] = _batch
