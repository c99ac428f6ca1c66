// How TMA reads and writes matrices whose rows are not a multiple of 16 bytes apart.
//
// A tensor map needs its base address and its strides to be multiples of 16 bytes. Rows of 16-bit
// elements that lie, say, 4095 elements apart are not; but rows that are *eight* apart always are.
// So the rows with the same remainder r modulo 8, a row class, make a matrix that TMA can address,
// except that its first element may not lie on a multiple of 16 bytes. That is mended by coordinates,
// which may be any integers: the map of class r begins at most 14 bytes too early, and every access
// adds the missing elements, RowClassShift, to its column. Nothing before a row's first element is
// touched, because columns begin at the shift; nothing after its last, because the map ends there.
//
// A tile of 8 j rows is then loaded as 8 boxes of j rows, which lie one after another in shared
// memory: row 8 i + r of the tile is found at r j + i. Kernels live with this order, see
// parts/operand_tile.cuh and parts/fragment.cuh.
#pragma once

#include "abi/params.h"
#include "parts/host_device.h"

namespace jaxgemm {

inline constexpr int kNumRowClasses = 8;
inline constexpr int kTmaAlignment = 16;

JAXGEMM_HOST_DEVICE int ItemBytes(DType dtype) { return dtype == DType::kF32 ? 4 : 2; }

// Elements between the start of a row class's tensor map and its first row.
JAXGEMM_HOST_DEVICE int RowClassShift(const Tensor& tensor, int row_class) {
  const int bytes = ItemBytes(tensor.dtype);
  const uint64_t address =
      reinterpret_cast<uint64_t>(tensor.data) + row_class * tensor.row_stride * bytes;
  return static_cast<int>(address % kTmaAlignment) / bytes;
}

// The row of a class's map for row 8 i + r of a matrix, given 8 i. A class without rows has a map
// of one row that is not the matrix's: there, a row far outside.
JAXGEMM_HOST_DEVICE int RowInClass(int row, int row_class, int num_rows) {
  constexpr int kOutside = 1 << 30;
  return row_class < num_rows ? row / kNumRowClasses : kOutside;
}

}  // namespace jaxgemm
