// Where a matrix of a batch lies.
#pragma once

#include "abi/params.h"
#include "parts/divisor.h"
#include "parts/host_device.h"

namespace jaxgemm {

// Along each batch axis, which entry makes a matrix of d: found once, for all operands. The batch
// axes of d are the digits of the matrix; a shared operand has stride 0 along an axis.
struct BatchPlace {
  int32_t entries[kMaxBatchAxes];

  // `matrix` is less than 2^31.
  static JAXGEMM_HOST_DEVICE BatchPlace Of(const GemmParams& params, int32_t matrix) {
    BatchPlace place = {};
    uint32_t rest = static_cast<uint32_t>(matrix);
    for (int axis = kMaxBatchAxes - 1; axis > 0; --axis) {
      if (axis < params.num_batch_axes) {
        const uint32_t size = static_cast<uint32_t>(params.batch_sizes[axis]);
        place.entries[axis] = static_cast<int32_t>(rest % size);
        rest /= size;
      }
    }
    place.entries[0] = static_cast<int32_t>(rest);
    return place;
  }

  // Elements from the start of an operand to the part of it that makes the matrix.
  JAXGEMM_HOST_DEVICE int64_t Offset(const Tensor& tensor) const {
    int64_t offset = 0;
    for (int axis = 0; axis < kMaxBatchAxes; ++axis) {
      offset += entries[axis] * tensor.batch_strides[axis];
    }
    return offset;
  }
};

// The batch axes of d, for threads that look for one matrix after another.
struct BatchAxes {
  int32_t num_axes;
  Divisor sizes[kMaxBatchAxes];

  static BatchAxes Of(const GemmParams& params) {
    BatchAxes axes = {};
    axes.num_axes = params.num_batch_axes;
    for (int axis = 0; axis < params.num_batch_axes; ++axis) {
      axes.sizes[axis] = Divisor::Of(params.batch_sizes[axis]);
    }
    return axes;
  }

  // As BatchPlace::Of.
  JAXGEMM_HOST_DEVICE BatchPlace At(int32_t matrix) const {
    BatchPlace place = {};
    uint32_t rest = static_cast<uint32_t>(matrix);
    JAXGEMM_UNROLL
    for (int axis = kMaxBatchAxes - 1; axis > 0; --axis) {
      if (axis < num_axes) {
        const uint32_t quotient = sizes[axis].Quotient(rest);
        place.entries[axis] = static_cast<int32_t>(rest - quotient * sizes[axis].size);
        rest = quotient;
      }
    }
    place.entries[0] = static_cast<int32_t>(rest);
    return place;
  }
};

// alpha or beta of a matrix; an absent scalar is 1.
JAXGEMM_HOST_DEVICE float ScalarOf(const Tensor& tensor, const BatchPlace& batch) {
  return tensor.data == nullptr ? 1.0f
                                : static_cast<const float*>(tensor.data)[batch.Offset(tensor)];
}

// Elements between matrices of an operand that are counted as neighbours: the smallest stride of
// its batch axes, of which the others are multiples. That of one matrix is of no account.
inline int64_t MatrixStride(const GemmParams& params, const Tensor& tensor, int64_t rows) {
  int64_t smallest = 0;
  for (int axis = 0; axis < params.num_batch_axes; ++axis) {
    const int64_t stride = tensor.batch_strides[axis];
    smallest = stride > 0 && (smallest == 0 || stride < smallest) ? stride : smallest;
  }
  return smallest > 0 ? smallest : rows * tensor.row_stride;
}

// Which of its own matrices an operand contributes, counted by their strides. It has those of the
// axes that it has, in memory order; with some axes between the dimensions of the matrices and some
// before them, not every number is one.
struct OwnMatrices {
  // How many of them an entry of an axis is.
  int32_t strides[kMaxBatchAxes];

  static OwnMatrices Of(const GemmParams& params, const Tensor& tensor, int64_t rows) {
    const int64_t stride = MatrixStride(params, tensor, rows);
    OwnMatrices own = {};
    for (int axis = 0; axis < params.num_batch_axes; ++axis) {
      own.strides[axis] = static_cast<int32_t>(tensor.batch_strides[axis] / stride);
    }
    return own;
  }

  JAXGEMM_HOST_DEVICE int32_t At(const BatchPlace& place) const {
    int32_t matrix = 0;
    for (int axis = 0; axis < kMaxBatchAxes; ++axis) {
      matrix += place.entries[axis] * strides[axis];
    }
    return matrix;
  }
};

}  // namespace jaxgemm
