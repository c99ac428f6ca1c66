"""What a problem must cost on a device, and what a config is expected to take.

The model counts bytes, flops and waves. It leaves out: clocks under power limits, L2 hit rates
between tiles of a wave, and the skew of groups (they are taken as equal).
"""

import dataclasses
import math
from typing import Any

from jaxgemm import dtypes
from jaxgemm.device import Device
from jaxgemm.problem import Problem

# One tile's prologue and epilogue that no main loop hides, in microseconds. Assumed.
_TILE_OVERHEAD_US = 1.0


@dataclasses.dataclass(frozen=True)
class Roof:
    """The two lower bounds of any implementation.

    Attributes:
      flops: multiplies and adds of the product.
      min_bytes: every operand read once, every output written once.
      compute_us: flops at the reachable rate of the operands' instruction family.
      memory_us: min_bytes at the bandwidth that a copy reaches.
    """

    flops: int
    min_bytes: int
    compute_us: float
    memory_us: float

    @property
    def intensity(self) -> float:
        """Arithmetic intensity, flops a byte of unavoidable traffic."""
        return self.flops / max(1, self.min_bytes)

    @property
    def binds(self) -> str:
        """Which roof is the lower one: "compute" or "memory"."""
        return "compute" if self.compute_us >= self.memory_us else "memory"

    @property
    def time_us(self) -> float:
        """The time at the roof."""
        return max(self.compute_us, self.memory_us)


@dataclasses.dataclass(frozen=True)
class Estimate:
    """What one config is expected to take.

    Attributes:
      time_us: launch, main loops and the un-hidden ends of tiles.
      tiles: output tiles (times split_k).
      waves: tiles over the tiles that run at once.
      tail_utilisation: tiles over the slots of all, partly filled, waves.
      edge_utilisation: useful elements over elements that tiles cover.
      tile_bytes: operand bytes that all tiles load: the L2 traffic.
    """

    time_us: float
    tiles: int
    waves: float
    tail_utilisation: float
    edge_utilisation: float
    tile_bytes: int


def roof(problem: Problem, device: Device) -> Roof:
    """The two roofs of a problem."""
    rate = device.peak_tflops(mma_family(problem))
    return Roof(
        flops=problem.flops,
        min_bytes=problem.min_bytes,
        compute_us=problem.flops / (rate * 1e6),
        memory_us=problem.min_bytes / (device.dram_gbps * 1e3),
    )


def mma_family(problem: Problem) -> str:
    """The instruction family that multiplies these operands at the asked precision."""
    both = dtypes.compute(problem.dtype("a"), problem.dtype("b"))
    if both.name == "float64":
        return "f64"
    if both.name == "float32" and problem.spec.precision == "highest":
        return ""
    if problem.dtype("a").itemsize == problem.dtype("b").itemsize == 1:
        return dtypes.facts(problem.dtype("a")).mma
    return dtypes.facts(both).mma


def estimate(problem: Problem, config: Any, device: Device, efficiency: float) -> Estimate:
    """The expected cost of a config; `efficiency` is its kernel's share of the reachable rate."""
    tile_m, tile_n, tile_k = config.cta_tile
    rows = math.ceil(problem.m / tile_m) + (problem.num_groups if problem.spec.ragged == "m" else 0)
    matrices = problem.batch_size * (problem.num_groups if problem.spec.ragged == "k" else 1)
    tiles = max(1, matrices * rows * math.ceil(problem.n / tile_n) * config.split_k)
    slots = max(1, device.num_sms // config.cluster_size * config.cluster_size)
    waves = tiles / slots
    depth = math.ceil(problem.k / tile_k / config.split_k) * tile_k
    if problem.spec.ragged == "k":
        depth = math.ceil(depth / max(1, problem.num_groups))
    bounds = roof(problem, device)
    rate = device.peak_tflops(mma_family(problem)) * efficiency * 1e6 / device.num_sms
    width = 2 if problem.spec.gated else 1
    tile_us = 2 * tile_m * tile_n * width * depth / rate
    itemsize = problem.dtype("a").itemsize
    tile_bytes = tiles * (tile_m + tile_n * width) * depth * itemsize
    compute_us = math.ceil(waves) * (tile_us + _TILE_OVERHEAD_US)
    memory_us = max(bounds.memory_us, tile_bytes / (device.l2_gbps * 1e3))
    covered = max(1, matrices * rows * tile_m * math.ceil(problem.n / tile_n) * tile_n)
    return Estimate(
        time_us=device.launch_us + max(compute_us, memory_us),
        tiles=tiles,
        waves=waves,
        tail_utilisation=tiles / (math.ceil(waves) * slots),
        edge_utilisation=matrices * problem.m * problem.n / covered,
        tile_bytes=tile_bytes,
    )
