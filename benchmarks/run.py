"""What `make bench` runs: the README's rows on a GPU, small rows and call overhead on a CPU.

Records go to benchmarks/results/<device>/, and then tables and pictures are made anew.
"""

import pathlib
import subprocess
import sys
from collections.abc import Sequence

from absl import app

_RESULTS = pathlib.Path(__file__).with_name("results")


def _device_name() -> str:
    """Asked of another process: one that has seen a GPU would keep memory on it."""
    question = "from benchmarks import environment; print(environment.device_name())"
    answer = subprocess.run(
        [sys.executable, "-c", question], check=True, stdout=subprocess.PIPE, text=True
    )
    return answer.stdout.split()[-1]


def _commands(device_name: str) -> list[list[str]]:
    """The binaries with their flags."""
    folder = _RESULTS / device_name
    if device_name == "cpu":
        return [["gemm", "--suite=smoke"], ["cpu", f"--out={folder / 'overhead.jsonl'}"]]
    return [
        ["ceilings", f"--out={folder / 'ceilings.jsonl'}"],
        ["gemm", "--suite=readme", "--regime=both", f"--out={folder / 'readme.jsonl'}"],
    ]


def main(argv: Sequence[str]) -> None:
    """Runs them one after the other; one that fails does not stop the others."""
    flags = list(argv[1:])
    commands = _commands(_device_name())
    # Each in its own process: a profiler can be attached to one, and memory comes back.
    codes = [
        subprocess.run([sys.executable, "-m", f"benchmarks.{name}", *given, *flags]).returncode
        for name, *given in commands
    ]
    codes.append(subprocess.run([sys.executable, "-m", "benchmarks.report"]).returncode)
    sys.exit(1 if any(codes) else 0)


def main_cli() -> None:
    """The console script."""
    app.run(main)


if __name__ == "__main__":
    main_cli()
