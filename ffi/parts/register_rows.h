// Which rows of the operand from registers a lane has, and where it reads them in shared memory.
//
// wgmma multiplies 64 rows of it, 16 a warp: rows of m where a is this operand, of n where b is. Of
// each product, 8 deep, lane 4r + q needs two rows at k = q and at k = q + 4 (ptx/wgmma.cuh). Which
// rows they are is free, as long as results are stored where they belong:
//
//     major   rows of a lane    read by
//     kK      r and r + 8       ldmatrix, 8 rows of 16 bytes at a time
//     kMN     two neighbours    loads of 8 bytes, one for each k
//
// For kMN a row of the tile holds 32 rows of the operand at one k, in 8 chunks of 16 bytes, and
// chunk c of the tile's row k lies at place c ^ k % 8. Half a warp is served at a time: r from 0 to
// 3 or from 4 to 7, and q from 0 to 3. Two of the four r read the halves of a chunk c. If the
// others took the next chunk, the places c ^ q and (c + 1) ^ q would be four, each asked for by two
// q. They take chunk c + 4: then all eight places are asked for once, at k = q and at k = q + 4.
#pragma once

#include "abi/params.h"
#include "parts/host_device.h"

namespace jaxgemm {

template <Major kMajor>
struct RegisterRows {
  // The operand's tile has rows of 128 bytes.
  static constexpr int kRowBytes = 128;
  // Bytes of 64 rows of the operand at the depth of a stage.
  static constexpr int kPartBytes = 64 * kRowBytes;
  // From the first row of a lane to the second.
  static constexpr int kSecondRow = kMajor == Major::kK ? 8 : 1;

  // The first row of a lane, of 64.
  static JAXGEMM_HOST_DEVICE int First(int warp, int lane) {
    if constexpr (kMajor == Major::kK) {
      return 16 * warp + lane / 4;
    }
    return 32 * (warp / 2) + 4 * Chunk(warp, lane) + lane / 4 % 2 * 2;
  }

  // Where a lane reads of a product, from the start of the 64 rows on. For kK the address that it
  // gives ldmatrix, whose matrices are rows r and r + 8 of k to k + 3, then of k + 4 to k + 7. For
  // kMN its rows at k = q.
  static JAXGEMM_HOST_DEVICE int Place(int warp, int lane, int product) {
    if constexpr (kMajor == Major::kK) {
      const int row = 16 * warp + lane % 16;
      return row * kRowBytes + ((2 * product + lane / 16) ^ row % 8) * 16;
    }
    const int q = lane % 4;
    return warp / 2 * 32 * kRowBytes + (8 * product + q) * kRowBytes +
           (Chunk(warp, lane) ^ q) * 16 + lane / 4 % 2 * 8;
  }

  // For kMN: from the place of k = q to that of k = q + 4, in the same chunk.
  static JAXGEMM_HOST_DEVICE int PlaceOfUpperHalf(int place) {
    return (place ^ 4 * 16) + 4 * kRowBytes;
  }

 private:
  // For kMN: of a row of 128 bytes.
  static JAXGEMM_HOST_DEVICE int Chunk(int warp, int lane) {
    const int r = lane / 4;
    return warp % 2 * 2 + r / 4 + r / 2 % 2 * 4;
  }
};

}  // namespace jaxgemm
