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
      : data_(static_cast<const T*>(data)),
        row_stride_(row_stride),
        first_(first),
        outer_size_(outer_size),
        k_size_(k_size) {}

  // Starts copying the tile at depth `k` to `smem`. Outside the matrix it writes zeros.
  __device__ void Start(int k, const char* smem) const {
    constexpr int kRowsAtATime = kNumThreads / kChunksPerRow;
    static_assert(kOuter % kRowsAtATime == 0 && kOuter % kDepth == 0, "threads cover the tile");
    const int chunk = threadIdx.x % kChunksPerRow;
#pragma unroll
    for (int i = 0; i < kOuter / kRowsAtATime; ++i) {
      const int row = threadIdx.x / kChunksPerRow + i * kRowsAtATime;
      const int contiguous = chunk * kChunkElements + (kIsKMajor ? k : first_ + Block(row));
      const int strided = kIsKMajor ? first_ + row : k + row % kDepth;
      const bool is_inside = strided < (kIsKMajor ? outer_size_ : k_size_);
      const int left = is_inside ? (kIsKMajor ? k_size_ : outer_size_) - contiguous : 0;
      const int count = min(max(left, 0), kChunkElements);
      const T* from = count > 0 ? data_ + strided * row_stride_ + contiguous : data_;
      CopyPartAsync(SharedAddress(smem + Place(row, chunk)), from, count * sizeof(T));
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

  const T* const data_;
  const int64_t row_stride_;
  const int first_;
  const int outer_size_;
  const int k_size_;
};

}  // namespace jaxgemm
