"""Starting calls on sets of operands that rotate."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax

Call = Callable[[Any], Any]


@dataclasses.dataclass(frozen=True)
class Candidate:
    """What is timed.

    Attributes:
      name: it.
      call: takes one element of `sets`, starts the work and returns.
      sets: the arguments to rotate through.
      foreign_wait: waits for the device, for work that JAX does not order; None for JAX itself.
    """

    name: str
    call: Call
    sets: Sequence[Any]
    foreign_wait: Callable[[], None] | None = None

    def launch(self, index: int) -> Any:
        """Starts a call on the set whose turn it is."""
        return self.call(self.sets[index % len(self.sets)])

    def wait(self, result: Any) -> None:
        """Until `result` is there."""
        if self.foreign_wait is None:
            jax.block_until_ready(result)
        else:
            self.foreign_wait()


def count(seconds: float, time_us: float, low: int, high: int) -> int:
    """How many calls of `time_us` fit into `seconds`, within limits."""
    return int(min(high, max(low, seconds * 1e6 / max(time_us, 0.1))))
