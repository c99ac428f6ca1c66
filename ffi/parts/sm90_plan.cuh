// What the host works out for a launch of kernels/sm90_dense.cuh.
#pragma once

#include "parts/batch.h"
#include "parts/fragment.cuh"
#include "parts/tensor_map.cuh"
#include "parts/tile_walk.cuh"
#include "ptx/tma.cuh"

namespace jaxgemm {

// Who loads a and b.
enum class Loads {
  // The copy engine. Operands that it cannot address are copied first (parts/realign.cuh).
  kByTma,
  // Threads of the producer, whatever addresses they have (parts/sm90_thread_loads.cuh).
  kByThreads,
};

// Maps of operands that are read and of outputs that TMA can address, which matrices they take, and
// the order of tiles.
struct Sm90Plan {
  CUtensorMap a;
  CUtensorMap b;
  CUtensorMap d;
  CUtensorMap z;
  OwnMatrices a_matrices;
  OwnMatrices b_matrices;
  // As z has them too.
  OwnMatrices d_matrices;
  TileWalk walk;
  // Of a and b with all of their matrices, where threads load them.
  int64_t a_bytes;
  int64_t b_bytes;
};

// Whether d is the product itself, in elements of the type of the operands.
JAXGEMM_HOST_DEVICE bool IsPlainProduct(const GemmParams& params, DType dtype) {
  const bool adds = params.c.data != nullptr || params.bias.data != nullptr;
  return params.d.dtype == dtype && params.z.data == nullptr && params.alpha.data == nullptr &&
         !adds && params.activation == Activation::kNone && !HasClamp(params);
}

// Fills the plan but for the order of tiles. Returns null, or what went wrong.
template <class Kernel>
const char* MakeMaps(const GemmParams& params, Sm90Plan* plan) {
  const StoredSize d_size = {params.m, params.n};
  const char* error = nullptr;
  plan->d_matrices = OwnMatrices::Of(params, params.d, d_size.rows);
  // With k = 0 there is nothing to load.
  if (Kernel::kLoads == Loads::kByTma && params.k > 0) {
    plan->a_matrices = OwnMatrices::Of(params, params.a, StoredSizeOfA(params).rows);
    plan->b_matrices = OwnMatrices::Of(params, params.b, StoredSizeOfB(params).rows);
    error =
        MakeTensorMap(params, params.a, StoredSizeOfA(params), Kernel::ATile::kBoxRows, &plan->a);
    if (error == nullptr) {
      error =
          MakeTensorMap(params, params.b, StoredSizeOfB(params), Kernel::BTile::kBoxRows, &plan->b);
    }
  }
  if (error == nullptr && IsAlignedForTma(params.d)) {
    error = MakeTensorMap(params, params.d, d_size, kWarpRows, &plan->d);
  }
  if (error == nullptr && params.z.data != nullptr && IsAlignedForTma(params.z)) {
    error = MakeTensorMap(params, params.z, d_size, kWarpRows, &plan->z);
  }
  return error;
}

// By one thread, early: what fetches a map first waits for memory.
template <class Kernel>
__device__ __forceinline__ void PrefetchMaps(const GemmParams& params, const Sm90Plan& plan) {
  if (Kernel::kLoads == Loads::kByTma && params.k > 0) {
    PrefetchTensorMap(&plan.a);
    PrefetchTensorMap(&plan.b);
  }
  if (IsAlignedForTma(params.d)) {
    PrefetchTensorMap(&plan.d);
  }
}

}  // namespace jaxgemm
