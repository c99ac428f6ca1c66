"""What a problem must cost on a device, and what a config is expected to take.

A config's time is a launch, the copies that it makes first, and the largest of four times, which
overlap:

    sm      waves · (main loop of a tile at full clock + its epilogue); where warpgroups take turns,
            the epilogue hides behind the main loop of the next tile, as far as that is long enough
    power   flops of all tiles at the rate that the power limit sustains; the smaller the tiles, the
            more bytes move for them, which takes power too
    l2      operand bytes of all tiles from L2; a cluster loads what it shares once
    dram    every operand read once, every output written once

Where two of them are close, they disturb each other, so the largest is taken smoothly. It leaves
out: L2 misses between tiles of a wave, the skew of groups (they are taken as equal), and bank
conflicts of narrow tiles. `regret.py` says what the choice costs against measurements.
"""

import dataclasses
import math
from collections.abc import Iterable
from typing import Any

from jaxgemm import dtypes, traffic
from jaxgemm.device import Device
from jaxgemm.problem import Problem

# Constants without another source were fitted, and rounded, to times of `pallas.hopper.dense` on
# an H200 (2026-11-30, bfloat16): benchmarks/results/nvidia_h200/dense_sweep.jsonl.

# Rate at full clock over `Device.tflops`, which a power limit sustains. H200: products of 20 us,
# too short for the limit, run at about 1.85 GHz · 132 · 4096 flops = 1000 of 830 TFLOP/s.
_FULL_CLOCK_GAIN = 1.2
# That rate was measured with tiles of 128 x 256, which use a loaded element 85 times; this part of
# the power is taken to move elements.
_MEASURED_REUSE, _MOVING_SHARE = 128 * 256 / (128 + 256), 0.05
# 1e9 bytes a second that an SM draws from L2: while all do (13.2 TB/s on an H200), and alone, when
# its port of 64 bytes a clock is the limit.
_L2_GBPS_PER_SM, _PORT_GBPS = 100.0, 120.0
# Kernels that do not ask L2 to keep operands (`keeps_operands` of a config), 4096 x 4096 x 576 and
# 592 (l2_hints.jsonl beside the sweep): where d is larger than the operands, their lines are given
# up and fetched again; and a row of a tile that does not begin with a line takes two.
_FETCHED_AGAIN, _LINE_BYTES, _LINES_CROSSED = 1.7, 128, 2.0
# Any kernel, where every other row begins in the middle of a sector, so that its pieces have one
# more in as many lines: with cuda.sm90.dense and tiles of 128 x 128, 4096 x 4096 x 584 takes
# 42.7 us, 600 42.9 and 608 31.1 (H200, 2026-11-30, tuning_times.jsonl in the same folder).
_SECTOR_BYTES, _SECTORS_CROSSED = 32, 3.4
# Exponent of the smooth maximum: two equal times take 2^(1/7) = 1.10 of one.
_SMOOTHNESS = 7.0
# Rounding and storing a byte of d: 2 us for 128 x 256 elements of 2 bytes.
_EPILOGUE_US_PER_BYTE = 3e-5
# In bytes of d: a byte of c that is read, and an activation, for each element.
_C_WEIGHT, _ACTIVATION_BYTES = 1.5, 3.0
# The same where c is waited for in the epilogue (`waits_for_c` of a config): 14 us for 128 x 256.
_WAITED_C_WEIGHT = 7.0
# Fixed costs: what a tile adds to a wave, and what waiting for the CTAs of a cluster adds.
_TILE_US, _CLUSTER_US = 0.15, 0.3
# A kernel that copies operands before the product, but for the bytes that it moves: for 4 MB 3.2 us
# in all, for 34 MB 16.0.
_COPY_US = 1.5


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
      time_us: launch, copies, and the smooth maximum of the four times below.
      tiles: output tiles (times split_k).
      waves: tiles over the tiles that run at once.
      tail_utilisation: tiles over the slots of all, partly filled, waves.
      edge_utilisation: useful elements over elements that tiles cover.
      tile_bytes: operand bytes that arrive at all tiles.
      l2_bytes: those that leave L2: less, where a cluster shares them, and split sums.
      sm_us: main loops at full clock, and epilogues.
      power_us: flops at the sustained rate.
      l2_us: tile and L2 bytes at the bandwidth of L2.
      dram_us: unavoidable bytes at the bandwidth of a copy.
    """

    time_us: float
    tiles: int
    waves: float
    tail_utilisation: float
    edge_utilisation: float
    tile_bytes: int
    l2_bytes: float
    sm_us: float
    power_us: float
    l2_us: float
    dram_us: float


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


@dataclasses.dataclass(frozen=True)
class _Grid:
    """How a config divides a problem.

    Attributes:
      tiles: output tiles, times split_k.
      slots: tiles that run at once.
      covered: elements of d that tiles cover.
      depth: contraction of one tile, in whole steps.
    """

    tiles: int
    slots: int
    covered: int
    depth: int

    @property
    def full_waves(self) -> int:
        """Waves, counting a partly filled one as one."""
        return math.ceil(self.tiles / self.slots)


def _grid(problem: Problem, config: Any, device: Device) -> _Grid:
    spec, size = problem.spec, config.cluster_size
    tile_m, tile_n, tile_k = config.cta_tile
    # A cluster works on whole clusters of tiles.
    cluster_m, cluster_n = (size if _shares(config, side) else 1 for side in "mn")
    rows = math.ceil(problem.m / tile_m / cluster_m) * cluster_m
    columns = math.ceil(problem.n / tile_n / cluster_n) * cluster_n
    if spec.ragged == "m":
        rows += problem.num_groups
    matrices = problem.batch_size * (problem.num_groups if spec.ragged == "k" else 1)
    summed = math.prod(
        problem.size[f"b{i}"] for i, names in enumerate(spec.batch) if "d" not in names
    )
    depth = math.ceil(problem.k / tile_k / config.split_k) * tile_k
    if spec.ragged == "k":
        depth = math.ceil(depth / max(1, problem.num_groups))
    tiles = matrices * rows * columns
    return _Grid(
        tiles=max(1, tiles * config.split_k),
        slots=max(1, device.num_sms // size * size),
        covered=max(1, tiles * tile_m * tile_n),
        depth=depth * summed,
    )


def _shares(config: Any, side: str) -> bool:
    """Whether CTAs of a cluster lie next to each other along "m" or "n"."""
    return config.cluster_size > 1 and getattr(config, "cluster_along", None) == side


def _l2_bytes(problem: Problem, config: Any, depth: int) -> tuple[float, float]:
    """Operand bytes that one tile takes in, and those of them that leave L2 for it."""
    tile_m, tile_n, _ = config.cta_tile
    a_bytes = tile_m * depth * problem.dtype("a").itemsize
    b_bytes = tile_n * depth * problem.dtype("b").itemsize * (2 if problem.spec.gated else 1)
    size = config.cluster_size
    # CTAs side by side along m need the same part of b, and along n the same part of a.
    if _shares(config, "m"):
        return a_bytes + b_bytes, a_bytes + b_bytes / size
    if _shares(config, "n"):
        return a_bytes + b_bytes, a_bytes / size + b_bytes
    # A config that does not say what its clusters share is taken to share the larger part.
    shared = max(a_bytes, b_bytes)
    return a_bytes + b_bytes, a_bytes + b_bytes - shared + shared / size


def _strain(problem: Problem, config: Any, device: Device) -> float:
    """What L2 does for operands over what it would do if it kept them and rows began with lines."""
    keeps = getattr(config, "keeps_operands", False)
    again = _FETCHED_AGAIN if traffic.writes_dominate(problem, device) and not keeps else 1.0
    crossed = [_crossed(traffic.row_bytes(problem, name), keeps) for name in "ab"]
    return again * sum(crossed) / len(crossed)


def _crossed(row_bytes: int, keeps: bool) -> float:
    """What L2 does for pieces of rows over what it does for those that begin with lines."""
    # Those with rows that TMA cannot address are copied to where lines begin.
    if row_bytes % _SECTOR_BYTES == _SECTOR_BYTES // 2:
        return _SECTORS_CROSSED
    return _LINES_CROSSED if row_bytes % _LINE_BYTES and not keeps else 1.0


def _epilogue_us(problem: Problem, config: Any) -> float:
    """What one tile takes after its main loop."""
    tile_m, tile_n, _ = config.cta_tile
    outputs = ("d",) if config.split_k == 1 else ()
    saved = [name for name in problem.spec.outputs if name in ("z", "z_up")]
    num_bytes = sum(problem.dtype(name).itemsize for name in (*outputs, *saved))
    num_bytes += 0 if outputs else problem.accumulator.itemsize
    weight = _WAITED_C_WEIGHT if getattr(config, "waits_for_c", False) else _C_WEIGHT
    loaded = [name for name in ("c", "z") if problem.has(name)]
    num_bytes += weight * sum(problem.dtype(name).itemsize for name in loaded)
    if problem.spec.function is not None:
        num_bytes += _ACTIVATION_BYTES
    return _TILE_US + tile_m * tile_n * num_bytes * _EPILOGUE_US_PER_BYTE


def estimate(problem: Problem, config: Any, device: Device, efficiency: float) -> Estimate:
    """The expected cost of a config; `efficiency` is its kernel's share of the reachable rate."""
    grid, bounds = _grid(problem, config, device), roof(problem, device)
    tile_m, tile_n, _ = config.cta_tile
    width = 2 if problem.spec.gated else 1
    tile_flops = 2 * tile_m * tile_n * width * grid.depth
    # A config that does not say what it multiplies with uses what the operands are made for.
    rate = device.peak_tflops(getattr(config, "mma_family", mma_family(problem))) * 1e6
    main_us = tile_flops / (rate / device.num_sms * efficiency * _FULL_CLOCK_GAIN)
    sm_us = _sm_us(main_us, _epilogue_us(problem, config), grid.full_waves, config)
    reuse = tile_m * tile_n * width / (tile_m + tile_n * width)
    power_us = max(bounds.flops / rate, grid.tiles * tile_flops / rate)
    power_us *= 1 + _MOVING_SHARE * (_MEASURED_REUSE / reuse - 1)
    in_bytes, out_bytes = _l2_bytes(problem, config, grid.depth)
    # Partial sums are written and read once, in the accumulator dtype.
    split_bytes = 2 * tile_m * tile_n * problem.accumulator.itemsize * (config.split_k > 1)
    l2_bytes = grid.tiles * (out_bytes + split_bytes)
    l2_us = max(
        _strain(problem, config, device) * l2_bytes / (_L2_GBPS_PER_SM * device.num_sms * 1e3),
        grid.full_waves * in_bytes / (_PORT_GBPS * 1e3),
    )
    start_us = device.launch_us + (_CLUSTER_US if config.cluster_size > 1 else 0.0)
    if copied_bytes := getattr(config, "copied_bytes", 0):
        start_us += _COPY_US + 2 * copied_bytes / (device.dram_gbps * 1e3)
    return Estimate(
        time_us=start_us + _smooth_maximum((sm_us, power_us, l2_us, bounds.memory_us)),
        tiles=grid.tiles,
        waves=grid.tiles / grid.slots,
        tail_utilisation=grid.tiles / (grid.full_waves * grid.slots),
        edge_utilisation=_useful(problem) / grid.covered,
        tile_bytes=round(grid.tiles * in_bytes),
        l2_bytes=l2_bytes,
        sm_us=sm_us,
        power_us=power_us,
        l2_us=l2_us,
        dram_us=bounds.memory_us,
    )


def _sm_us(main_us: float, epilogue_us: float, waves: int, config: Any) -> float:
    """Time of the tiles that one SM computes after one another."""
    if not getattr(config, "takes_turns", False):
        return waves * (main_us + epilogue_us)
    # Two tiles take two main loops, or one and an epilogue if that is longer; one epilogue is last.
    return waves * max(main_us, (main_us + epilogue_us) / 2) + epilogue_us


def _useful(problem: Problem) -> int:
    groups = problem.num_groups if problem.spec.ragged == "k" else 1
    return problem.batch_size * groups * problem.m * problem.n


def _smooth_maximum(times_us: tuple[float, ...]) -> float:
    """The q-norm, with the largest taken out so that nothing overflows; 0 if all are."""
    largest = max(times_us)
    if largest == 0:
        return 0.0
    total = sum((x / largest) ** _SMOOTHNESS for x in times_us)
    return largest * total ** (1 / _SMOOTHNESS)


def ranked(
    problem: Problem, configs: Iterable[Any], device: Device, efficiency: float = 1.0
) -> list[tuple[Any, Estimate]]:
    """Configs with their estimates, cheapest first; among equals the kernel's order holds."""
    scored = [(config, estimate(problem, config, device, efficiency)) for config in configs]
    return sorted(scored, key=lambda pair: pair[1].time_us)
