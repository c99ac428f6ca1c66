"""Device code in Pallas: one file a kernel, one folder an architecture."""

from jaxgemm.kernel import Kernel
from pallas_kernels.hopper import dense as hopper_dense

__all__ = ["KERNELS"]

# In order of preference.
KERNELS: tuple[Kernel, ...] = (hopper_dense.KERNEL,)
