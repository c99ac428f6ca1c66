"""Random arrays, and trees of arrays that are close."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def normal(*shape: int, seed: int = 0) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def assert_close(got: Any, want: Any, tolerance: float = 1e-5) -> None:
    """Trees agree in shape, dtype and, relative to their largest value, number."""

    def check(p: jax.Array, q: jax.Array) -> None:
        assert (p.shape, p.dtype) == (q.shape, q.dtype)
        np.testing.assert_allclose(
            p, q, rtol=tolerance, atol=tolerance * float(abs(q).max()) if q.size else 0
        )

    jax.tree.map(check, got, want)
