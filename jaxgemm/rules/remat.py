"""Checkpoint policies that count a GEMM as a dot: JAX's own do not see other primitives."""

from typing import Any

import jax

from jaxgemm.primitive import gemm_p


def checkpoint_dots(prim: Any, *avals: Any, **params: Any) -> bool:
    """`jax.checkpoint_policies.checkpoint_dots`, with GEMMs saved too.

    Example:
      >>> import jax, jaxgemm
      >>> layer = jax.checkpoint(lambda x, w: jaxgemm.gemm(x, w).sum(),
      ...                        policy=jaxgemm.checkpoint_dots)
    """
    return prim is gemm_p or jax.checkpoint_policies.checkpoint_dots(prim, *avals, **params)


def checkpoint_dots_with_no_batch_dims(prim: Any, *avals: Any, **params: Any) -> bool:
    """`jax.checkpoint_policies.checkpoint_dots_with_no_batch_dims`, with such GEMMs saved too.

    A GEMM has a batch dimension when a and b share one that the result has; a stack of rows
    times one matrix of weights has none, however it is shaped.

    Example:
      >>> import jax, jaxgemm
      >>> layer = jax.checkpoint(lambda x, w: jaxgemm.gemm(x, w).sum(),
      ...                        policy=jaxgemm.checkpoint_dots_with_no_batch_dims)
    """
    if prim is gemm_p:
        return not any({"a", "b", "d"} <= set(names) for names in params["spec"].batch)
    stock = jax.checkpoint_policies.checkpoint_dots_with_no_batch_dims
    return stock(prim, *avals, **params)
