// Rung 3, cuda.tiled: the CTA copies tiles of a and b to shared memory and reuses them from there.
//
// Bottleneck before: every thread loaded its own row of a and column of b, two loads for each FMA,
// 2 · m · n · k elements in all. Here the T x T threads of a CTA load a T x T tile of each operand
// together, once, and each loaded element serves T of them:
//
//     bytes from global memory = itemsize · 2 · m · n · k / T
//     intensity                = T / itemsize = 8 flops a byte for float32 and T = 32
//
// Loads go along whichever dimension is contiguous, so all four layouts are coalesced; a tile that
// arrives transposed is turned while it is written, and the padding keeps that free of bank
// conflicts. Two barriers a step: tiles must be complete before they are read, and read before the
// next ones overwrite them.
//
// Limit now: two loads from *shared* memory for each FMA (one a broadcast), so the rate of shared
// memory, where an FMA could be issued every cycle. Rung 4 reuses elements in registers.
#pragma once

#include "parts/elements.cuh"
#include "parts/epilogue.cuh"
#include "parts/operand.cuh"
#include "parts/tiles.cuh"

namespace jaxgemm {

template <typename T>
struct Tiled {
  static constexpr int kTile = 32;
  static constexpr int kNumThreads = kTile * kTile;
  // One element of padding: a column of the tile then lies in 32 different banks.
  static constexpr int kRow = kTile + 1;

  static const char* Launch(const GemmParams& params, cudaStream_t stream);

  // Copies the tile at (outer, k) so that tile_smem[outer][k], the same for a and b.
  static __device__ void Load(const Operand<T>& operand, int outer, int k,
                              float (*tile_smem)[kRow]) {
    const int fast = threadIdx.x % kTile;
    const int slow = threadIdx.x / kTile;
    if (operand.is_k_major()) {
      tile_smem[slow][fast] = operand.Get(outer + slow, k + fast);
    } else {
      tile_smem[fast][slow] = operand.Get(outer + fast, k + slow);
    }
  }
};

template <typename T>
__global__ __launch_bounds__(Tiled<T>::kNumThreads) void TiledKernel(
    const __grid_constant__ GemmParams params) {
  using Kernel = Tiled<T>;
  constexpr int kTile = Kernel::kTile;
  __shared__ float a_smem[kTile][Kernel::kRow];  // (m, k)
  __shared__ float b_smem[kTile][Kernel::kRow];  // (n, k)
  const Tile tile = TileOfCta<kTile, kTile>(params);
  const auto a = Operand<T>::OfA(params, tile.matrix);
  const auto b = Operand<T>::OfB(params, tile.matrix);
  const int row = threadIdx.x / kTile;
  const int column = threadIdx.x % kTile;
  float product = 0.0f;
  for (int k0 = 0; k0 < params.k; k0 += kTile) {
    Kernel::Load(a, tile.row, k0, a_smem);
    Kernel::Load(b, tile.column, k0, b_smem);
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kTile; ++k) {
      product += a_smem[row][k] * b_smem[column][k];
    }
    __syncthreads();
  }
  Epilogue(params, tile.matrix).Store(tile.row + row, tile.column + column, product);
}

template <typename T>
const char* Tiled<T>::Launch(const GemmParams& params, cudaStream_t stream) {
  return LaunchKernel(TiledKernel<T>, params, NumTiles<kTile, kTile>(params), kNumThreads, 0,
                      stream);
}

}  // namespace jaxgemm
