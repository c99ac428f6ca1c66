// A stage's tile of an operand for mma.sync: how cp.async brings it, and how warps read fragments.
//
// Rows of 128 bytes, whose 16-byte chunks are permuted by the row's place in groups of 8, so that
// the 8 rows that ldmatrix reads at a time lie in different banks. A stage is 128 bytes deep: 64
// elements of 16 bits or 32 of float32.
//
//     major  row i of the tile                         a fragment is read by
//     kK     outer = i, all of k                       ldmatrix
//     kMN    k = i % depth, `depth` of outer           ldmatrix.trans; float32 element by element
//
// where outer is m for a and n for b.
#pragma once

#include "abi/params.h"
#include "ptx/copy_async.cuh"
#include "ptx/cta.cuh"
#include "ptx/matrix.cuh"
#include "ptx/shared_address.cuh"

namespace jaxgemm {

inline constexpr int kTileRowBytes = 128;
inline constexpr int kChunkBytes = 16;
inline constexpr int kChunksPerRow = kTileRowBytes / kChunkBytes;
// Products of mma.sync along k in a stage, each two chunks deep.
inline constexpr int kProductsPerStage = 4;

template <typename T, Major kMajor, int kOuter, int kNumThreads>
class SwizzledTile {
 public:
  static constexpr int kDepth = kTileRowBytes / static_cast<int>(sizeof(T));
  static constexpr int kBytes = kOuter * kTileRowBytes;
  // ldmatrix.trans moves elements of 16 bits only.
  static constexpr bool kByElements = kMajor == Major::kMN && sizeof(T) == 4;

  // `data` is the operand's matrix, `first` where the tile begins along outer, of `outer_size`.
  __device__ SwizzledTile(const void* data, int64_t row_stride, int first, int outer_size,
                          int k_size)
      : row_stride_(row_stride),
        outer_left_(outer_size - first),
        k_size_(k_size),
        row_(threadIdx.x / kChunksPerRow),
        column_(threadIdx.x % kChunksPerRow * kChunkElements),
        from_(static_cast<const T*>(data) +
              (kIsKMajor ? (first + row_) * row_stride : first + row_ * row_stride) + column_) {}

  // Starts copying the tile at depth `k` to `smem`. Outside the matrix it writes zeros and reads
  // nothing: rows of memory are whole chunks, of which the last is zero past the end of the matrix
  // (parts/realign.cuh). A thread copies the same chunk of every kRowsAtATime-th row, so that all
  // that changes from one copy to the next is a pointer.
  __device__ __forceinline__ void Start(int k, const char* smem) const {
    constexpr int kRowsAtATime = kNumThreads / kChunksPerRow;
    constexpr int kRows = kIsKMajor ? kOuter : kDepth;
    static_assert(kRows % kRowsAtATime == 0 && kRowsAtATime % 8 == 0, "and so the same place");
    const int rows_left = (kIsKMajor ? outer_left_ : k_size_ - k) - row_;
    const uint32_t to = SharedAddress(smem + Place(row_, column_ / kChunkElements));
#pragma unroll
    for (int block = 0; block < kOuter / kRows; ++block) {
      const int left = (kIsKMajor ? k_size_ - k : outer_left_ - block * kRows) - column_;
      const T* from = from_ + (kIsKMajor ? k : k * row_stride_ + block * kRows);
#pragma unroll
      for (int row = 0; row < kRows; row += kRowsAtATime) {
        CopyAsync<kChunkBytes>(to + (block * kRows + row) * kTileRowBytes, from,
                               left > 0 && row < rows_left);
        from += kRowsAtATime * row_stride_;
      }
    }
  }

  // The fragment of 16 along outer from `outer` on, for a product of the stage. Each register has
  // one half of it along outer and one along k. For a they change in this order, the half along
  // outer first; for b, of which neighbours are the two halves along k of an 8-wide tile, kKFirst.
  template <bool kKFirst>
  static __device__ __forceinline__ void Load(uint32_t (&fragment)[4], const char* smem, int outer,
                                              int product, int lane) {
    // Lanes 8 i to 8 i + 7 name the rows of register i.
    const int outer_half = kKFirst ? lane / 16 : lane / 8 % 2;
    const int k_half = kKFirst ? lane / 8 % 2 : lane / 16;
    if constexpr (kIsKMajor) {
      LoadMatrices(fragment, smem + Place(outer + 8 * outer_half + lane % 8, 2 * product + k_half));
    } else if constexpr (!kByElements) {
      const int k = 16 * product + 8 * k_half + lane % 8;
      LoadMatricesTransposed(fragment, smem + ElementPlace(outer + 8 * outer_half, k));
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int k = 8 * product + 4 * (kKFirst ? i % 2 : i / 2) + lane % 4;
        const int at = outer + 8 * (kKFirst ? i / 2 : i % 2) + lane / 4;
        fragment[i] = *reinterpret_cast<const uint32_t*>(smem + ElementPlace(at, k));
      }
    }
    if constexpr (sizeof(T) == 4) {
#pragma unroll
      for (uint32_t& x : fragment) {
        x = RoundToTf32(x);
      }
    }
  }

 private:
  static constexpr bool kIsKMajor = kMajor == Major::kK;
  static constexpr int kChunkElements = kChunkBytes / static_cast<int>(sizeof(T));

  // Of Major::kMN: where along outer the elements of a row begin.
  static __device__ __forceinline__ int Block(int row) { return row / kDepth * kDepth; }

  static __device__ __forceinline__ int Place(int row, int chunk) {
    return row * kTileRowBytes + (chunk ^ row % 8) * kChunkBytes;
  }

  // Of Major::kMN.
  static __device__ __forceinline__ int ElementPlace(int outer, int k) {
    const int within = outer % kDepth;
    return Place(Block(outer) + k, within / kChunkElements) +
           within % kChunkElements * static_cast<int>(sizeof(T));
  }

  const int64_t row_stride_;
  // What there is of the matrix from the tile on.
  const int outer_left_;
  const int k_size_;
  // What this thread copies first: a row of the tile in shared memory, and elements of it.
  const int row_;
  const int column_;
  const T* const from_;
};

}  // namespace jaxgemm
