// Elements of the dtypes that kernels read and write, to and from float32.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "abi/params.h"

namespace jaxgemm {

__device__ __forceinline__ float ToFloat(float x) { return x; }
__device__ __forceinline__ float ToFloat(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ __forceinline__ float ToFloat(__half x) { return __half2float(x); }

template <typename T>
constexpr DType DTypeOf();
template <>
constexpr DType DTypeOf<float>() {
  return DType::kF32;
}
template <>
constexpr DType DTypeOf<__nv_bfloat16>() {
  return DType::kBF16;
}
template <>
constexpr DType DTypeOf<__half>() {
  return DType::kF16;
}

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

// Whether four elements from an index that is a multiple of 4 can be moved at once.
__device__ __forceinline__ bool IsAlignedForFour(const Tensor& tensor, int64_t offset) {
  const int bytes = tensor.dtype == DType::kF32 ? 16 : 8;
  return reinterpret_cast<uint64_t>(tensor.data) % bytes == 0 && offset % 4 == 0 &&
         tensor.row_stride % 4 == 0;
}

// As LoadElement for four elements that IsAlignedForFour.
__device__ __forceinline__ float4 LoadFour(const void* data, DType dtype, int64_t index) {
  switch (dtype) {
    case DType::kBF16: {
      const auto* pair =
          reinterpret_cast<const __nv_bfloat162*>(static_cast<const __nv_bfloat16*>(data) + index);
      const float2 low = __bfloat1622float2(pair[0]);
      const float2 high = __bfloat1622float2(pair[1]);
      return make_float4(low.x, low.y, high.x, high.y);
    }
    case DType::kF16: {
      const auto* pair = reinterpret_cast<const __half2*>(static_cast<const __half*>(data) + index);
      const float2 low = __half22float2(pair[0]);
      const float2 high = __half22float2(pair[1]);
      return make_float4(low.x, low.y, high.x, high.y);
    }
    default:
      return *reinterpret_cast<const float4*>(static_cast<const float*>(data) + index);
  }
}

// As StoreElement for four elements that IsAlignedForFour.
__device__ __forceinline__ void StoreFour(void* data, DType dtype, int64_t index, float4 x) {
  switch (dtype) {
    case DType::kBF16: {
      const __nv_bfloat162 pairs[2] = {__floats2bfloat162_rn(x.x, x.y),
                                       __floats2bfloat162_rn(x.z, x.w)};
      *reinterpret_cast<uint2*>(static_cast<__nv_bfloat16*>(data) + index) =
          *reinterpret_cast<const uint2*>(pairs);
      break;
    }
    case DType::kF16: {
      const __half2 pairs[2] = {__floats2half2_rn(x.x, x.y), __floats2half2_rn(x.z, x.w)};
      *reinterpret_cast<uint2*>(static_cast<__half*>(data) + index) =
          *reinterpret_cast<const uint2*>(pairs);
      break;
    }
    default:
      *reinterpret_cast<float4*>(static_cast<float*>(data) + index) = x;
  }
}

}  // namespace jaxgemm
