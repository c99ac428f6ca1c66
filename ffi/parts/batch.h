// Where a matrix of a batch lies.
#pragma once

#include "abi/params.h"
#include "parts/host_device.h"

namespace jaxgemm {

// Elements from the start of an operand to the part of it that makes matrix `matrix` of d.
// The batch axes of d are the digits of `matrix`; a shared operand has stride 0 along an axis.
JAXGEMM_HOST_DEVICE int64_t MatrixOffset(const GemmParams& params, const Tensor& tensor,
                                         int64_t matrix) {
  int64_t offset = 0;
  for (int axis = params.num_batch_axes - 1; axis >= 0; --axis) {
    const int64_t size = params.batch_sizes[axis];
    offset += matrix % size * tensor.batch_strides[axis];
    matrix /= size;
  }
  return offset;
}

}  // namespace jaxgemm
