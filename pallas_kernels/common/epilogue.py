"""The epilogue of `jaxgemm.epilogue` on a tile in registers."""

import dataclasses

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
from jax import lax

from jaxgemm import epilogue
from jaxgemm.problem import Problem


@dataclasses.dataclass(frozen=True)
class Factors:
    """What the epilogue of a tile needs besides c, in the accumulator dtype; None where absent.

    Attributes:
      alpha: scalar.
      beta: scalar.
      bias: one (columns,) a slice, laid out to be broadcast along the rows of an accumulator.
    """

    alpha: jax.Array | None
    beta: jax.Array | None
    bias: tuple[jax.Array, ...] | None


def load_bias(
    bias_gmem: jax.Ref, offset: jax.Array, columns: int, num_slices: int
) -> tuple[jax.Array, ...]:
    """The slices of `columns` elements of the bias (n,) from `offset` on, as float32.

    Slices past the end are read from its last columns: a plain load has no bounds check, and what
    is computed there is clipped by the store.
    """
    last = bias_gmem.shape[0] - columns

    def load(index: int) -> jax.Array:
        start = jnp.minimum(offset + index * columns, last)
        source = bias_gmem.at[pl.ds(start, columns)]
        layout = plgpu.Layout.WGMMA.reduce(0)
        return plgpu.load(source, layout=layout, optimized=False).astype(jnp.float32)

    return tuple(load(index) for index in range(num_slices))


def apply(
    problem: Problem, product: jax.Array, c: jax.Array | None, factors: Factors, index: int
) -> tuple[jax.Array, jax.Array]:
    """z = alpha · product + beta · c + bias, and d = act(z), not yet rounded.

    Args:
      problem: the whole problem.
      product: (rows, columns), accumulators.
      c: (rows, columns) in its own dtype, or None.
      factors: alpha, beta, and bias.
      index: which slice of columns this is.
    """
    bias = None
    if factors.bias is not None:
        bias = lax.broadcast_in_dim(factors.bias[index], product.shape, (1,))
    c = None if c is None else c.astype(product.dtype)
    # Mosaic has no select with a scalar predicate, so beta is spread out first.
    beta = None if factors.beta is None else jnp.broadcast_to(factors.beta, product.shape)
    z = epilogue.preactivation(product, factors.alpha, c, beta, bias)
    name = problem.spec.activation
    function = None if name is None else epilogue.ACTIVATIONS[name].mosaic
    return z, z if function is None else function(z)
