// Tensor maps on the host: what TMA knows of an operand or output.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include "parts/row_classes.cuh"

namespace jaxgemm {

// Rows and columns of one matrix as stored.
struct StoredSize {
  int64_t rows;
  int64_t columns;
};

using EncodeTiled = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*,
                                 const cuuint64_t*, const cuuint64_t*, const cuuint32_t*,
                                 const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle,
                                 CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

// The driver's function, by name: the library is not linked with the driver, which may be absent.
inline EncodeTiled FindEncodeTiled() {
  constexpr unsigned kSinceCuda = 12000;
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found;
  const cudaError_t error = cudaGetDriverEntryPointByVersion(
      "cuTensorMapEncodeTiled", &function, kSinceCuda, cudaEnableDefault, &found);
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

// Matrices that an operand has: its own batch axes only.
inline int64_t NumOwnMatrices(const GemmParams& params, const Tensor& tensor, StoredSize size) {
  int64_t last = 0;
  for (int axis = 0; axis < params.num_batch_axes; ++axis) {
    last += (params.batch_sizes[axis] - 1) * tensor.batch_strides[axis];
  }
  return last / (size.rows * size.columns) + 1;
}

// Whether plain tensor maps can address an operand: row and matrix strides, and its start.
inline bool IsAlignedForTma(const Tensor& tensor, StoredSize size, bool is_batched) {
  const int64_t bytes = ItemBytes(tensor.dtype);
  return reinterpret_cast<uint64_t>(tensor.data) % kTmaAlignment == 0 &&
         tensor.row_stride * bytes % kTmaAlignment == 0 &&
         (!is_batched || size.rows * size.columns * bytes % kTmaAlignment == 0);
}

// Fills one map for each of `num_classes` (1 or kNumRowClasses) row classes; the dimensions are
// column, row of the class, matrix. Boxes have 128 bytes of each of `box_rows` rows, swizzled.
// Returns null, or what went wrong.
inline const char* MakeTensorMaps(const GemmParams& params, const Tensor& tensor, StoredSize size,
                                  int box_rows, int num_classes, CUtensorMap* maps) {
  static const EncodeTiled encode = FindEncodeTiled();
  if (encode == nullptr) {
    return "the driver has no cuTensorMapEncodeTiled";
  }
  constexpr int kBoxBytes = 128;
  const int64_t bytes = ItemBytes(tensor.dtype);
  const int64_t num_matrices = NumOwnMatrices(params, tensor, size);
  for (int row_class = 0; row_class < num_classes; ++row_class) {
    const int shift = num_classes == 1 ? 0 : RowClassShift(tensor, row_class);
    // An empty class has a map of the first row, which is never read: see RowInClass.
    const bool is_empty = row_class >= size.rows;
    const int64_t first_row = is_empty ? 0 : row_class;
    const uint64_t start =
        reinterpret_cast<uint64_t>(tensor.data) + first_row * tensor.row_stride * bytes;
    void* base = reinterpret_cast<void*>(num_classes == 1 ? start : start - start % kTmaAlignment);
    const int64_t rows = is_empty ? 1 : (size.rows - row_class + num_classes - 1) / num_classes;
    const cuuint64_t row_bytes = num_classes * tensor.row_stride * bytes;
    const cuuint64_t matrix_bytes = size.rows * size.columns * bytes;
    const cuuint64_t sizes[3] = {static_cast<cuuint64_t>(size.columns + shift),
                                 static_cast<cuuint64_t>(rows),
                                 static_cast<cuuint64_t>(num_matrices)};
    const cuuint64_t strides[2] = {row_bytes, num_matrices == 1 ? row_bytes : matrix_bytes};
    const cuuint32_t box[3] = {static_cast<cuuint32_t>(kBoxBytes / bytes),
                               static_cast<cuuint32_t>(box_rows), 1};
    const cuuint32_t steps[3] = {1, 1, 1};
    const CUresult result =
        encode(&maps[row_class], TmaDType(tensor.dtype), 3, base, sizes, strides, box, steps,
               CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
               CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (result != CUDA_SUCCESS) {
      return "cuTensorMapEncodeTiled refuses an operand's address, size or stride";
    }
  }
  return nullptr;
}

}  // namespace jaxgemm
