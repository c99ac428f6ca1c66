"""The Python half of the CUDA kernels that are called through XLA's foreign function interface."""

KERNELS = ()
