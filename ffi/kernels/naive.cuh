// Rung 1, cuda.naive: one thread computes one element of d, straight from global memory.
//
// There is no rung below. Each thread reads a row of a and a column of b:
//
//     bytes asked for = itemsize · 2 · m · n · k      flops = 2 · m · n · k
//     intensity       = 1 / itemsize = 0.25 flop a byte for float32
//
// so every element of a is asked for n times and every element of b m times. The threads of a warp
// take consecutive *rows* of one column of d, as one might loop over a matrix in Fortran. Then each
// load of a row-major a touches 32 rows: 32 sectors of 32 bytes, of which one element each is used
// now, the rest if the cache still has it later. Stores of d are scattered in the same way.
//
// Limit now: sectors a request, so the load/store units and L1. Rung 2 turns the warp by 90°.
#pragma once

#include "parts/dot.cuh"
#include "parts/epilogue.cuh"
#include "parts/tiles.cuh"

namespace jaxgemm {

template <typename T>
struct Naive {
  static constexpr int kTileM = 32;
  static constexpr int kTileN = 8;
  static constexpr int kNumThreads = kTileM * kTileN;

  static const char* Launch(const GemmParams& params, cudaStream_t stream);
};

template <typename T>
__global__ __launch_bounds__(Naive<T>::kNumThreads) void NaiveKernel(
    const __grid_constant__ GemmParams params) {
  using Kernel = Naive<T>;
  const Tile tile = TileOfCta<Kernel::kTileM, Kernel::kTileN>(params);
  const int row = tile.row + threadIdx.x % Kernel::kTileM;
  const int column = tile.column + threadIdx.x / Kernel::kTileM;
  if (row < params.m && column < params.n) {
    const float product = DotProduct<T>(params, tile.batch, row, column);
    Epilogue(params, tile.batch).Store(row, column, product);
  }
}

template <typename T>
const char* Naive<T>::Launch(const GemmParams& params, cudaStream_t stream) {
  return LaunchKernel(NaiveKernel<T>, params, NumTiles<kTileM, kTileN>(params), kNumThreads, 0,
                      stream);
}

}  // namespace jaxgemm
