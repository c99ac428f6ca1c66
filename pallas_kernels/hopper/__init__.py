"""Kernels for compute capability 9.0: TMA copies and warpgroup matrix instructions."""
