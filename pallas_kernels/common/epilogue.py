"""The epilogue of `jaxgemm.epilogue` on a tile in registers."""

from collections.abc import Callable

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
from jax import lax

from jaxgemm import epilogue
from jaxgemm.problem import Problem


def preactivation(
    problem: Problem,
    product: jax.Array,
    c: jax.Array | None,
    bias: jax.Array | None,
    alpha: jax.Array | None,
    beta: jax.Array | None,
) -> jax.Array:
    """alpha · product + beta · c + bias for one tile, in the accumulator dtype.

    Args:
      problem: the whole problem.
      product: (rows, columns), accumulators.
      c: (rows, columns) or None, in its own dtype.
      bias: (columns,) or None, in its own dtype and in a layout that broadcasts along rows.
      alpha: scalar or None.
      beta: scalar or None.
    """
    dtype = problem.accumulator
    if c is not None:
        c = c.astype(dtype)
    if bias is not None:
        bias = lax.broadcast_in_dim(bias.astype(dtype), product.shape, (1,))
    return epilogue.preactivation(product, alpha, c, beta, bias)


def activation(problem: Problem) -> Callable[[jax.Array], jax.Array]:
    """The activation in operations that Mosaic compiles; the identity where there is none."""
    name = problem.spec.activation
    function = None if name is None else epilogue.ACTIVATIONS[name].mosaic
    return (lambda z: z) if function is None else function


def load_bias(bias_gmem: jax.Ref, offset: jax.Array, columns: int) -> jax.Array:
    """(columns,) of the bias from `offset`, laid out so that it broadcasts over accumulators."""
    source = bias_gmem.at[pl.ds(offset, columns)]
    return plgpu.load(source, layout=plgpu.Layout.WGMMA.reduce(0), optimized=False)
