"""What JAX's transforms do to `gemm_p`: each rule rewrites the spec, none knows a kernel."""
