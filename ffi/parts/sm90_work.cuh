// What every role of kernels/sm90_dense.cuh knows of the problem.
#pragma once

#include "parts/sm90_plan.cuh"

namespace jaxgemm {

template <class Kernel>
struct Sm90Work {
  const GemmParams& params;
  const Sm90Plan& plan;
  typename Kernel::Smem& smem;
  uint32_t rank;
  int num_steps;

  // The tile of this CTA in its turn `turn`.
  __device__ __forceinline__ bool Has(int turn) const {
    return Position(turn) < plan.walk.num_tiles;
  }
  __device__ __forceinline__ TilePlace At(int turn) const {
    TilePlace place = plan.walk.At(Position(turn));
    place.m_index = place.m_index * Kernel::kClusterM + (Kernel::kClusterM > 1 ? rank : 0);
    place.n_index = place.n_index * Kernel::kClusterN + (Kernel::kClusterN > 1 ? rank : 0);
    return place;
  }

  __device__ __forceinline__ BatchPlace BatchPlaceOf(const TilePlace& place) const {
    return BatchPlace::Of(params, place.matrix);
  }

 private:
  __device__ __forceinline__ int Position(int turn) const {
    return (turn * gridDim.x + blockIdx.x) / Kernel::kClusterSize;
  }
};

}  // namespace jaxgemm
