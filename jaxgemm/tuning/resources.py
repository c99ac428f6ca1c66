"""What ptxas says of Pallas kernels while they are compiled: registers, spills, shared memory."""

import contextlib
import dataclasses
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator

# Mosaic reads them each time it compiles.
_VARIABLES = ("MOSAIC_GPU_DUMP_PTXAS", "MOSAIC_GPU_DUMP_RESOURCES")


@dataclasses.dataclass(frozen=True)
class Resources:
    """The largest of each among the kernels that were compiled.

    Attributes:
      registers: of a thread at launch.
      spill_bytes: stores and loads together.
      stack_bytes: of a thread.
      smem_bytes: of a thread block, for tiles.
    """

    registers: int
    spill_bytes: int
    stack_bytes: int
    smem_bytes: int


def parse(log: str) -> Resources | None:
    """What a log of Mosaic and ptxas says; None if no kernel was compiled."""
    registers = re.findall(r"Used (\d+) registers", log)
    if not registers:
        return None
    spills = re.findall(r"(\d+) bytes spill stores, (\d+) bytes spill loads", log)
    stacks = re.findall(r"(\d+) bytes stack frame", log)
    smem = re.findall(r"smem_scratch_bytes=(\d+)", log)
    return Resources(
        registers=max(map(int, registers)),
        spill_bytes=max((int(a) + int(b) for a, b in spills), default=0),
        stack_bytes=max(map(int, stacks), default=0),
        smem_bytes=max(map(int, smem), default=0),
    )


@contextlib.contextmanager
def watch() -> Iterator[Callable[[], Resources | None]]:
    """Collects what the compiler says inside; nothing of it reaches the terminal.

    Yields:
      A function that gives it, after the block has ended too. Kernels that JAX or Mosaic has in a
      cache are not compiled and so not seen.
    """
    before = {name: os.environ.get(name) for name in _VARIABLES}
    os.environ.update(dict.fromkeys(_VARIABLES, "1"))
    with tempfile.TemporaryFile() as log:
        text: list[str] = []

        def said() -> Resources | None:
            return parse(text[0]) if text else None

        saved = _redirect(log.fileno())
        try:
            yield said
        finally:
            _restore(saved)
            log.seek(0)
            text.append(log.read().decode(errors="replace"))
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value


def _redirect(target: int) -> tuple[int, int]:
    """Points the process's stdout and stderr, C++ included, at a file."""
    sys.stdout.flush()
    sys.stderr.flush()
    saved = os.dup(1), os.dup(2)
    os.dup2(target, 1)
    os.dup2(target, 2)
    return saved


def _restore(saved: tuple[int, int]) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    for stream, copy in zip((1, 2), saved, strict=True):
        os.dup2(copy, stream)
        os.close(copy)
