"""The Hopper kernel in CUDA C++: TMA, warp roles and wgmma, for every size.

It takes what `pallas.hopper.dense` takes, but for gated products and TF32, which is sm90_tf32.py's;
and problems with rows that TMA cannot address: those of a and b are copied to a workspace first,
those of d and z are written by ordinary stores. Its loads tell the L2 cache what to keep, which
Pallas cannot say; the epilogue of the Pallas kernel is compiled for its problem.
"""

import dataclasses
import functools
import math

import jax

from jaxgemm import traffic
from jaxgemm.device import Device
from jaxgemm.ffi_kernels import call, instances, library, limits, realign
from jaxgemm.kernel import Kernel, Operands
from jaxgemm.problem import Problem

_NAME = "cuda.sm90.dense"
_CAPABILITY = (9, 0)
# The columns of d in a strip of the walk over tiles (ffi/parts/tile_walk.cuh). H200, 4096³ and
# 8192³ in bfloat16, 2026-11-30, before loads told L2 what to keep: with fewer or more, clusters of
# 256 columns are up to 2 % slower, and narrower ones up to 6 %.
_STRIP_COLUMNS = 2048
# As in ffi/parts/sm90_loads.cuh, where a place past the last tile must be a number too.
MAX_TILES = 2**30 - 1


@dataclasses.dataclass(frozen=True)
class Config:
    """The choice of a compiled instance.

    Attributes:
      instance: its name in ffi/instances.json.
      cta_tile: rows, columns and contraction depth of one step.
      stages: how many steps of operands are in flight.
      cluster_size: CTAs that share operand loads.
      cluster_along: the side of d along which they lie next to each other.
      takes_turns: whether consumers take whole tiles in turns, so that epilogues hide behind
        products.
      smem_bytes: shared memory of one CTA.
      strip_width: tiles of clusters that lie next to each other along n and are computed together.
      copied_bytes: operands with rows that TMA cannot address, which are copied first.
    """

    instance: str
    cta_tile: tuple[int, int, int]
    stages: int
    cluster_size: int
    cluster_along: str | None
    takes_turns: bool
    smem_bytes: int
    strip_width: int
    copied_bytes: int

    @property
    def split_k(self) -> int:
        """CTAs that share one tile's contraction."""
        return 1

    @property
    def waits_for_c(self) -> bool:
        """Whether c is only asked for before the epilogue, and loaded in it."""
        return True

    @property
    def keeps_operands(self) -> bool:
        """Whether loads ask the L2 cache to keep what other tiles read too."""
        return True

    @property
    def only_measured(self) -> bool:
        """Whether `auto` takes it only where a table says what it takes."""
        return instances.by_name()[self.instance].unmeasured


def _why_not(problem: Problem, device: Device) -> str | None:
    return (
        limits.why_not_device(device, _CAPABILITY, _CAPABILITY)
        or limits.why_not_problem(problem, _NAME, MAX_TILES)
        or realign.why_not(problem)
        or library.why_not()
    )


def _configs(problem: Problem, device: Device) -> tuple[Config, ...]:
    dtype = problem.dtype("a").name
    return tuple(
        config_of(row, problem, device)
        for row in instances.of_kernel(_NAME)
        if row.dtype == dtype and (not row.only_plain or _is_plain(problem))
    )


def _is_plain(problem: Problem) -> bool:
    """As `LaunchSm90Dense` in ffi/kernels/sm90_dense.cuh asks of `only_plain` instances."""
    spec = problem.spec
    is_product = spec.operands == ("a", "b") and spec.outputs == ("d",) and spec.function is None
    same_dtype = problem.dtype("d") == problem.dtype("a")
    return is_product and same_dtype and realign.is_aligned(problem, "d")


def config_of(row: instances.Instance, problem: Problem, device: Device) -> Config:
    """The choice of an instance that loads as ffi/parts/sm90_loads.cuh does."""
    cluster_m, cluster_n = row.cluster
    strip_columns = problem.n if traffic.writes_dominate(problem, device) else _STRIP_COLUMNS
    return Config(
        instance=row.name,
        cta_tile=row.cta_tile,
        stages=row.stages,
        cluster_size=cluster_m * cluster_n,
        cluster_along="m" if cluster_m > 1 else "n" if cluster_n > 1 else None,
        takes_turns=row.takes_turns,
        smem_bytes=row.smem_bytes,
        strip_width=math.ceil(strip_columns / (row.cta_tile[1] * cluster_n)),
        copied_bytes=realign.workspace_bytes(problem),
    )


def run(name: str, problem: Problem, config: Config, operands: Operands) -> tuple[jax.Array, ...]:
    """The outputs, by the kernel of this name."""
    return call.run(
        problem,
        name,
        config.instance,
        operands,
        knobs=(config.strip_width,),
        workspace_bytes=config.copied_bytes,
    )


KERNEL = Kernel(
    name=_NAME,
    version=2,
    why_not=_why_not,
    configs=_configs,
    run=functools.partial(run, _NAME),
    efficiency=0.94,
    why_not_auto=library.why_not_built,
)
