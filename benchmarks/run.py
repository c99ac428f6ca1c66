"""What `make bench` runs: the README's rows on a GPU, small rows and call overhead on a CPU.

Records go to benchmarks/results/<device>/, and then tables and pictures are made anew: in the
checkout, or in the current folder where there is none. Flags after `--` go to every binary.
"""

import subprocess
import sys
from collections.abc import Sequence

from absl import app

from benchmarks import environment


def _python(*arguments: str, stdout: int | None = None) -> subprocess.CompletedProcess[str]:
    """Each in its own process: a profiler can be attached to one, and memory comes back."""
    command = [sys.executable, *arguments]
    return subprocess.run(command, stdout=stdout, text=True, env=environment.same_modules())


def _device_name() -> str:
    """Asked of another process: one that has seen a GPU would keep memory on it."""
    question = "from benchmarks import environment; print(environment.device_name())"
    answer = _python("-c", question, stdout=subprocess.PIPE)
    answer.check_returncode()
    return answer.stdout.split()[-1]


def _commands(device_name: str) -> list[list[str]]:
    """The binaries with their flags."""
    folder = environment.folder() / "benchmarks" / "results" / device_name
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
    codes = [
        _python("-m", f"benchmarks.{name}", *given, *flags).returncode for name, *given in commands
    ]
    codes.append(_python("-m", "benchmarks.report").returncode)
    sys.exit(1 if any(codes) else 0)


if __name__ == "__main__":
    app.run(main)
