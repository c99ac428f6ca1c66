// What the host works out for a launch of kernels/sm90_dense.cuh.
#pragma once

#include "parts/batch.h"
#include "parts/fragment.cuh"
#include "parts/sm90_loads.cuh"
#include "parts/tensor_map.cuh"
#include "ptx/tma.cuh"

namespace jaxgemm {

// Who loads a and b.
enum class Loads {
  // The copy engine. Operands that it cannot address are copied first (parts/realign.cuh).
  kByTma,
  // Threads of the producer, whatever addresses they have (parts/sm90_thread_loads.cuh).
  kByThreads,
};

// How operands are loaded; maps of outputs that TMA can address, and which matrix they are.
struct Sm90Plan {
  Sm90Loads loads;
  CUtensorMap d;
  CUtensorMap z;
  // As z has them too.
  OwnMatrices d_matrices;
  // Of a and b with all of their matrices, where threads load them.
  int64_t a_bytes;
  int64_t b_bytes;
};

// Fills what the plan says of outputs. Returns null, or what went wrong.
inline const char* MakeOutputMaps(const GemmParams& params, Sm90Plan* plan) {
  const StoredSize size = {params.m, params.n};
  plan->d_matrices = OwnMatrices::Of(params, params.d, size.rows);
  const char* error = nullptr;
  if (IsAlignedForTma(params.d)) {
    error = MakeTensorMap(params, params.d, TmaDType(params.d.dtype), size, kWarpRows, &plan->d);
  }
  if (error == nullptr && params.z.data != nullptr && IsAlignedForTma(params.z)) {
    error = MakeTensorMap(params, params.z, TmaDType(params.z.dtype), size, kWarpRows, &plan->z);
  }
  return error;
}

// By one thread, early: what fetches a map first waits for memory.
template <class Kernel>
__device__ __forceinline__ void PrefetchMaps(const GemmParams& params, const Sm90Plan& plan) {
  if constexpr (Kernel::kLoads == Loads::kByTma) {
    PrefetchMaps(params, plan.loads);
  }
  if (IsAlignedForTma(params.d)) {
    PrefetchTensorMap(&plan.d);
  }
}

}  // namespace jaxgemm
