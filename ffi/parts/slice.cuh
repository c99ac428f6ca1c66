// A slice of accumulators in the registers of a warp: 16 rows of 64 columns.
//
// Of it a lane holds 2 x 16 values, of rows r and r + 8 (see ptx/wgmma.cuh): v[16 h + x] is in row
// r + 8 h and column 8 (x / 2) + 2 q + x % 2.
#pragma once

#include "parts/activation.h"
#include "parts/elements.cuh"

namespace jaxgemm {

inline constexpr int kSliceColumns = 64;
inline constexpr int kSliceValues = 32;

// Two values as two elements of 16 bits, the first in the lower half.
template <DType kDType>
__device__ __forceinline__ uint32_t Pack(float low, float high) {
  if constexpr (kDType == DType::kBF16) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return reinterpret_cast<const uint32_t&>(pair);
  } else {
    const __half2 pair = __floats2half2_rn(low, high);
    return reinterpret_cast<const uint32_t&>(pair);
  }
}

template <Activation kActivation>
__device__ __forceinline__ void ActivateAll(float (&v)[kSliceValues]) {
#pragma unroll
  for (float& x : v) {
    x = Activate(kActivation, x);
  }
}

// As ActivateAll for functions of many instructions, eight values at a time: all at once they would
// need more registers than there are. The values are rotated, because registers have no index.
template <Activation kActivation>
__device__ __forceinline__ void ActivateInTurns(float (&v)[kSliceValues]) {
  constexpr int kCount = 8;
#pragma unroll 1
  for (int turn = 0; turn < kSliceValues / kCount; ++turn) {
    float done[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      done[i] = Activate(kActivation, v[i]);
    }
#pragma unroll
    for (int i = 0; i < kSliceValues; ++i) {
      v[i] = i + kCount < kSliceValues ? v[i + kCount] : done[i + kCount - kSliceValues];
    }
  }
}

// One switch for all values, so that the code of each activation is there once.
__device__ __forceinline__ void FinishAll(const GemmParams& params, float (&v)[kSliceValues]) {
  switch (params.activation) {
    case Activation::kNone:
      break;
    case Activation::kRelu:
      ActivateAll<Activation::kRelu>(v);
      break;
    case Activation::kGelu:
      ActivateAll<Activation::kGelu>(v);
      break;
    case Activation::kGeluExact:
      ActivateAll<Activation::kGeluExact>(v);
      break;
    case Activation::kSilu:
      ActivateAll<Activation::kSilu>(v);
      break;
    case Activation::kSigmoid:
      ActivateAll<Activation::kSigmoid>(v);
      break;
    case Activation::kTanh:
      ActivateInTurns<Activation::kTanh>(v);
      break;
    case Activation::kRelu2:
      ActivateAll<Activation::kRelu2>(v);
      break;
  }
  if (HasClamp(params)) {
#pragma unroll
    for (float& x : v) {
      x = Clamp(params, x);
    }
  }
}

// The column within a slice of v[16 h + x].
__device__ __forceinline__ int ColumnInSlice(int lane, int x) {
  return 8 * (x / 2) + lane % 4 * 2 + x % 2;
}

// Two elements from a multiple of their size.
__device__ __forceinline__ float2 LoadPair(const float* from) {
  return *reinterpret_cast<const float2*>(from);
}
__device__ __forceinline__ float2 LoadPair(const __nv_bfloat16* from) {
  return __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(from));
}
__device__ __forceinline__ float2 LoadPair(const __half* from) {
  return __half22float2(*reinterpret_cast<const __half2*>(from));
}

}  // namespace jaxgemm
