"""Compiling for GPUs on machines that have none."""
