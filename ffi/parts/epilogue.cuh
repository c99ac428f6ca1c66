// From the product to the outputs: z = alpha · product + beta · c + bias, d = act(z).
#pragma once

#include "abi/params.h"
#include "parts/activation.h"
#include "parts/batch.h"
#include "parts/elements.cuh"

namespace jaxgemm {

// What the epilogue of one matrix of the batch reads and writes.
class Epilogue {
 public:
  __device__ Epilogue(const GemmParams& params, int64_t matrix)
      : params_(params),
        alpha_(Scalar(params, params.alpha, matrix)),
        beta_(Scalar(params, params.beta, matrix)),
        c_offset_(MatrixOffset(params, params.c, matrix)),
        bias_offset_(MatrixOffset(params, params.bias, matrix)),
        d_offset_(MatrixOffset(params, params.d, matrix)) {}

  // Writes one element of d (and z); nothing outside the matrix.
  __device__ void Store(int row, int column, float product) const {
    if (row >= params_.m || column >= params_.n) {
      return;
    }
    float z = alpha_ * product;
    // beta = 0 means that c is not read: NaN in c never shows.
    if (params_.c.data != nullptr && beta_ != 0.0f) {
      const int64_t index = c_offset_ + row * params_.c.row_stride + column;
      z += beta_ * LoadElement(params_.c.data, params_.c.dtype, index);
    }
    if (params_.bias.data != nullptr) {
      z += LoadElement(params_.bias.data, params_.bias.dtype, bias_offset_ + column);
    }
    const int64_t index = d_offset_ + row * params_.d.row_stride + column;
    if (params_.z.data != nullptr) {
      StoreElement(params_.z.data, params_.z.dtype, index, z);
    }
    StoreElement(params_.d.data, params_.d.dtype, index, Activate(params_.activation, z));
  }

 private:
  // An absent scalar is 1.
  static __device__ float Scalar(const GemmParams& params, const Tensor& tensor, int64_t matrix) {
    if (tensor.data == nullptr) {
      return 1.0f;
    }
    return static_cast<const float*>(tensor.data)[MatrixOffset(params, tensor, matrix)];
  }

  const GemmParams& params_;
  float alpha_;
  float beta_;
  int64_t c_offset_;
  int64_t bias_offset_;
  int64_t d_offset_;
};

}  // namespace jaxgemm
