"""The roofline of a GEMM: how many bytes three mappings move, and what that lets them reach.

With b bytes an input element and b_D an output element, d = a·b of m x n x k moves

    naive    2·b·m·n·k + b_D·m·n                     every multiply-add loads its two operands
    tiled    b·m·n·k·(1/B_M + 1/B_N) + b_D·m·n       once for a tile of B_M x B_N
    ideal    b·(m·k + k·n) + b_D·m·n                 once at all

These are bytes that a mapping asks for. Caches make DRAM see fewer of the first two, so what they
tell is how much reuse the mapping itself owns. The attainable rate is

    P = min(peak, I · bandwidth)    with I = flops / bytes, and the ridge at I = peak / bandwidth.
"""

import dataclasses
from typing import Any

import jax.numpy as jnp

from jaxgemm import device as devices
from jaxgemm import dtypes
from jaxgemm.device import Device
from jaxgemm.problem import Problem
from jaxgemm.spec import GemmSpec
from jaxgemm.tuning import cost, text

_MATRICES = ("a", "b", "b_up")


def product_flops(m: int, n: int, k: int) -> int:
    """2·m·n·k: a multiply and an add for each of k pairs of each of m·n dot products."""
    return 2 * m * n * k


def naive_bytes(m: int, n: int, k: int, in_bytes: float, out_bytes: float) -> float:
    """2·b·m·n·k + b_D·m·n: one thread an output, no reuse of what it loads."""
    return 2 * in_bytes * m * n * k + out_bytes * m * n


def tiled_bytes(
    m: int, n: int, k: int, tile: tuple[int, int], in_bytes: float, out_bytes: float
) -> float:
    """b·m·n·k·(1/B_M + 1/B_N) + b_D·m·n: an element of a feeds B_N outputs, one of b B_M."""
    tile_m, tile_n = _within(tile, m, n)
    return in_bytes * m * n * k * (1 / tile_m + 1 / tile_n) + out_bytes * m * n


def ideal_bytes(m: int, n: int, k: int, in_bytes: float, out_bytes: float) -> float:
    """b·(m·k + k·n) + b_D·m·n: everything once. Reading c adds b_C·m·n."""
    return in_bytes * (m * k + k * n) + out_bytes * m * n


def naive_flops_per_byte(in_bytes: float) -> float:
    """1/b: the limit for a long k, 0.25 for float32 and 0.5 for bfloat16."""
    return 1 / in_bytes


def tile_reuse(tile_m: int, tile_n: int) -> float:
    """B_M·B_N / (B_M + B_N): multiply-adds for each element that a tile loads; T/2 if square."""
    return tile_m * tile_n / (tile_m + tile_n)


def tile_flops_per_byte(tile_m: int, tile_n: int, in_bytes: float) -> float:
    """2·B_M·B_N / (b·(B_M + B_N)): intensity of a tile's inputs; T/b if it is square."""
    return 2 * tile_reuse(tile_m, tile_n) / in_bytes


def ridge_flops_per_byte(peak_tflops: float, memory_gbps: float) -> float:
    """peak / bandwidth: the intensity from which on compute is the lower roof."""
    return 1e3 * peak_tflops / memory_gbps


def attainable_tflops(flops_per_byte: float, peak_tflops: float, memory_gbps: float) -> float:
    """min(peak, I · bandwidth)."""
    return min(peak_tflops, flops_per_byte * memory_gbps / 1e3)


@dataclasses.dataclass(frozen=True)
class Traffic:
    """What one mapping moves and may reach.

    Attributes:
      num_bytes: what it asks memory for.
      flops_per_byte: its arithmetic intensity.
      attainable_tflops: the lower of its two roofs.
      time_us: the time at that roof.
    """

    num_bytes: float
    flops_per_byte: float
    attainable_tflops: float
    time_us: float


@dataclasses.dataclass(frozen=True)
class Roofline:
    """The roofs of a device, and three mappings of a problem under them.

    Attributes:
      problem: it.
      device: it.
      flops: of the product.
      peak_tflops: the compute roof, for the operands' instruction family.
      memory_gbps: the memory roof's slope, 1e9 bytes a second.
      tile: rows and columns of a tile of d.
      naive: every multiply-add loads its operands.
      tiled: every tile loads its operands once.
      ideal: every operand is loaded once.
    """

    problem: Problem
    device: Device
    flops: int
    peak_tflops: float
    memory_gbps: float
    tile: tuple[int, int]
    naive: Traffic
    tiled: Traffic
    ideal: Traffic

    @property
    def ridge_flops_per_byte(self) -> float:
        """The intensity from which on compute is the lower roof."""
        return ridge_flops_per_byte(self.peak_tflops, self.memory_gbps)

    @property
    def binds(self) -> str:
        """Which roof limits the ideal mapping: "compute" or "memory"."""
        above = self.ideal.flops_per_byte >= self.ridge_flops_per_byte
        return "compute" if above else "memory"

    def __str__(self) -> str:
        head = (
            f"{self.problem} on {self.device.name}: {self.flops / 1e9:.4g} Gflop\n"
            f"roofs    {self.peak_tflops:.0f} TFLOP/s and {self.memory_gbps:.0f} GB/s,"
            f" ridge at {self.ridge_flops_per_byte:.0f} flop/byte: {self.binds}-bound"
        )
        cells = [("mapping", "MB", "flop/byte", "TFLOP/s", "us")]
        tiled = f"tiled {self.tile[0]}x{self.tile[1]}"
        for name, row in (("naive", self.naive), (tiled, self.tiled), ("ideal", self.ideal)):
            values = (f"{row.num_bytes / 1e6:.4g}", f"{row.flops_per_byte:.4g}")
            speed = (f"{row.attainable_tflops:.4g}", f"{row.time_us:.2f}")
            cells.append((name, *values, *speed))
        return f"{head}\n{text.columns(cells)}"


def roofline(
    problem: Problem | tuple[int, int, int],
    device: Device | str | None = None,
    *,
    tile: tuple[int, int] = (128, 256),
    dtype: Any = "bfloat16",
    out_dtype: Any = None,
) -> Roofline:
    """The naive, the tiled and the ideal traffic of a product, and the roofs over them.

    Args:
      problem: a `Problem`, such as one of the rows of `explain`, or sizes (m, n, k).
      device: a chip such as "nvidia_h200"; None means the one that is there.
      tile: rows and columns of d that are computed together.
      dtype: of both operands, where sizes are given.
      out_dtype: of d, where sizes are given; None means `dtype`.

    Returns:
      A `Roofline`: print it, or read its fields.

    Raises:
      ValueError: the device is unknown.

    Example:
      >>> import jaxgemm
      >>> shown = jaxgemm.roofline((4096, 4096, 4096), "nvidia_h200")
      >>> round(shown.naive.flops_per_byte, 3), round(shown.ideal.flops_per_byte), shown.binds
      (0.5, 1365, 'compute')
    """
    if not isinstance(problem, Problem):
        problem = _dense(*problem, dtype, out_dtype)
    if device is None:
        device = devices.current()
    elif isinstance(device, str):
        device = devices.named(device)
    peak_tflops = device.peak_tflops(cost.mma_family(problem))
    naive, tiled, ideal = (
        _traffic(num_bytes, problem.flops, peak_tflops, device.dram_gbps)
        for num_bytes in _num_bytes(problem, tile)
    )
    return Roofline(
        problem, device, problem.flops, peak_tflops, device.dram_gbps, tile, naive, tiled, ideal
    )


def _num_bytes(problem: Problem, tile: tuple[int, int]) -> tuple[float, float, float]:
    """Bytes of the naive, the tiled and the ideal mapping.

    Written for multiply-adds instead of sizes, the formulas above hold for batches, groups and
    gated products too; whatever is not multiplied is moved once.
    """
    multiply_adds = problem.flops / 2
    a_bytes, b_bytes = (problem.dtype(name).itemsize for name in ("a", "b"))
    tile_m, tile_n = _within(tile, problem.m, problem.n)
    once = problem.min_bytes - sum(problem.bytes_of(n) for n in _MATRICES if problem.has(n))
    naive = multiply_adds * (a_bytes + b_bytes) + once
    tiled = multiply_adds * (a_bytes / tile_n + b_bytes / tile_m) + once
    # Groups are smaller than d: no tile of theirs moves less than everything once.
    return naive, max(tiled, problem.min_bytes), problem.min_bytes


def _within(tile: tuple[int, int], m: int, n: int) -> tuple[int, int]:
    """A tile that is no larger than d."""
    return max(1, min(tile[0], m)), max(1, min(tile[1], n))


def _traffic(num_bytes: float, flops: int, peak_tflops: float, memory_gbps: float) -> Traffic:
    intensity = flops / max(1, num_bytes)
    time_us = max(flops / (peak_tflops * 1e6), num_bytes / (memory_gbps * 1e3))
    return Traffic(
        num_bytes, intensity, attainable_tflops(intensity, peak_tflops, memory_gbps), time_us
    )


def _dense(m: int, n: int, k: int, dtype: Any, out_dtype: Any) -> Problem:
    """d = a·b without anything else."""
    kind = jnp.dtype(dtype)
    out = kind if out_dtype is None else jnp.dtype(out_dtype)
    spec = GemmSpec(("a", "b"), 1, 0, out, dtypes.residual(kind, kind, out), "default")
    return Problem(spec, (("k", k), ("m", m), ("n", n)), (("a", kind.name), ("b", kind.name)))
