"""Random arrays, arrays whose products cancel, and trees of arrays that are close."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def normal(*shape: int, seed: int = 0) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def repeat(x: np.ndarray, k_axis: int, sign: int) -> None:
    """Makes most of the second half along k the same as the first, but for a sign.

    Products of two such arrays, of which one changes the sign, cancel: partial sums are large.
    """
    along_k = np.moveaxis(x, k_axis, 0)
    k = len(along_k)
    size = 7 * k // 16
    along_k[k - size :] = sign * along_k[:size]


def assert_close(got: Any, want: Any, tolerance: float = 1e-5) -> None:
    """Trees agree in shape, dtype and, relative to their largest value, number."""

    def check(p: jax.Array, q: jax.Array) -> None:
        assert (p.shape, p.dtype) == (q.shape, q.dtype)
        np.testing.assert_allclose(
            p, q, rtol=tolerance, atol=tolerance * float(abs(q).max()) if q.size else 0
        )

    jax.tree.map(check, got, want)
