// Rung 2, cuda.coalesced: the same threads, dealt out along rows of d.
//
// Bottleneck before: the 32 threads of a warp read 32 rows of a, and wrote 32 rows of d, so every
// request took 32 sectors. Here a warp has 32 consecutive *columns* of one row. For row-major
// operands, of one step of k it reads
//
//     a: one element, broadcast to all lanes               1 sector  (was 32)
//     b: 32 consecutive elements, 128 bytes of float32     4 sectors (was 1)
//
// and it stores d in whole sectors. Nothing else changed: the bytes that are asked for are the same
// 2 · m · n · k elements, intensity is still 1 / itemsize, and the caches must do the reuse.
// (With b stored as (n, k), a warp's columns lie k elements apart and this rung is as slow as the
// first: coalescing is about the layout that there is.)
//
// Limit now: two loads for each FMA, so the rate of L1 and of the load/store units. Rung 3 loads
// each element once for many threads.
#pragma once

#include "parts/dot.cuh"
#include "parts/epilogue.cuh"
#include "parts/tiles.cuh"

namespace jaxgemm {

template <typename T>
struct Coalesced {
  static constexpr int kTileM = 8;
  static constexpr int kTileN = 32;
  static constexpr int kNumThreads = kTileM * kTileN;

  static const char* Launch(const GemmParams& params, cudaStream_t stream);
};

template <typename T>
__global__ __launch_bounds__(Coalesced<T>::kNumThreads) void CoalescedKernel(
    const __grid_constant__ GemmParams params) {
  using Kernel = Coalesced<T>;
  const Tile tile = TileOfCta<Kernel::kTileM, Kernel::kTileN>(params);
  const int row = tile.row + threadIdx.x / Kernel::kTileN;
  const int column = tile.column + threadIdx.x % Kernel::kTileN;
  if (row < params.m && column < params.n) {
    const float product = DotProduct<T>(params, tile.batch, row, column);
    Epilogue(params, tile.batch).Store(row, column, product);
  }
}

template <typename T>
const char* Coalesced<T>::Launch(const GemmParams& params, cudaStream_t stream) {
  return LaunchKernel(CoalescedKernel<T>, params, NumTiles<kTileM, kTileN>(params), kNumThreads, 0,
                      stream);
}

}  // namespace jaxgemm
