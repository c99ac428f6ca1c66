"""The epilogue of `jaxgemm.epilogue` on a tile in registers."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
from jax import lax

from jaxgemm import epilogue
from jaxgemm.problem import Problem


@dataclasses.dataclass(frozen=True)
class Scalars:
    """alpha and beta in the accumulator dtype; None where absent."""

    alpha: jax.Array | None
    beta: jax.Array | None


def load_bias(bias_gmem: Any, offset: jax.Array, columns: int, n_axis: int = 1) -> jax.Array:
    """(columns,) of the bias (n,), laid out to be broadcast along the rows of an accumulator.

    Or, where n is axis 0 of the accumulator, along its columns.

    Past the end the last columns are read instead: a plain load has no bounds check, and what is
    computed there is clipped by the store.
    """
    source = bias_gmem.at[pl.ds(jnp.minimum(offset, bias_gmem.shape[0] - columns), columns)]
    return plgpu.load(source, layout=plgpu.Layout.WGMMA.reduce(1 - n_axis), optimized=False)


def apply(
    problem: Problem,
    products: Sequence[jax.Array],
    loaded: Mapping[str, jax.Array],
    bias: jax.Array | None,
    scalars: Scalars,
    n_axis: int = 1,
) -> dict[str, jax.Array]:
    """The outputs, not yet rounded: z = alpha · a·b + beta · c + bias, and d = act(z) [· z_up].

    Or, in a pullback, d = act'(z) · (alpha · a·b + beta · c).

    Args:
      problem: the whole problem.
      products: accumulators (rows, columns) of a·b, and of a·b_up in a gated problem.
      loaded: c and z, those there are: (rows, columns) in their own dtypes.
      bias: (columns,) in its own dtype, or None.
      scalars: alpha and beta.
      n_axis: the axis of columns of d; 0 where everything here is transposed.
    """
    shape, dtype = products[0].shape, products[0].dtype
    c, z = (loaded[name].astype(dtype) if name in loaded else None for name in ("c", "z"))
    bias = None if bias is None else lax.broadcast_in_dim(bias.astype(dtype), shape, (n_axis,))
    # Mosaic has no select with a scalar predicate, so beta is spread out first.
    beta = None if scalars.beta is None else jnp.broadcast_to(scalars.beta, shape)
    saved = [epilogue.preactivation(x, scalars.alpha, c, beta, bias) for x in products]
    d, function = saved[0], problem.spec.function
    if function is not None and z is not None:
        assert function.mosaic_pullback is not None, problem
        d = function.mosaic_pullback(z, d)
    elif function is not None:
        assert function.mosaic is not None, problem
        d = function.mosaic(d)
    if problem.spec.gated:
        d = d * saved[1]
    return dict(zip(("d", "z", "z_up"), (d, *saved), strict=False))
