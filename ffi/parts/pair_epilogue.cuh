// The epilogue of accumulators of which a lane has pairs of neighbouring columns: from registers
// straight to d and z.
//
// They are finished in slices of 16 pairs (parts/lane_pairs.h). When a warp stores a pair, four
// lanes at a time lie side by side: in float32 that is a sector of 32 bytes.
#pragma once

#include <cstdint>

#include "abi/params.h"
#include "parts/batch.h"
#include "parts/lane_pairs.h"
#include "parts/plain_product.cuh"
#include "parts/slice.cuh"

namespace jaxgemm {

// Template arguments: those of LanePairs.
template <bool kTransposed, int kSecondRow>
class PairEpilogue {
 public:
  __device__ PairEpilogue(const GemmParams& params, const BatchPlace& batch)
      : params_(params),
        alpha_(ScalarOf(params.alpha, batch)),
        beta_(ScalarOf(params.beta, batch)),
        c_offset_(batch.Offset(params.c)),
        bias_offset_(batch.Offset(params.bias)),
        d_offset_(batch.Offset(params.d)) {}

  // Finishes and stores all accumulators of a lane, of which the first belongs at (row, column).
  template <int kCount>
  __device__ __forceinline__ void Store(const float (&acc)[kCount], int row, int column) const {
    constexpr int kNumSlices = kCount / kSliceValues;
    const bool is_plain = IsPlainProduct(params_, DType::kF32);
    if (is_plain && InPairs<float>(params_.d, d_offset_) && IsInside<kCount / 2>(row, column)) {
      StorePlain(acc, row, column);
      return;
    }
    // A loop with one body, not a copy of it for each slice: the body is long.
#pragma unroll 1
    for (int slice = 0; slice < kNumSlices; ++slice) {
      float v[kSliceValues];
#pragma unroll
      for (int s = 0; s < kNumSlices; ++s) {
        if (s == slice) {
#pragma unroll
          for (int i = 0; i < kSliceValues; ++i) {
            v[i] = acc[s * kSliceValues + Pairs::Accumulator(i / 2, i % 2)];
          }
        }
      }
      Preactivate(v, row, column);
      if (params_.z.data != nullptr) {
        StoreSlice(v, params_.z, row, column);
      }
      FinishAll(params_, v);
      StoreSlice(v, params_.d, row, column);
      row += Pairs::Rows(kSlicePairs);
      column += Pairs::Columns(kSlicePairs);
    }
  }

 private:
  using Pairs = LanePairs<kTransposed, kSecondRow>;
  static constexpr int kSlicePairs = kSliceValues / 2;

  // Whether pairs at even columns can be moved at once.
  template <typename T>
  static __device__ __forceinline__ bool InPairs(const Tensor& tensor, int64_t offset) {
    const T* first = static_cast<const T*>(tensor.data) + offset;
    return reinterpret_cast<uint64_t>(first) % (2 * sizeof(T)) == 0 && tensor.row_stride % 2 == 0;
  }

  // How many columns d has from an element on; none where there is no such row.
  __device__ __forceinline__ int NumColumns(int row, int column) const {
    return row < params_.m ? params_.n - column : 0;
  }

  template <int kNumPairs>
  __device__ __forceinline__ bool IsInside(int row, int column) const {
    return row + Pairs::Rows(kNumPairs - 1) < params_.m &&
           column + Pairs::Columns(kNumPairs - 1) + 1 < params_.n;
  }

  // A short way, because whoever runs first waits for every instruction.
  template <int kCount>
  __device__ __forceinline__ void StorePlain(const float (&acc)[kCount], int row,
                                             int column) const {
    const int64_t stride = params_.d.row_stride;
    float* to = static_cast<float*>(params_.d.data) + d_offset_ + row * stride + column;
#pragma unroll
    for (int pair = 0; pair < kCount / 2; ++pair) {
      StorePair(to + Pairs::Rows(pair) * stride + Pairs::Columns(pair),
                acc[Pairs::Accumulator(pair, 0)], acc[Pairs::Accumulator(pair, 1)]);
    }
  }

  __device__ __forceinline__ void Preactivate(float (&v)[kSliceValues], int row, int column) const {
    if (params_.alpha.data != nullptr) {
#pragma unroll
      for (float& x : v) {
        x *= alpha_;
      }
    }
    // beta = 0 means that c is not read: NaN in c never shows.
    if (params_.c.data != nullptr && beta_ != 0.0f) {
      switch (params_.c.dtype) {
        case DType::kBF16:
          AddC<__nv_bfloat16>(v, row, column);
          break;
        case DType::kF16:
          AddC<__half>(v, row, column);
          break;
        default:
          AddC<float>(v, row, column);
      }
    }
    if (params_.bias.data != nullptr) {
      AddBias(v, column);
    }
  }

  template <typename C>
  __device__ __forceinline__ void AddC(float (&v)[kSliceValues], int row, int column) const {
    const int64_t stride = params_.c.row_stride;
    const C* from = static_cast<const C*>(params_.c.data) + c_offset_ + row * stride + column;
    const bool in_pairs = InPairs<C>(params_.c, c_offset_);
#pragma unroll
    for (int pair = 0; pair < kSlicePairs; ++pair) {
      const int num_columns = NumColumns(row + Pairs::Rows(pair), column + Pairs::Columns(pair));
      const C* at = from + Pairs::Rows(pair) * stride + Pairs::Columns(pair);
      float2 c = make_float2(0.0f, 0.0f);
      if (in_pairs && num_columns > 1) {
        c = LoadPair(at);
      } else {
        c.x = num_columns > 0 ? ToFloat(at[0]) : 0.0f;
        c.y = num_columns > 1 ? ToFloat(at[1]) : 0.0f;
      }
      v[2 * pair] += beta_ * c.x;
      v[2 * pair + 1] += beta_ * c.y;
    }
  }

  __device__ __forceinline__ void AddBias(float (&v)[kSliceValues], int column) const {
    float bias[2] = {};
#pragma unroll
    for (int pair = 0; pair < kSlicePairs; ++pair) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int at = column + Pairs::Columns(pair) + i;
        // Both pairs of a turn are in the same columns, and of the transpose all are.
        if (pair == 0 || (pair % 2 == 0 && !kTransposed)) {
          bias[i] = at < params_.n
                        ? LoadElement(params_.bias.data, params_.bias.dtype, bias_offset_ + at)
                        : 0.0f;
        }
        v[2 * pair + i] += bias[i];
      }
    }
  }

  __device__ __forceinline__ void StoreSlice(const float (&v)[kSliceValues], const Tensor& tensor,
                                             int row, int column) const {
    switch (tensor.dtype) {
      case DType::kBF16:
        StorePairs<__nv_bfloat16>(v, tensor, row, column);
        break;
      case DType::kF16:
        StorePairs<__half>(v, tensor, row, column);
        break;
      default:
        StorePairs<float>(v, tensor, row, column);
    }
  }

  template <typename T>
  __device__ __forceinline__ void StorePairs(const float (&v)[kSliceValues], const Tensor& tensor,
                                             int row, int column) const {
    const int64_t stride = tensor.row_stride;
    T* to = static_cast<T*>(tensor.data) + d_offset_ + row * stride + column;
    const bool in_pairs = InPairs<T>(tensor, d_offset_);
#pragma unroll
    for (int pair = 0; pair < kSlicePairs; ++pair) {
      const int num_columns = NumColumns(row + Pairs::Rows(pair), column + Pairs::Columns(pair));
      T* at = to + Pairs::Rows(pair) * stride + Pairs::Columns(pair);
      if (in_pairs && num_columns > 1) {
        StorePair(at, v[2 * pair], v[2 * pair + 1]);
        continue;
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (i < num_columns) {
          StoreElement(at, DTypeOf<T>(), i, v[2 * pair + i]);
        }
      }
    }
  }

  template <typename T>
  static __device__ __forceinline__ void StorePair(T* to, float first, float second) {
    if constexpr (sizeof(T) == sizeof(float)) {
      *reinterpret_cast<float2*>(to) = make_float2(first, second);
    } else {
      *reinterpret_cast<uint32_t*>(to) = Pack<DTypeOf<T>()>(first, second);
    }
  }

  const GemmParams& params_;
  float alpha_;
  float beta_;
  int64_t c_offset_;
  int64_t bias_offset_;
  int64_t d_offset_;
};

}  // namespace jaxgemm
