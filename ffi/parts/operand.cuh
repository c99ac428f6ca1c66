// An operand of one matrix of the batch, addressed by its place in the product.
#pragma once

#include "abi/params.h"
#include "parts/batch.h"
#include "parts/elements.cuh"

namespace jaxgemm {

// `outer` is the row of a, or the column of b: the dimension that is not contracted.
template <typename T>
class Operand {
 public:
  static __device__ Operand OfA(const GemmParams& params, const BatchPlace& batch) {
    return Operand(params, params.a, params.a_major, params.m, batch);
  }

  static __device__ Operand OfB(const GemmParams& params, const BatchPlace& batch) {
    return Operand(params, params.b, params.b_major, params.n, batch);
  }

  __device__ const T* At(int outer, int k) const {
    return data_ + static_cast<int64_t>(outer) * outer_stride_ +
           static_cast<int64_t>(k) * k_stride_;
  }

  // The element as float32, and 0 outside the matrix.
  __device__ float Get(int outer, int k) const {
    return outer < outer_size_ && k < k_size_ ? ToFloat(*At(outer, k)) : 0.0f;
  }

  __device__ bool is_k_major() const { return k_stride_ == 1; }
  __device__ int k_stride() const { return k_stride_; }
  __device__ int outer_stride() const { return outer_stride_; }
  __device__ int outer_size() const { return outer_size_; }
  __device__ int k_size() const { return k_size_; }

 private:
  __device__ Operand(const GemmParams& params, const Tensor& tensor, Major major, int outer_size,
                     const BatchPlace& batch)
      : data_(static_cast<const T*>(tensor.data) + batch.Offset(tensor)),
        outer_stride_(major == Major::kK ? static_cast<int>(tensor.row_stride) : 1),
        k_stride_(major == Major::kK ? 1 : static_cast<int>(tensor.row_stride)),
        outer_size_(outer_size),
        k_size_(params.k) {}

  const T* data_;
  // Rows begin less than 2^31 elements apart (limits.py): products need one instruction.
  int outer_stride_;
  int k_stride_;
  int outer_size_;
  int k_size_;
};

}  // namespace jaxgemm
