// cuTensorMapEncodeTiled with its conditions, after the CUDA driver API, "Tensor Map Object
// Management". For tensors of three dimensions and the 128-byte swizzle, which kernels use.
#include "tensor_map.h"

#include <cstring>

#include "machine.h"

namespace emulator {

namespace {

constexpr uint64_t kMark = 0x70616d20726f736e;

int ItemBytes(CUtensorMapDataType type) {
  switch (type) {
    case CU_TENSOR_MAP_DATA_TYPE_BFLOAT16:
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT16:
      return 2;
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT32:
    case CU_TENSOR_MAP_DATA_TYPE_TFLOAT32:
      return 4;
    default:
      return 0;
  }
}

bool SizesAreLegal(const TensorMap& map, const cuuint32_t* element_strides) {
  bool legal = reinterpret_cast<uintptr_t>(map.data) % 16 == 0;
  for (int i = 0; i < 3; ++i) {
    legal = legal && map.sizes[i] >= 1 && map.sizes[i] <= int64_t{1} << 32;
    legal = legal && map.box[i] >= 1 && map.box[i] <= 256;
    legal = legal && element_strides[i] == 1;
  }
  // The driver takes strides in any order: matrices may be nearer to one another than rows.
  for (int i = 0; i < 2; ++i) {
    const int64_t stride = map.strides[i];
    legal = legal && stride % 16 == 0 && stride < int64_t{1} << 40;
    legal = legal && stride >= map.sizes[0] * map.item_bytes;
  }
  const int row_bytes = map.box[0] * map.item_bytes;
  return legal && row_bytes % 16 == 0 && row_bytes <= 128;
}

CUresult EncodeTiled(CUtensorMap* to, CUtensorMapDataType type, cuuint32_t rank, void* data,
                     const cuuint64_t* sizes, const cuuint64_t* strides, const cuuint32_t* box,
                     const cuuint32_t* element_strides, CUtensorMapInterleave interleave,
                     CUtensorMapSwizzle swizzle, CUtensorMapL2promotion,
                     CUtensorMapFloatOOBfill fill) {
  TensorMap map = {kMark, static_cast<char*>(data), {}, {}, {}, ItemBytes(type)};
  if (rank != 3 || map.item_bytes == 0 || interleave != CU_TENSOR_MAP_INTERLEAVE_NONE ||
      swizzle != CU_TENSOR_MAP_SWIZZLE_128B || fill != CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) {
    Fail("cuTensorMapEncodeTiled: this form is not modelled");
    return CUDA_ERROR_INVALID_VALUE;
  }
  for (int i = 0; i < 3; ++i) {
    map.sizes[i] = static_cast<int64_t>(sizes[i]);
    map.box[i] = static_cast<int>(box[i]);
  }
  map.strides[0] = static_cast<int64_t>(strides[0]);
  map.strides[1] = static_cast<int64_t>(strides[1]);
  if (reinterpret_cast<uintptr_t>(to) % 64 != 0 || !SizesAreLegal(map, element_strides)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  std::memcpy(to, &map, sizeof map);
  return CUDA_SUCCESS;
}

}  // namespace

const TensorMap* ReadMap(const CUtensorMap* map) {
  const auto* found = reinterpret_cast<const TensorMap*>(map);
  if (reinterpret_cast<uintptr_t>(map) % 64 != 0 || found->mark != kMark) {
    Fail("cp.async.bulk.tensor: the tensor map has not been made");
    return nullptr;
  }
  return found;
}

void* EncodeTiledFunction() { return reinterpret_cast<void*>(&EncodeTiled); }

}  // namespace emulator
