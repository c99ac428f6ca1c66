"""The device's own clock, read in the order of the stream.

What lies between two stamps is timed without the host, if all of it is enqueued while the device is
still busy with something else.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

# The lower half of a clock that counts nanoseconds; it begins anew every 4.3 seconds.
_READ = "mov.u32 $0, %globaltimer_lo;"
_PERIOD_NS = 2**32


def stamp() -> jax.Array:
    """(1,), int32: when a GPU got here, in nanoseconds."""
    compiled, x = _compiled()
    return compiled(x)


def elapsed_us(start: jax.Array, end: jax.Array) -> float:
    """Microseconds from one stamp to another; waits for both. They are at most 4 seconds apart."""
    ns = (int(np.asarray(end)[0]) - int(np.asarray(start)[0])) % _PERIOD_NS
    return ns / 1e3


def read_clock(x: jax.Array) -> jax.Array:
    """A kernel of one thread's work that reads the clock. x, (1,) and int32, is not used."""
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton

    def kernel(x_ref: Any, ns_ref: Any) -> None:
        [ns_ref[...]] = triton.elementwise_inline_asm(
            _READ,
            args=[x_ref[...]],
            constraints="=r,r",
            pack=1,
            result_shape_dtypes=[jax.ShapeDtypeStruct((1,), jnp.int32)],
        )

    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((1,), jnp.int32),
        compiler_params=triton.CompilerParams(num_warps=1),
        name="jaxgemm_stamp",
    )(x)


@functools.cache
def _compiled() -> tuple[Any, jax.Array]:
    x = jnp.zeros(1, jnp.int32)
    return jax.jit(read_clock).lower(x).compile(), x
