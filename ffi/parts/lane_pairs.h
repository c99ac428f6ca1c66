// Which accumulators of wgmma a lane has of neighbouring columns of d, and where these are.
//
// A lane 4r + q has, in turns t = 0, 1, …, two pairs of neighbouring columns of d. Where the Tensor
// Cores compute d, the elements of a pair are in neighbouring columns of theirs; where they compute
// its transpose (kTransposed), in the two rows of the lane, which must be neighbours then:
//
//     acc[4 t + 2 h + e] of     row of d                column of d
//     d                         row + kSecondRow · h    column + 8 t + e
//     its transpose             row + 8 t + e           column + h
//
// (row, column) is where acc[0] belongs.
#pragma once

#include "parts/host_device.h"

namespace jaxgemm {

// kSecondRow: from the first row of a lane on the Tensor Cores to the second.
template <bool kTransposed, int kSecondRow>
struct LanePairs {
  static_assert(!kTransposed || kSecondRow == 1,
                "the rows of a lane are neighbouring columns of d");

  // Which accumulator is element `i` of pair `pair`. Pairs 2 t and 2 t + 1 are those of turn t.
  static JAXGEMM_HOST_DEVICE constexpr int Accumulator(int pair, int i) {
    return pair / 2 * 4 + (kTransposed ? pair % 2 + 2 * i : pair % 2 * 2 + i);
  }

  // Rows and columns of d from acc[0] to the first element of a pair.
  static JAXGEMM_HOST_DEVICE constexpr int Rows(int pair) {
    return kTransposed ? pair / 2 * 8 + pair % 2 : pair % 2 * kSecondRow;
  }
  static JAXGEMM_HOST_DEVICE constexpr int Columns(int pair) {
    return kTransposed ? 0 : pair / 2 * 8;
  }
};

}  // namespace jaxgemm
