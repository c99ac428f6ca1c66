// From the product to the outputs: z = alpha · product + beta · c + bias, d = clamp(act(z)).
#pragma once

#include "abi/params.h"
#include "parts/activation.h"
#include "parts/batch.h"
#include "parts/elements.cuh"

namespace jaxgemm {

// What the epilogue of one matrix of the batch reads and writes.
class Epilogue {
 public:
  __device__ Epilogue(const GemmParams& params, const BatchPlace& batch)
      : params_(params),
        alpha_(ScalarOf(params.alpha, batch)),
        beta_(ScalarOf(params.beta, batch)),
        c_offset_(batch.Offset(params.c)),
        bias_offset_(batch.Offset(params.bias)),
        d_offset_(batch.Offset(params.d)),
        // beta = 0 means that c is not read: NaN in c never shows.
        reads_c_(params.c.data != nullptr && beta_ != 0.0f),
        moves_four_(IsAlignedForFour(params.d, d_offset_) &&
                    IsAlignedForFour(params.z, d_offset_) &&
                    IsAlignedForFour(params.c, c_offset_)) {}

  // Writes one element of d (and z); nothing outside the matrix.
  __device__ void Store(int row, int column, float product) const {
    if (row >= params_.m || column >= params_.n) {
      return;
    }
    float c = 0.0f;
    if (reads_c_) {
      const int64_t index = c_offset_ + row * params_.c.row_stride + column;
      c = LoadElement(params_.c.data, params_.c.dtype, index);
    }
    const float z = Preactivation(column, product, c);
    const int64_t index = d_offset_ + row * params_.d.row_stride + column;
    if (params_.z.data != nullptr) {
      StoreElement(params_.z.data, params_.z.dtype, index, z);
    }
    StoreElement(params_.d.data, params_.d.dtype, index, Finish(params_, z));
  }

  // Writes four elements of a row, from a column that is a multiple of 4: at once where they are
  // aligned and inside.
  __device__ void Store4(int row, int column, float4 product) const {
    if (!moves_four_ || column + 4 > params_.n) {
      Store(row, column, product.x);
      Store(row, column + 1, product.y);
      Store(row, column + 2, product.z);
      Store(row, column + 3, product.w);
      return;
    }
    if (row >= params_.m) {
      return;
    }
    float4 c = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (reads_c_) {
      const int64_t index = c_offset_ + row * params_.c.row_stride + column;
      c = LoadFour(params_.c.data, params_.c.dtype, index);
    }
    const float4 z = make_float4(
        Preactivation(column, product.x, c.x), Preactivation(column + 1, product.y, c.y),
        Preactivation(column + 2, product.z, c.z), Preactivation(column + 3, product.w, c.w));
    const int64_t index = d_offset_ + row * params_.d.row_stride + column;
    if (params_.z.data != nullptr) {
      StoreFour(params_.z.data, params_.z.dtype, index, z);
    }
    const float4 d = make_float4(Finish(params_, z.x), Finish(params_, z.y), Finish(params_, z.z),
                                 Finish(params_, z.w));
    StoreFour(params_.d.data, params_.d.dtype, index, d);
  }

 private:
  __device__ float Preactivation(int column, float product, float c) const {
    float z = alpha_ * product;
    if (reads_c_) {
      z += beta_ * c;
    }
    if (params_.bias.data != nullptr) {
      z += LoadElement(params_.bias.data, params_.bias.dtype, bias_offset_ + column);
    }
    return z;
  }

  const GemmParams& params_;
  float alpha_;
  float beta_;
  int64_t c_offset_;
  int64_t bias_offset_;
  int64_t d_offset_;
  bool reads_c_;
  bool moves_four_;
};

}  // namespace jaxgemm
