// A stage's tile of a or b: how its boxes are loaded, and where wgmma finds it.
//
// A tile is 64 deep along k. Its rows of 128 bytes hold k for Major::kK, m or n for Major::kMN:
//
//     major  row classes  boxes of a whole tile        rows of a box              a tile's row i is
//     kK     no           1 a CTA that shares it       consecutive m or n         i
//     kK     yes          8, one a class               every 8th m or n           class i / j, see below
//     kMN    no           one a 64 columns             64 consecutive k           i
//     kMN    yes          8 a 64 columns               8 k, every 8th             k = 8 (i % 8) + i / 8
//
// With row classes a K-major tile of 8 j rows has row 8 i + r of the matrix at row r j + i, so rows
// of the product come out in that order (columns, for b). An MN-major tile has the 64 values of k in
// another order; the product does not mind, if a and b have the same.
#pragma once

#include "parts/row_classes.cuh"
#include "ptx/cta.cuh"
#include "ptx/tma.cuh"
#include "ptx/wgmma.cuh"

namespace jaxgemm {

// Elements along k of a stage, and along m or n of a box that is not along k: 128 bytes.
inline constexpr int kTileK = 64;

// What loads of an operand need to know of one output tile.
struct TileOrigin {
  // First row of a, or column of b.
  int mn;
  // Which of the operand's own matrices.
  int matrix;
};

// kTileMn: rows of a or columns of b of a CTA's tile. kSharers: CTAs of the cluster that need the
// same tile, each of which loads a part of it for all.
template <Major kMajor, bool kRowClasses, int kTileMn, int kSharers>
struct OperandTile {
  static constexpr int kBytes = kTileMn * kSwizzleBytes;
  static constexpr int kChunks = kTileMn / 64;
  static constexpr int kBoxes = kMajor == Major::kK ? (kRowClasses ? kNumRowClasses : kSharers)
                                                    : kChunks * (kRowClasses ? kNumRowClasses : 1);
  static constexpr int kBoxBytes = kBytes / kBoxes;
  static constexpr int kBoxRows = kBoxBytes / kSwizzleBytes;
  static constexpr int kNumMaps = kRowClasses ? kNumRowClasses : 1;
  // Bytes from one 64 x 64 part of the tile to the next along m or n.
  static constexpr int kChunkBytes = 64 * kSwizzleBytes;
  // Bytes from one product's depth of 16 to the next.
  static constexpr int kDepthBytes = kMajor == Major::kK ? 32 : 16 * kSwizzleBytes;

  static_assert(kTileMn % 64 == 0, "wgmma takes a in parts of 64 rows, boxes are 64 wide");
  static_assert(kBoxes % kSharers == 0, "each CTA loads as many boxes as its peer");
  static_assert(kMajor == Major::kMN || kBoxRows <= 256, "a box has at most 256 rows");

  // Begins to load this CTA's part of the tile at depth `k`; the lanes of a warp share the boxes.
  static __device__ __forceinline__ void Load(const CUtensorMap* maps, const Tensor& tensor,
                                              int num_rows, TileOrigin origin, int k, int lane,
                                              uint32_t rank, void* smem, uint64_t* full) {
    constexpr int kOwnBoxes = kBoxes / kSharers;
    const int first = kSharers == 1 ? 0 : static_cast<int>(rank) * kOwnBoxes;
#pragma unroll
    for (int round = 0; round < kOwnBoxes; round += kWarpSize) {
      const int own = round + lane;
      if (own < kOwnBoxes) {
        const int box = first + own;
        const int row_class = kRowClasses ? box % kNumRowClasses : 0;
        char* target = static_cast<char*>(smem) + box * kBoxBytes;
        const BoxOrigin at = Origin(tensor, num_rows, origin, k, box, row_class);
        if constexpr (kSharers == 1) {
          LoadBox(&maps[row_class], at, target, full);
        } else {
          LoadBoxMulticast(&maps[row_class], at, target, full, (1 << kSharers) - 1);
        }
      }
    }
  }

  // The descriptor of the part from row (or column) `mn` of the tile, a multiple of 64.
  static __device__ __forceinline__ uint64_t Descriptor(const void* smem, int mn) {
    return MakeDescriptor<kMajor>(static_cast<const char*>(smem) + mn / 64 * kChunkBytes,
                                  kChunkBytes);
  }

 private:
  static __device__ __forceinline__ BoxOrigin Origin(const Tensor& tensor, int num_rows,
                                                     TileOrigin origin, int k, int box,
                                                     int row_class) {
    const int chunk = kRowClasses ? box / kNumRowClasses : box;
    int column = kMajor == Major::kK ? k : origin.mn + 64 * chunk;
    int row = kMajor == Major::kK ? origin.mn : k;
    if constexpr (kRowClasses) {
      column += RowClassShift(tensor, row_class);
      row = RowInClass(row, row_class, num_rows);
    } else if constexpr (kMajor == Major::kK) {
      row += box * kBoxRows;
    }
    return {column, row, origin.matrix};
  }
};

}  // namespace jaxgemm
