"""Parts that Pallas kernels are made of."""
