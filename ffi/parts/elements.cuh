// Elements of the dtypes that kernels read and write, to and from float32.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "abi/params.h"

namespace jaxgemm {

__device__ __forceinline__ float ToFloat(float x) { return x; }
__device__ __forceinline__ float ToFloat(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ __forceinline__ float ToFloat(__half x) { return __half2float(x); }

// For the epilogue, where the dtype is known at run time only: the branch is the same for all.
__device__ __forceinline__ float LoadElement(const void* data, DType dtype, int64_t index) {
  switch (dtype) {
    case DType::kBF16:
      return ToFloat(static_cast<const __nv_bfloat16*>(data)[index]);
    case DType::kF16:
      return ToFloat(static_cast<const __half*>(data)[index]);
    default:
      return static_cast<const float*>(data)[index];
  }
}

// Rounds to nearest even, the one rounding of an output.
__device__ __forceinline__ void StoreElement(void* data, DType dtype, int64_t index, float x) {
  switch (dtype) {
    case DType::kBF16:
      static_cast<__nv_bfloat16*>(data)[index] = __float2bfloat16_rn(x);
      break;
    case DType::kF16:
      static_cast<__half*>(data)[index] = __float2half_rn(x);
      break;
    default:
      static_cast<float*>(data)[index] = x;
  }
}

}  // namespace jaxgemm
