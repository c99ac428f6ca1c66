// Rung 4, cuda.register_blocked: each thread computes an R x R block of d in registers.
//
// Bottleneck before: more loads from shared memory than FMAs. Here a thread loads R elements of a
// and R of b for one k and multiplies each with each:
//
//     loads from shared memory an FMA = 2 R / R² = 0.25 for R = 8           (was 1.25)
//     bytes from global memory        = itemsize · m · n · k · (1/kTileM + 1/kTileN)
//     intensity                       = 2 / (itemsize · (1/128 + 1/128)) = 32 flops a byte
//
// The larger tile of the CTA comes for free: 256 threads with 64 accumulators each hold a 128 x 128
// tile of d. Accumulators never leave the registers until the end.
//
// Limits now: the barriers. Loads of the next tile wait until this one is used up, global latency
// is exposed at every step, and every element is loaded on its own; threads that lie side by side
// read columns of b eight apart, which are in the same banks. Rung 5 overlaps, widens, and arranges
// the threads of a warp.
#pragma once

#include "parts/elements.cuh"
#include "parts/epilogue.cuh"
#include "parts/operand.cuh"
#include "parts/tiles.cuh"

namespace jaxgemm {

template <typename T>
struct RegisterBlocked {
  static constexpr int kTileM = 128;
  static constexpr int kTileN = 128;
  static constexpr int kTileK = 8;
  static constexpr int kBlock = 8;
  static constexpr int kThreadsN = kTileN / kBlock;
  static constexpr int kNumThreads = kTileM / kBlock * kThreadsN;

  static const char* Launch(const GemmParams& params, cudaStream_t stream);

  // Copies the tile at (outer, k) so that tile_smem[k][outer]; neighbours along the dimension that
  // is contiguous in global memory are loaded by neighbouring threads.
  template <int kOuter>
  static __device__ void Load(const Operand<T>& operand, int outer, int k,
                              float (*tile_smem)[kOuter]) {
#pragma unroll
    for (int i = threadIdx.x; i < kOuter * kTileK; i += kNumThreads) {
      const bool is_k_major = operand.is_k_major();
      const int outer_index = is_k_major ? i / kTileK : i % kOuter;
      const int k_index = is_k_major ? i % kTileK : i / kOuter;
      tile_smem[k_index][outer_index] = operand.Get(outer + outer_index, k + k_index);
    }
  }
};

template <typename T>
__global__ __launch_bounds__(RegisterBlocked<T>::kNumThreads) void RegisterBlockedKernel(
    const __grid_constant__ GemmParams params) {
  using Kernel = RegisterBlocked<T>;
  constexpr int kBlock = Kernel::kBlock;
  __shared__ float a_smem[Kernel::kTileK][Kernel::kTileM];
  __shared__ float b_smem[Kernel::kTileK][Kernel::kTileN];
  const Tile tile = TileOfCta<Kernel::kTileM, Kernel::kTileN>(params);
  const auto a = Operand<T>::OfA(params, tile.batch);
  const auto b = Operand<T>::OfB(params, tile.batch);
  const int row = threadIdx.x / Kernel::kThreadsN * kBlock;
  const int column = threadIdx.x % Kernel::kThreadsN * kBlock;
  float acc[kBlock][kBlock] = {};
  for (int k0 = 0; k0 < params.k; k0 += Kernel::kTileK) {
    Kernel::Load(a, tile.row, k0, a_smem);
    Kernel::Load(b, tile.column, k0, b_smem);
    __syncthreads();
#pragma unroll
    for (int k = 0; k < Kernel::kTileK; ++k) {
      float a_rmem[kBlock];
      float b_rmem[kBlock];
#pragma unroll
      for (int i = 0; i < kBlock; ++i) {
        a_rmem[i] = a_smem[k][row + i];
        b_rmem[i] = b_smem[k][column + i];
      }
#pragma unroll
      for (int i = 0; i < kBlock; ++i) {
#pragma unroll
        for (int j = 0; j < kBlock; ++j) {
          acc[i][j] += a_rmem[i] * b_rmem[j];
        }
      }
    }
    __syncthreads();
  }
  const Epilogue epilogue(params, tile.batch);
#pragma unroll
  for (int i = 0; i < kBlock; ++i) {
#pragma unroll
    for (int j = 0; j < kBlock; ++j) {
      epilogue.Store(tile.row + row + i, tile.column + column + j, acc[i][j]);
    }
  }
}

template <typename T>
const char* RegisterBlocked<T>::Launch(const GemmParams& params, cudaStream_t stream) {
  return LaunchKernel(RegisterBlockedKernel<T>, params, NumTiles<kTileM, kTileN>(params),
                      kNumThreads, 0, stream);
}

}  // namespace jaxgemm
