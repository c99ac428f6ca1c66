"""The Python half of the CUDA kernels that are called through XLA's foreign function interface."""

from jaxgemm.ffi_kernels import cublaslt, mma_sync, simt, sm90, sm90_tf32
from jaxgemm.kernel import Kernel

__all__ = ["KERNELS"]

# In order of preference.
KERNELS: tuple[Kernel, ...] = (
    sm90.KERNEL,
    sm90_tf32.KERNEL,
    mma_sync.KERNEL,
    *simt.KERNELS,
    cublaslt.KERNEL,
)
