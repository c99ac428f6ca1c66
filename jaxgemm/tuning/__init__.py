"""Choosing among kernels and configs: the cost model."""
