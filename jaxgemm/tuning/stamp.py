"""The device's own clock, read in the order of the stream.

What lies between two stamps is timed without the host, if all of it is enqueued while the device is
still busy with something else.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

# Threads of a warpgroup, each of which reads the clock: one of Mosaic's is the least there is.
_THREADS = 128
# The lower half of a clock that counts nanoseconds begins anew every 4.3 seconds.
_PERIOD_NS = 2**32


def stamp() -> jax.Array:
    """(128,), int32: when a GPU got here, in nanoseconds modulo 2^32."""
    return _compiled()()


def elapsed_us(start: jax.Array, end: jax.Array) -> float:
    """Microseconds from one stamp to another; waits for both. They are at most 4 seconds apart."""
    ns = (int(np.asarray(end)[0]) - int(np.asarray(start)[0])) % _PERIOD_NS
    return ns / 1e3


def read_clock() -> jax.Array:
    """A kernel that reads the clock and does nothing else."""
    from jax.experimental.mosaic import gpu as mosaic
    from jax.experimental.pallas import mosaic_gpu as plgpu

    shape = (_THREADS,)

    def kernel(ns_ref: jax.Ref) -> None:
        def clock(context: object) -> mosaic.FragmentedArray:
            del context
            ns = mosaic.utils.globaltimer("low")
            return mosaic.FragmentedArray.splat(ns, shape, is_signed=True)

        layout = plgpu.Layout.WG_SPLAT(shape)
        read: Any = plgpu.inline_mgpu(
            return_type=plgpu.ShapeDtypeStruct(shape, jnp.dtype(jnp.int32), layout=layout)
        )
        ns_ref[...] = read(clock)()

    stamped = jax.ShapeDtypeStruct(shape, jnp.int32)
    return plgpu.kernel(kernel, out_type=stamped, kernel_name="jaxgemm_stamp")()


@functools.cache
def _compiled() -> Callable[[], jax.Array]:
    return jax.jit(read_clock).lower().compile()
