// Rung 6, cuda.mma_sync: Tensor Cores, as on Ampere. For bfloat16, float16, and float32 in TF32.
//
// Bottleneck before: an FMA multiplies one pair of numbers a lane. Here one instruction of a warp
// (mma.sync) multiplies 16 x 8 x 16, and its operands come as fragments by ldmatrix, which reads
// four 8 x 8 matrices at a time. As on rung 5 copies are asynchronous, kStages - 1 under way:
//
//     kStages = 1    copy, wait, multiply: nothing overlaps
//     kStages = 2    one stage is copied while one is multiplied
//     kStages >= 3   the latency of global memory is hidden as well
//
//     shared memory:  64 x 64 of a warp need (64 + 64) · 16 · itemsize bytes for 64 · 64 · 16 FMAs:
//                     16 FMAs a byte with 16 bits, and an SM reads 128 bytes a clock
//     global memory:  itemsize · m · n · k · (1/kTileM + 1/kTileN)
//
// Copies are of 16 bytes: operands with rows that begin elsewhere are copied to the workspace first
// (parts/realign.cuh).
//
// Limit now, on Hopper: the issue of mma.sync itself, at under two thirds of what wgmma reaches; on
// Ampere that is the Tensor Cores' rate. Every warp also spends registers and instructions on
// addresses, copies and fragments, which rung 7 takes away.
#pragma once

#include "parts/epilogue.cuh"
#include "parts/layouts.h"
#include "parts/plain_product.cuh"
#include "parts/realign.cuh"
#include "parts/swizzled_tile.cuh"
#include "parts/tiles.cuh"

namespace jaxgemm {

// A CTA tile of kWarpsM x kWarpsN warps, each with 64 x 64 elements of d.
template <typename T, int kWarpsM, int kWarpsN, int kStages>
struct MmaSync {
  static const char* Launch(const GemmParams& params, cudaStream_t stream);
};

// The kernel for one pair of layouts.
template <typename T_, Major kAMajor, Major kBMajor, int kWarpsM_, int kWarpsN_, int kStages_>
struct MmaSyncForm {
  using T = T_;
  static constexpr int kWarpsM = kWarpsM_;
  static constexpr int kWarpsN = kWarpsN_;
  static constexpr int kStages = kStages_;
  static constexpr int kWarpTile = 64;
  static constexpr int kTileM = kWarpsM * kWarpTile;
  static constexpr int kTileN = kWarpsN * kWarpTile;
  static constexpr int kNumThreads = kWarpsM * kWarpsN * kWarpSize;
  // Two CTAs hide each other's waiting, where there are registers for both.
  static constexpr int kMinCtas = kNumThreads <= 128 ? 2 : 1;

  using ATile = SwizzledTile<T, kAMajor, kTileM, kNumThreads>;
  using BTile = SwizzledTile<T, kBMajor, kTileN, kNumThreads>;
  static constexpr int kStageBytes = ATile::kBytes + BTile::kBytes;
  static constexpr int kSmemBytes = kStages * kStageBytes;

  // On its way out d passes through shared memory, 16 rows of a warp at a time. With this pitch the
  // rows of a fragment lie in different banks.
  static constexpr int kSlabRows = 16;
  static constexpr int kSlabPitch = kWarpTile + 8;
  static constexpr int kSlabFloats = kSlabRows * kSlabPitch;
  static_assert(kWarpsM * kWarpsN * kSlabFloats * sizeof(float) <= kStageBytes, "slabs fit");
};

// What one warp does.
template <class Kernel>
class MmaSyncWarp {
 public:
  __device__ MmaSyncWarp(const GemmParams& params, char* smem)
      : params_(params),
        tile_(TileOfCta<Kernel::kTileM, Kernel::kTileN>(params)),
        a_(Matrix(params.a), params.a.row_stride, tile_.row, params.m, params.k),
        b_(Matrix(params.b), params.b.row_stride, tile_.column, params.n, params.k),
        smem_(smem),
        lane_(threadIdx.x % kWarpSize),
        warp_(threadIdx.x / kWarpSize),
        warp_row_(warp_ / Kernel::kWarpsN * Kernel::kWarpTile),
        warp_column_(warp_ % Kernel::kWarpsN * Kernel::kWarpTile) {}

  __device__ void Run() {
    constexpr int kAhead = Kernel::kStages - 1;
    const int num_steps = (params_.k + kDepth - 1) / kDepth;
#pragma unroll
    for (int step = 0; step < kAhead; ++step) {
      Start(step, num_steps);
    }
    for (int step = 0; step < num_steps; ++step) {
      if constexpr (kAhead == 0) {
        // All warps have read the only stage.
        __syncthreads();
        Start(step, num_steps);
        WaitForCopies<0>();
        __syncthreads();
      } else {
        WaitForCopies<kAhead - 1>();
        // Everyone's copies of this step are there, and everyone has read the stage that is
        // overwritten next.
        __syncthreads();
        Start(step + kAhead, num_steps);
      }
      Multiply(Stage(step));
    }
    // Copies past the last step are empty groups: shared memory is free when all warps are here.
    __syncthreads();
    Store();
  }

 private:
  using T = typename Kernel::T;
  using ATile = typename Kernel::ATile;
  using BTile = typename Kernel::BTile;
  static constexpr int kDepth = ATile::kDepth;
  // Fragments along a side of the warp's tile.
  static constexpr int kFragments = Kernel::kWarpTile / 16;
  // Addresses of single elements leave no registers for a second buffer.
  static constexpr int kBuffers = ATile::kByElements || BTile::kByElements ? 1 : 2;

  __device__ const T* Matrix(const Tensor& tensor) const {
    return static_cast<const T*>(tensor.data) + tile_.batch.Offset(tensor);
  }

  __device__ char* Stage(int step) const {
    return smem_ + step % Kernel::kStages * Kernel::kStageBytes;
  }

  __device__ void Start(int step, int num_steps) const {
    if (step < num_steps) {
      char* stage = Stage(step);
      a_.Start(step * kDepth, stage);
      b_.Start(step * kDepth, stage + ATile::kBytes);
    }
    // A group a step, so that waiting can count them.
    CommitCopies();
  }

  __device__ __forceinline__ void LoadFragments(const char* stage, int product,
                                                uint32_t (&a)[kFragments][4],
                                                uint32_t (&b)[kFragments][4]) const {
#pragma unroll
    for (int i = 0; i < kFragments; ++i) {
      ATile::template Load<false>(a[i], stage, warp_row_ + 16 * i, product, lane_);
      BTile::template Load<true>(b[i], stage + ATile::kBytes, warp_column_ + 16 * i, product,
                                 lane_);
    }
  }

  __device__ __forceinline__ void Multiply(const char* stage) {
    // Fragments of the next product load while this one is multiplied.
    uint32_t a[kBuffers][kFragments][4];
    uint32_t b[kBuffers][kFragments][4];
    if constexpr (kBuffers == 2) {
      LoadFragments(stage, 0, a[0], b[0]);
    }
#pragma unroll(kBuffers == 2 ? kProductsPerStage : 1)
    for (int product = 0; product < kProductsPerStage; ++product) {
      const int next = product + kBuffers - 1;
      if (next < kProductsPerStage) {
        LoadFragments(stage, next, a[next % kBuffers], b[next % kBuffers]);
      }
      const int now = product % kBuffers;
#pragma unroll
      for (int i = 0; i < kFragments; ++i) {
#pragma unroll
        for (int j = 0; j < 2 * kFragments; ++j) {
          const uint32_t* pair = b[now][j / 2] + 2 * (j % 2);
          MultiplyWarp<T>(acc_[i][j], a[now][i], pair[0], pair[1]);
        }
      }
    }
  }

  // Rows of the warp's tile pass through its own slab, so that whole rows are stored.
  __device__ void Store() {
    constexpr int kPitch = Kernel::kSlabPitch;
    const int first_row = tile_.row + warp_row_;
    const Epilogue epilogue(params_, tile_.batch);
    const bool is_plain = StoresFours();
    float* slab = reinterpret_cast<float*>(smem_) + warp_ * Kernel::kSlabFloats;
#pragma unroll
    for (int i = 0; i < kFragments; ++i) {
#pragma unroll
      for (int j = 0; j < 2 * kFragments; ++j) {
        float* pair = slab + lane_ / 4 * kPitch + 8 * j + lane_ % 4 * 2;
        const auto& acc = acc_[i][j];
        *reinterpret_cast<float2*>(pair) = make_float2(acc[0], acc[1]);
        *reinterpret_cast<float2*>(pair + 8 * kPitch) = make_float2(acc[2], acc[3]);
      }
      __syncwarp();
      if (is_plain) {
        StorePlain(slab, first_row + Kernel::kSlabRows * i);
      } else {
        StoreSlab(slab, first_row + Kernel::kSlabRows * i, epilogue);
      }
      __syncwarp();
    }
  }

  // Whether d is the product itself, and four elements at a time of the warp's tile can be stored
  // at once: all are inside.
  __device__ bool StoresFours() const {
    return IsPlainProduct(params_, DTypeOf<T>()) &&
           tile_.row + warp_row_ + Kernel::kWarpTile <= params_.m &&
           tile_.column + warp_column_ + Kernel::kWarpTile <= params_.n &&
           IsAlignedForFour(params_.d, tile_.batch.Offset(params_.d));
  }

  // The short way of most products. Through all that an epilogue may do, storing d is a quarter of
  // the time of 4096 x 4096 x 4096.
  __device__ __forceinline__ void StorePlain(const float* slab, int first_row) const {
    constexpr int kVectors = Kernel::kWarpTile / 4;
    const int64_t first = tile_.batch.Offset(params_.d) + first_row * params_.d.row_stride +
                          tile_.column + warp_column_;
#pragma unroll
    for (int i = 0; i < Kernel::kSlabRows * kVectors / kWarpSize; ++i) {
      const int row = (i * kWarpSize + lane_) / kVectors;
      const int column = lane_ % kVectors * 4;
      StoreFour(params_.d.data, DTypeOf<T>(), first + row * params_.d.row_stride + column,
                *reinterpret_cast<const float4*>(slab + row * Kernel::kSlabPitch + column));
    }
  }

  __device__ void StoreSlab(const float* slab, int first_row, const Epilogue& epilogue) const {
    constexpr int kVectors = Kernel::kWarpTile / 4;
#pragma unroll 1
    for (int index = lane_; index < Kernel::kSlabRows * kVectors; index += kWarpSize) {
      const int row = index / kVectors;
      const int column = index % kVectors * 4;
      const float4 product =
          *reinterpret_cast<const float4*>(slab + row * Kernel::kSlabPitch + column);
      epilogue.Store4(first_row + row, tile_.column + warp_column_ + column, product);
    }
  }

  const GemmParams& params_;
  const Tile tile_;
  const ATile a_;
  const BTile b_;
  char* const smem_;
  const int lane_;
  const int warp_;
  const int warp_row_;
  const int warp_column_;
  float acc_[kFragments][2 * kFragments][4] = {};
};

template <class Kernel>
__global__ void __launch_bounds__(Kernel::kNumThreads, Kernel::kMinCtas)
    MmaSyncKernel(const __grid_constant__ GemmParams params) {
  MmaSyncWarp<Kernel>(params, DynamicSharedMemory<kTileRowBytes>()).Run();
}

template <typename T, int kWarpsM, int kWarpsN, int kStages>
const char* MmaSync<T, kWarpsM, kWarpsN, kStages>::Launch(const GemmParams& params,
                                                          cudaStream_t stream) {
  GemmParams aligned = params;
  // Kernels of the Ampere form wait for one another.
  bool has_copies = false;
  const char* error = RealignOperands(&aligned, stream, &has_copies);
  if (error != nullptr) {
    return error;
  }
  return LaunchForLayouts(params, [&](auto a_major, auto b_major) {
    using Kernel = MmaSyncForm<T, decltype(a_major)::value, decltype(b_major)::value, kWarpsM,
                               kWarpsN, kStages>;
    return LaunchKernel(MmaSyncKernel<Kernel>, aligned,
                        NumTiles<Kernel::kTileM, Kernel::kTileN>(aligned), Kernel::kNumThreads,
                        Kernel::kSmemBytes, stream);
  });
}

}  // namespace jaxgemm
