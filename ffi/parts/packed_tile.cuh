// A tile of a plain product in elements of 16 bits, in the registers of a warp. It takes half as
// many as the accumulators, so that the next tile can be multiplied while this one is stored.
#pragma once

#include "parts/fragment.cuh"
#include "ptx/word.cuh"

namespace jaxgemm {

// Of T, from accumulators of kParts times 64 rows, kAccumulators for each thread.
template <typename T, int kParts, int kAccumulators>
class PackedTile {
 public:
  static constexpr int kNumSlices = kParts * kAccumulators / kSliceValues;

  // Takes a tile whose first row of this warp is `row`.
  __device__ __forceinline__ void Take(const float (&acc)[kParts][kAccumulators], int row,
                                       int n_offset) {
#pragma unroll
    for (int slice = 0; slice < kNumSlices; ++slice) {
      const float* from = acc[slice / kPartSlices] + slice % kPartSlices * kSliceValues;
#pragma unroll
      for (int i = 0; i < kSliceValues / 2; ++i) {
        packed_[slice][i] = Pack<DTypeOf<T>()>(from[2 * i], from[2 * i + 1]);
      }
    }
    // Copied here and not before: where the place of a tile was worked out before its products,
    // ptxas 13.0.88 took it for that of the tile before it.
    row_ = CopyOfWord(row);
    n_offset_ = CopyOfWord(n_offset);
    num_stored_ = 0;
  }

  // Stores a slice that has not been stored, if there is one.
  __device__ __forceinline__ void StoreNext(WarpEpilogue& epilogue) {
    if (num_stored_ == kNumSlices) {
      return;
    }
#pragma unroll
    for (int slice = 0; slice < kNumSlices; ++slice) {
      if (slice == num_stored_) {
        Store<true>(epilogue, slice);
      }
    }
    ++num_stored_;
  }

  // Stores all slices. kByTma: whether TMA is known to address d.
  template <bool kByTma>
  __device__ __forceinline__ void StoreAll(WarpEpilogue& epilogue) {
#pragma unroll
    for (int slice = 0; slice < kNumSlices; ++slice) {
      Store<kByTma>(epilogue, slice);
    }
    num_stored_ = kNumSlices;
  }

 private:
  static constexpr int kPartSlices = kAccumulators / kSliceValues;

  template <bool kByTma>
  __device__ __forceinline__ void Store(WarpEpilogue& epilogue, int slice) const {
    epilogue.StorePacked<kByTma>(packed_[slice], row_ + slice / kPartSlices * 64,
                                 n_offset_ + slice % kPartSlices * kSliceColumns);
  }

  uint32_t packed_[kNumSlices][kSliceValues / 2];
  int row_;
  int n_offset_;
  int num_stored_ = kNumSlices;
};

}  // namespace jaxgemm
