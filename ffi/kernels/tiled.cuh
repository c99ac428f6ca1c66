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
// arrives transposed is turned while it is written. The padding of b keeps the reads of a warp, 32
// columns, in different banks; that of a keeps four elements along k where one load can read them.
// Two barriers a step: tiles must be complete before they are read, and read before the next ones
// overwrite them.
//
// Limit now: five loads from *shared* memory for four FMAs (one a broadcast), so the rate of shared
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
  // One multiplies while the other waits at a barrier: 32 registers a thread are left for it.
  static constexpr int kMinCtas = 2;
  static constexpr int kARow = kTile + 4;
  static constexpr int kBRow = kTile + 1;

  static const char* Launch(const GemmParams& params, cudaStream_t stream);
};

// One thread's element of the tiles of an operand, step by step: what is kept takes few registers.
template <typename T>
class TiledSource {
 public:
  // Copies to tile_smem[outer][k], the same for a and b. `first` is where the tile begins.
  template <int kRow>
  __device__ TiledSource(const Operand<T>& operand, int first, float (*tile_smem)[kRow]) {
    const int fast = threadIdx.x % Tiled<T>::kTile;
    const int slow = threadIdx.x / Tiled<T>::kTile;
    const int outer = operand.is_k_major() ? slow : fast;
    const int k = operand.is_k_major() ? fast : slow;
    from_ = operand.At(first + outer, k);
    k_stride_ = operand.k_stride();
    k_left_ = first + outer < operand.outer_size() ? operand.k_size() - k : 0;
    to_ = &tile_smem[outer][k];
  }

  // Copies the element of this step, or 0 outside the matrix, and goes on to the next.
  __device__ void Load() {
    *to_ = k_left_ > 0 ? ToFloat(*from_) : 0.0f;
    from_ += static_cast<int64_t>(k_stride_) * Tiled<T>::kTile;
    k_left_ -= Tiled<T>::kTile;
  }

 private:
  const T* from_;
  int k_stride_;
  int k_left_;
  float* to_;
};

template <typename T>
__global__ __launch_bounds__(Tiled<T>::kNumThreads, Tiled<T>::kMinCtas) void TiledKernel(
    const __grid_constant__ GemmParams params) {
  using Kernel = Tiled<T>;
  constexpr int kTile = Kernel::kTile;
  alignas(16) __shared__ float a_smem[kTile][Kernel::kARow];  // (m, k)
  __shared__ float b_smem[kTile][Kernel::kBRow];              // (n, k)
  const Tile tile = TileOfCta<kTile, kTile>(params);
  TiledSource<T> a(Operand<T>::OfA(params, tile.batch), tile.row, a_smem);
  TiledSource<T> b(Operand<T>::OfB(params, tile.batch), tile.column, b_smem);
  const int row = threadIdx.x / kTile;
  const int column = threadIdx.x % kTile;
  float product = 0.0f;
  for (int k0 = 0; k0 < params.k; k0 += kTile) {
    a.Load();
    b.Load();
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kTile; k += 4) {
      const float4 a_k = *reinterpret_cast<const float4*>(&a_smem[row][k]);
      const float* b_k = &b_smem[column][k];
      product += a_k.x * b_k[0];
      product += a_k.y * b_k[1];
      product += a_k.z * b_k[2];
      product += a_k.w * b_k[3];
    }
    __syncthreads();
  }
  Epilogue(params, tile.batch).Store(tile.row + row, tile.column + column, product);
}

template <typename T>
const char* Tiled<T>::Launch(const GemmParams& params, cudaStream_t stream) {
  return LaunchKernel(TiledKernel<T>, params, NumTiles<kTile, kTile>(params), kNumThreads, 0,
                      stream);
}

}  // namespace jaxgemm
