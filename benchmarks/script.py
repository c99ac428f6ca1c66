"""The console scripts: `jaxgemm-bench-train-step` is `python -m benchmarks.train_step`."""

import pathlib
import runpy
import sys


def main() -> None:
    """Runs the binary that the script is named after."""
    name = pathlib.Path(sys.argv[0]).stem.removeprefix("jaxgemm-bench-").replace("-", "_")
    # As the main module: --help shows the flags of that one.
    runpy.run_module(f"benchmarks.{name}", run_name="__main__", alter_sys=True)
