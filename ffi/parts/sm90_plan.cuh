// What the host works out for a launch of kernels/sm90_dense.cuh.
#pragma once

#include "parts/batch.h"
#include "parts/fragment.cuh"
#include "parts/plain_product.cuh"
#include "parts/sm90_loads.cuh"
#include "parts/tensor_map.cuh"
#include "ptx/tma.cuh"

namespace jaxgemm {

// How operands are loaded and outputs stored.
struct Sm90Plan {
  Sm90Loads loads;
  OutputMaps outputs;
  // Which of their matrices outputs take; z has them as d has.
  OwnMatrices d_matrices;
  // Whether there is a product, which TMA stores as it is.
  bool is_plain;
};

// Fills what the plan says of outputs, for operands of type T. Returns null, or what went wrong.
template <typename T>
const char* PlanOutputs(const GemmParams& params, Sm90Plan* plan) {
  const StoredSize size = {params.m, params.n};
  OutputMaps& maps = plan->outputs;
  maps.has_d = IsAlignedForTma(params.d);
  maps.has_z = params.z.data != nullptr && IsAlignedForTma(params.z);
  maps.matrix_stride = MatrixStride(params, params.d, size.rows);
  plan->d_matrices = OwnMatrices::Of(params, params.d, size.rows);
  plan->is_plain = params.k > 0 && maps.has_d && IsPlainProduct(params, DTypeOf<T>());
  const char* error = nullptr;
  if (maps.has_d) {
    error = MakeTensorMap(params, params.d, TmaDType(params.d.dtype), size, kWarpRows, &maps.d);
  }
  if (error == nullptr && maps.has_z) {
    error = MakeTensorMap(params, params.z, TmaDType(params.z.dtype), size, kWarpRows, &maps.z);
  }
  return error;
}

// By one thread, early: what fetches a map first waits for memory.
__device__ __forceinline__ void PrefetchMaps(const Sm90Plan& plan) {
  PrefetchMaps(plan.loads);
  if (plan.outputs.has_d) {
    PrefetchTensorMap(&plan.outputs.d);
  }
}

}  // namespace jaxgemm
