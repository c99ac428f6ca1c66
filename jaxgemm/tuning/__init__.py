"""Choosing among kernels and configs: cost model, measured tables, the search that fills them."""
