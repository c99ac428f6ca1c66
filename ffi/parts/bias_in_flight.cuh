// The bias of a tile, for all warps of a warpgroup.
#pragma once

#include "abi/params.h"
#include "parts/batch.h"
#include "parts/elements.cuh"
#include "ptx/cta.cuh"

namespace jaxgemm {

// The bias of a tile, on its way from global to shared memory: thread i of a consumer holds columns
// i, i + 128, … while the tile is multiplied.
template <int kTileN>
struct BiasInFlight {
  static constexpr int kCount = (kTileN + kWarpgroupSize - 1) / kWarpgroupSize;
  float values[kCount];

  __device__ __forceinline__ void Load(const GemmParams& params, const BatchPlace& batch,
                                       int n_offset, int thread) {
    const int64_t offset = batch.Offset(params.bias);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int column = n_offset + thread + i * kWarpgroupSize;
      values[i] = column < params.n
                      ? LoadElement(params.bias.data, params.bias.dtype, offset + column)
                      : 0.0f;
    }
  }

  // For all warps of the consumer to read.
  __device__ __forceinline__ void Publish(float* smem, int barrier, int thread) const {
    // All have read that of the tile before.
    SyncNamedBarrier(barrier, kWarpgroupSize);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (thread + i * kWarpgroupSize < kTileN) {
        smem[thread + i * kWarpgroupSize] = values[i];
      }
    }
    SyncNamedBarrier(barrier, kWarpgroupSize);
  }
};

}  // namespace jaxgemm
