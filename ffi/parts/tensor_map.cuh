// Tensor maps on the host: what TMA knows of an operand or output.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include "abi/params.h"
#include "parts/batch.h"
#include "parts/host_device.h"

namespace jaxgemm {

// TMA addresses global memory in units of this: bases, strides, and coordinates of columns.
inline constexpr int kTmaAlignment = 16;

// Of the dtypes that our own kernels read and write.
JAXGEMM_HOST_DEVICE int ItemBytes(DType dtype) { return dtype == DType::kF32 ? 4 : 2; }

// Whether TMA can address a matrix, or a batch of them.
inline bool IsAlignedForTma(const Tensor& tensor) {
  int64_t strides = tensor.row_stride;
  for (const int64_t stride : tensor.batch_strides) {
    strides |= stride;
  }
  return reinterpret_cast<uint64_t>(tensor.data) % kTmaAlignment == 0 &&
         strides * ItemBytes(tensor.dtype) % kTmaAlignment == 0;
}

// Rows and columns of one matrix as stored.
struct StoredSize {
  int64_t rows;
  int64_t columns;
};

inline StoredSize StoredSizeOfA(const GemmParams& params) {
  return params.a_major == Major::kK ? StoredSize{params.m, params.k}
                                     : StoredSize{params.k, params.m};
}

inline StoredSize StoredSizeOfB(const GemmParams& params) {
  return params.b_major == Major::kK ? StoredSize{params.n, params.k}
                                     : StoredSize{params.k, params.n};
}

using EncodeTiled = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*,
                                 const cuuint64_t*, const cuuint64_t*, const cuuint32_t*,
                                 const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle,
                                 CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

// The driver's function, by name: the library is not linked with the driver, which may be absent.
inline EncodeTiled FindEncodeTiled() {
  constexpr unsigned kSinceCuda = 12000;
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found;
  const cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function,
                                                             kSinceCuda, cudaEnableDefault, &found);
  const bool ok = error == cudaSuccess && found == cudaDriverEntryPointSuccess;
  return ok ? reinterpret_cast<EncodeTiled>(function) : nullptr;
}

inline CUtensorMapDataType TmaDType(DType dtype) {
  switch (dtype) {
    case DType::kBF16:
      return CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    case DType::kF16:
      return CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
    default:
      return CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
  }
}

// Fills a map whose dimensions are column, row, matrix as OwnMatrices counts them, whatever their
// strides: matrices may be nearer to one another than rows. Boxes have 128 bytes of each of
// `box_rows` rows, swizzled; `dtype` is what TMA takes the elements for. Returns null, or what went
// wrong.
inline const char* MakeTensorMap(const GemmParams& params, const Tensor& tensor,
                                 CUtensorMapDataType dtype, StoredSize size, int box_rows,
                                 CUtensorMap* map) {
  static const EncodeTiled encode = FindEncodeTiled();
  if (encode == nullptr) {
    return "the driver has no cuTensorMapEncodeTiled";
  }
  constexpr int kBoxBytes = 128;
  const int64_t bytes = ItemBytes(tensor.dtype);
  const int64_t matrix_stride = MatrixStride(params, tensor, size.rows);
  int64_t last = 0;
  for (int axis = 0; axis < params.num_batch_axes; ++axis) {
    last += (params.batch_sizes[axis] - 1) * tensor.batch_strides[axis];
  }
  const cuuint64_t sizes[3] = {static_cast<cuuint64_t>(size.columns),
                               static_cast<cuuint64_t>(size.rows),
                               static_cast<cuuint64_t>(last / matrix_stride + 1)};
  const cuuint64_t strides[2] = {static_cast<cuuint64_t>(tensor.row_stride * bytes),
                                 static_cast<cuuint64_t>(matrix_stride * bytes)};
  const cuuint32_t box[3] = {static_cast<cuuint32_t>(kBoxBytes / bytes),
                             static_cast<cuuint32_t>(box_rows), 1};
  const cuuint32_t steps[3] = {1, 1, 1};
  const CUresult result =
      encode(map, dtype, 3, tensor.data, sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
             CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
             CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS
             ? nullptr
             : "cuTensorMapEncodeTiled refuses an operand's address, size or stride";
}

}  // namespace jaxgemm
