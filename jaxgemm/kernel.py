"""The kernel contract: a frozen value made of three functions and a name."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import jax

from jaxgemm.device import Device
from jaxgemm.problem import Problem

Operands = Mapping[str, jax.Array]


class Config(Protocol):
    """What every config can tell the cost model and `explain`.

    A config is a frozen, hashable dataclass of the kernel's own choices; these are properties
    of it. Values are for one thread block (CTA) unless said otherwise.

    The cost model and dispatch also read these, of configs that have them:

      cluster_along: the side of d, "m" or "n", along which the CTAs of a cluster lie.
      takes_turns: whether epilogues hide behind the products of other tiles.
      keeps_operands: whether loads ask L2 to keep what other tiles read too.
      copied_bytes: operands that are copied before the product.
      only_measured: whether `auto` takes it only where a table says what it takes.
      waits_for_c: whether c is loaded in the epilogue only, and not while products run.
      mma_family: what it multiplies with, as in `Device.tflops`, where operands do not tell.
    """

    @property
    def cta_tile(self) -> tuple[int, int, int]:
        """Rows, columns and contraction depth of the tile of one step."""
        ...

    @property
    def stages(self) -> int:
        """How many steps of operands are in flight."""
        ...

    @property
    def cluster_size(self) -> int:
        """CTAs that share operand loads."""
        ...

    @property
    def split_k(self) -> int:
        """How many CTAs share one output tile's contraction."""
        ...

    @property
    def smem_bytes(self) -> int:
        """Shared memory of one CTA; 0 where there is none, or it is not known."""
        ...


@dataclasses.dataclass(frozen=True)
class Kernel:
    """A way to compute a `Problem`.

    Attributes:
      name: `pallas.hopper.dense`: the same string in profiles, cache keys, benchmarks and errors.
      version: raised to drop stale tunings.
      why_not: None, or one sentence that names the fact and what would work. Pure, never raises.
      configs: legal configs for a problem that `why_not` accepts, in a fixed order. Pure.
      run: the outputs that `problem.spec.outputs` names, in that order. Operands come by name.
      efficiency: share of the device's reachable rate that its main loop gets; for the cost model.
      why_not_auto: None, or why `backend="auto"` leaves it to callers who name it.
      is_black_box: whether its configs do not say how it works, so that nothing can be estimated:
        `backend="auto"` takes it where it was measured to be faster than the others, or where
        theirs would leave half of the device without work.
    """

    name: str
    version: int
    why_not: Callable[[Problem, Device], str | None]
    configs: Callable[[Problem, Device], tuple[Any, ...]]
    run: Callable[[Problem, Any, Operands], tuple[jax.Array, ...]]
    efficiency: float = 1.0
    why_not_auto: Callable[[], str | None] = lambda: None
    is_black_box: bool = False
