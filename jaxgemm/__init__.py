"""jaxgemm: GEMM for JAX on NVIDIA GPUs."""
