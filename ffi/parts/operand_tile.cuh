// A stage's tile of a or b: how its boxes are loaded, and where wgmma finds it.
//
// A row of the tile is 128 bytes: r = 64 elements of 16 bits, or 32 of float32. The tile is as deep
// along k. Its rows hold k for Major::kK, m or n for Major::kMN:
//
//     major  boxes of a whole tile               rows of a box
//     kK     one for each CTA that shares it     its part of consecutive m or n
//     kMN    one for each r along m or n         r consecutive k
//     kMN    one for each of both, where CTAs    its part of r consecutive k
//            cannot share the former evenly
#pragma once

#include "abi/params.h"
#include "ptx/cta.cuh"
#include "ptx/tma.cuh"
#include "ptx/wgmma.cuh"

namespace jaxgemm {

// Elements of a row, which is also how deep a stage is.
template <typename T>
inline constexpr int kRowElements = kSwizzleBytes / static_cast<int>(sizeof(T));

// What loads of an operand need to know of one output tile.
struct TileOrigin {
  // First row of a, or column of b.
  int mn;
  // Which of the operand's own matrices.
  int matrix;
};

// kTileMn: rows of a or columns of b of a CTA's tile. kSharers: CTAs of the cluster that need the
// same tile, each of which loads a part of it for all.
template <typename T, Major kMajor, int kTileMn, int kSharers>
struct OperandTile {
  static constexpr int kBytes = kTileMn * kSwizzleBytes;
  static constexpr int kColumns = kMajor == Major::kK ? 1 : kTileMn / kRowElements<T>;
  // Boxes that lie below one another, in a column of 128 bytes.
  static constexpr int kRowParts = kColumns % kSharers == 0 ? 1 : kSharers;
  static constexpr int kBoxes = kColumns * kRowParts;
  static constexpr int kBoxBytes = kBytes / kBoxes;
  static constexpr int kBoxRows = kBoxBytes / kSwizzleBytes;
  // Bytes from one square part of the tile to the next along m or n.
  static constexpr int kChunkBytes = kRowElements<T> * kSwizzleBytes;
  // A product is 32 bytes deep: bytes from one depth to the next.
  static constexpr int kDepth = 32 / static_cast<int>(sizeof(T));
  static constexpr int kDepthBytes = kMajor == Major::kK ? 32 : kDepth * kSwizzleBytes;

  static_assert(kTileMn % 64 == 0, "wgmma takes a in parts of 64 rows, boxes are no wider");
  static_assert(kBoxes % kSharers == 0, "each CTA loads as many boxes as its peer");
  static_assert(kMajor == Major::kMN || kBoxRows <= 256, "a box has at most 256 rows");

  // Begins to load this CTA's part of the tile at depth `k`; the lanes of a warp share the boxes.
  static __device__ __forceinline__ void Load(const CUtensorMap* map, TileOrigin origin, int k,
                                              int lane, uint32_t rank, void* smem, uint64_t* full,
                                              CachePolicy policy) {
    constexpr int kOwnBoxes = kBoxes / kSharers;
    static_assert(kOwnBoxes <= kWarpSize, "a lane loads one box");
    if (lane < kOwnBoxes) {
      const int own = kSharers == 1 ? 0 : static_cast<int>(rank);
      const int column = kRowParts == 1 ? lane + own * kOwnBoxes : lane;
      const int first_row = kRowParts == 1 ? 0 : own * kBoxRows;
      const BoxOrigin at = kMajor == Major::kK ? BoxOrigin{k, origin.mn + first_row, origin.matrix}
                                               : BoxOrigin{origin.mn + column * kRowElements<T>,
                                                           k + first_row, origin.matrix};
      char* target =
          static_cast<char*>(smem) + (column * kRowParts * kBoxRows + first_row) * kSwizzleBytes;
      if constexpr (kSharers == 1) {
        LoadBox(map, at, target, full, policy);
      } else {
        LoadBoxMulticast(map, at, target, full, (1 << kSharers) - 1, policy);
      }
    }
  }

  // The descriptor of the part from row (or column) `mn` of the tile, a multiple of 64.
  static __device__ __forceinline__ uint64_t Descriptor(const void* smem, int mn) {
    return MakeDescriptor<kMajor>(
        static_cast<const char*>(smem) + mn / kRowElements<T> * kChunkBytes, kChunkBytes);
  }
};

}  // namespace jaxgemm
