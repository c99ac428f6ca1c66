"""Puts every registered kernel side by side on one product, with what XLA makes of it.

    python -m benchmarks.ladder --m=4096
    python -m benchmarks.ladder --m=4096 --dtype=float32

A kernel that declines says why.
"""

import sys
from collections.abc import Sequence

from absl import app

from benchmarks import command, gemm
from benchmarks.runner import Runner


def main(argv: Sequence[str]) -> None:
    """Measures the rows of the flags of `benchmarks.gemm`, which see."""
    if len(argv) > 1:
        raise app.UsageError(f"{argv[1:]} should be flags")
    try:
        rows = gemm.rows()
        runner = Runner(command.options(backends=("jnp.dot", "xla.best", *command.kernels())))
    except ValueError as error:
        raise app.UsageError(str(error)) from None
    sys.exit(command.collect(len(rows), runner.run(rows)))


if __name__ == "__main__":
    app.run(main)
