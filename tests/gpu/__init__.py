"""Scripts that need a GPU."""
