// What one call asks of the library, as plain numbers.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "abi/params.h"
#include "cublaslt/api.h"

namespace jaxgemm::cublaslt {

// A matrix by columns. Numbers of elements, but for `alignment`.
struct Matrix {
  int64_t type;
  int64_t rows;
  int64_t columns;
  int64_t leading;
  int64_t batch_stride;
  // Bytes of which every matrix's address is a multiple; at most kMaxAlignment.
  int64_t alignment;
};
inline constexpr int64_t kMaxAlignment = 256;

// Everything that the choice of an algorithm depends on. All of one type, so that two of them can
// be compared as bytes.
struct Product {
  int64_t device;
  int64_t compute_type;
  int64_t scale_type;
  int64_t pointer_mode;
  int64_t epilogue;
  int64_t first_operation;
  int64_t second_operation;
  int64_t batch_count;
  int64_t workspace_bytes;
  // Our b and a, c and d.
  Matrix first;
  Matrix second;
  Matrix c;
  Matrix d;
  // A column of bias for all columns of d, or of their sum, and what the activation is applied to;
  // type -1: absent.
  Matrix bias;
  Matrix z;
};

// One of the batch axes is the library's, which strides over it in one launch; the others, a launch
// for each of their entries. -1: there is none.
struct Batch {
  int strided_axis;
  int64_t num_launches;
};

Batch DivideBatch(const GemmParams& params);

// The bytes at which a tensor's matrix of a launch begins; for its data, null where it is absent.
int64_t LaunchOffset(const GemmParams& params, const Batch& batch, const Tensor& tensor,
                     int64_t launch);

int64_t ItemBytes(DType dtype);

// What the library has one place for: the bias, or the sum of rows of d.
inline const Tensor& BiasOrSum(const GemmParams& params) {
  return params.d_sum.data == nullptr ? params.bias : params.d_sum;
}

// Returns what is wrong with the call; nothing if `product` is filled.
std::string Describe(const GemmParams& params, const Batch& batch, int device, Product* product);

}  // namespace jaxgemm::cublaslt
