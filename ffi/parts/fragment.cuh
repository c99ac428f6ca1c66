// The epilogue of wgmma: from accumulators in registers, through shared memory, to d and z by TMA.
//
// A warp finishes its 16 rows in slices of 64 columns. Of a slice a lane holds 2 x 16 values, of
// rows r and r + 8 (see ptx/wgmma.cuh), in v[16 h + x]. Warps do not wait for one another: each has
// its own two staging slots, in turns, of 16 rows of 128 bytes, swizzled as TMA expects it.
//
//     columns of b         column of v[16 h + x] in a slice    written to the slot by
//     in their order       8 (x / 2) + 2 q + x % 2             stmatrix
//     in row classes       16 q + x                            16-byte stores: 8 values in a row
//
//     rows of a            d's maps         row of d of row i of the tile      boxes of a slot
//     in their order       plain            i                                  16 rows
//     in their order       row classes      i                                  8 of 2 rows, a class each
//     in row classes       row classes      8 (i % j) + i / j, kTileM = 8 j    16 rows of one class
#pragma once

#include "parts/activation.h"
#include "parts/batch.h"
#include "parts/elements.cuh"
#include "parts/row_classes.cuh"
#include "ptx/cta.cuh"
#include "ptx/matrix.cuh"
#include "ptx/tma.cuh"
#include "ptx/wgmma.cuh"

namespace jaxgemm {

inline constexpr int kSliceColumns = 64;
inline constexpr int kSliceValues = 32;
inline constexpr int kWarpRows = 16;
inline constexpr int kSlotBytes = kWarpRows * kSwizzleBytes;
inline constexpr int kSlotsPerWarp = 2;

// Two values as two elements of 16 bits, the first in the lower half.
template <DType kDType>
__device__ __forceinline__ uint32_t Pack(float low, float high) {
  if constexpr (kDType == DType::kBF16) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return reinterpret_cast<const uint32_t&>(pair);
  } else {
    const __half2 pair = __floats2half2_rn(low, high);
    return reinterpret_cast<const uint32_t&>(pair);
  }
}

template <Activation kActivation>
__device__ __forceinline__ void ActivateAll(float (&v)[kSliceValues]) {
#pragma unroll
  for (float& x : v) {
    x = Activate(kActivation, x);
  }
}

// As ActivateAll for functions of many instructions, eight values at a time: all at once they would
// need more registers than there are. The values are rotated, because registers have no index.
template <Activation kActivation>
__device__ __forceinline__ void ActivateInTurns(float (&v)[kSliceValues]) {
  constexpr int kCount = 8;
#pragma unroll 1
  for (int turn = 0; turn < kSliceValues / kCount; ++turn) {
    float done[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      done[i] = Activate(kActivation, v[i]);
    }
#pragma unroll
    for (int i = 0; i < kSliceValues; ++i) {
      v[i] = i + kCount < kSliceValues ? v[i + kCount] : done[i + kCount - kSliceValues];
    }
  }
}

// One switch for all values, so that the code of each activation is there once.
__device__ __forceinline__ void ActivateAll(Activation activation, float (&v)[kSliceValues]) {
  switch (activation) {
    case Activation::kNone:
      break;
    case Activation::kRelu:
      ActivateAll<Activation::kRelu>(v);
      break;
    case Activation::kGelu:
      ActivateAll<Activation::kGelu>(v);
      break;
    case Activation::kGeluExact:
      ActivateInTurns<Activation::kGeluExact>(v);
      break;
    case Activation::kSilu:
      ActivateAll<Activation::kSilu>(v);
      break;
    case Activation::kSigmoid:
      ActivateAll<Activation::kSigmoid>(v);
      break;
    case Activation::kTanh:
      ActivateInTurns<Activation::kTanh>(v);
      break;
    case Activation::kRelu2:
      ActivateAll<Activation::kRelu2>(v);
      break;
  }
}

// How rows and columns of the accumulator's tile lie in d, as in the table above.
template <int kTileM_, int kTileN_, bool kRowsInClasses_, bool kColumnsInClasses_, bool kDInClasses_>
struct FragmentLayout {
  static constexpr int kTileN = kTileN_;
  static constexpr bool kRowsInClasses = kRowsInClasses_;
  static constexpr bool kColumnsInClasses = kColumnsInClasses_;
  static constexpr bool kDInClasses = kDInClasses_;
  static constexpr int kNumSlices = kTileN / kSliceColumns;
  static constexpr int kRowsPerClass = kTileM_ / kNumRowClasses;
  static constexpr int kNumMaps = kDInClasses ? kNumRowClasses : 1;
  // Of a box of d.
  static constexpr int kBoxRows = kDInClasses && !kRowsInClasses ? 2 : kWarpRows;

  static_assert(!kRowsInClasses || kDInClasses, "rows in classes are stored as classes");
  static_assert(!kRowsInClasses || kRowsPerClass % kWarpRows == 0, "a warp has rows of one class");

  static __device__ __forceinline__ int RowInTile(int i) {
    return kRowsInClasses ? i % kRowsPerClass * kNumRowClasses + i / kRowsPerClass : i;
  }

  static __device__ __forceinline__ int ColumnInSlice(int quad, int x) {
    return kColumnsInClasses ? 16 * quad + x : 8 * (x / 2) + 2 * quad + x % 2;
  }

  // The accumulator of a lane, acc[4 t + 2 h + e], that is v[16 h + x] of a slice.
  static __device__ __forceinline__ constexpr int Accumulator(int slice, int half, int x) {
    const int t = kColumnsInClasses ? slice + kNumSlices * (x % 8) : 8 * slice + x / 2;
    const int e = kColumnsInClasses ? x / 8 : x % 2;
    return 4 * t + 2 * half + e;
  }

  // The row of a slot that row i of the warp is staged in: so that boxes lie one after another.
  static __device__ __forceinline__ int SlotRow(int i) {
    return kBoxRows == 2 ? i % 8 * 2 + i / 8 : i;
  }
};

// What a warp needs to finish one tile of d.
template <class Layout>
class WarpEpilogue {
 public:
  // `slots` is this warp's staging memory; `d_maps` and `z_maps` have a map a class.
  __device__ WarpEpilogue(const GemmParams& params, const CUtensorMap* d_maps,
                          const CUtensorMap* z_maps, char* slots, int lane)
      : params_(params), d_maps_(d_maps), z_maps_(z_maps), slots_(slots), lane_(lane) {}

  // Reads what belongs to matrix `matrix` of the batch, of which the next tiles are. `d_matrix`
  // counts in memory order.
  __device__ void Begin(int64_t matrix, int d_matrix) {
    alpha_ = Scalar(params_.alpha, matrix);
    beta_ = Scalar(params_.beta, matrix);
    d_matrix_ = d_matrix;
    c_offset_ = MatrixOffset(params_, params_.c, matrix);
  }

  // Finishes and stores 16 rows from row `warp_row` of the tile whose first element is
  // (m_offset, n_offset). `bias` holds that of the tile's columns, or is null.
  template <int kAccumulators>
  __device__ void Store(const float (&acc)[kAccumulators], int warp_row, int m_offset, int n_offset,
                        const float* bias) {
    // A loop with one body, not four copies of it: the body is long.
#pragma unroll 1
    for (int slice = 0; slice < Layout::kNumSlices; ++slice) {
      float v[kSliceValues];
#pragma unroll
      for (int s = 0; s < Layout::kNumSlices; ++s) {
        if (s == slice) {
#pragma unroll
          for (int i = 0; i < kSliceValues; ++i) {
            v[i] = acc[Layout::Accumulator(s, i / 16, i % 16)];
          }
        }
      }
      const int column = n_offset + slice * kSliceColumns;
      Preactivate(v, m_offset, warp_row, column, bias + slice * kSliceColumns);
      if (params_.z.data != nullptr) {
        StoreSlice(v, params_.z, z_maps_, m_offset, warp_row, column);
      }
      ActivateAll(params_.activation, v);
      StoreSlice(v, params_.d, d_maps_, m_offset, warp_row, column);
    }
  }

  // Waits until everything is written; no lane may exit before.
  __device__ void Finish() { WaitForStores(); }

 private:
  __device__ float Scalar(const Tensor& tensor, int64_t matrix) const {
    if (tensor.data == nullptr) {
      return 1.0f;
    }
    return static_cast<const float*>(tensor.data)[MatrixOffset(params_, tensor, matrix)];
  }

  __device__ void Preactivate(float (&v)[kSliceValues], int m_offset, int warp_row, int column,
                              const float* bias) const {
    if (params_.alpha.data != nullptr) {
#pragma unroll
      for (float& x : v) {
        x *= alpha_;
      }
    }
    // beta = 0 means that c is not read: NaN in c never shows.
    if (params_.c.data != nullptr && beta_ != 0.0f) {
      switch (params_.c.dtype) {
        case DType::kBF16:
          AddC<__nv_bfloat16>(v, m_offset, warp_row, column);
          break;
        case DType::kF16:
          AddC<__half>(v, m_offset, warp_row, column);
          break;
        default:
          AddC<float>(v, m_offset, warp_row, column);
      }
    }
    if (params_.bias.data != nullptr) {
#pragma unroll
      for (int i = 0; i < kSliceValues; ++i) {
        v[i] += bias[Layout::ColumnInSlice(lane_ % 4, i % 16)];
      }
    }
  }

  template <typename C>
  __device__ void AddC(float (&v)[kSliceValues], int m_offset, int warp_row, int column) const {
    const C* c = static_cast<const C*>(params_.c.data) + c_offset_;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = m_offset + Layout::RowInTile(warp_row + lane_ / 4 + 8 * half);
      const C* c_row = c + row * params_.c.row_stride + column;
      // Loads of one row at a time: more would need more registers than there are.
      asm volatile("" ::: "memory");
#pragma unroll
      for (int x = 0; x < 16; ++x) {
        const int offset = Layout::ColumnInSlice(lane_ % 4, x);
        if (row < params_.m && column + offset < params_.n) {
          v[16 * half + x] += beta_ * ToFloat(c_row[offset]);
        }
      }
    }
  }

  __device__ void StoreSlice(const float (&v)[kSliceValues], const Tensor& tensor,
                             const CUtensorMap* maps, int m_offset, int warp_row, int column) {
    switch (tensor.dtype) {
      case DType::kBF16:
        StoreNarrow<DType::kBF16>(v, tensor, maps, m_offset, warp_row, column);
        break;
      case DType::kF16:
        StoreNarrow<DType::kF16>(v, tensor, maps, m_offset, warp_row, column);
        break;
      default:
        StoreWide(v, tensor, maps, m_offset, warp_row, column);
    }
  }

  // A slice of 16-bit elements is one slot.
  template <DType kDType>
  __device__ void StoreNarrow(const float (&v)[kSliceValues], const Tensor& tensor,
                              const CUtensorMap* maps, int m_offset, int warp_row, int column) {
    char* slot = TakeSlot();
    if constexpr (Layout::kColumnsInClasses) {
#pragma unroll
      for (int i = 0; i < kSliceValues; i += 8) {
        const int row = Layout::SlotRow(lane_ / 4 + i / 16 * 8);
        const uint4 eight = make_uint4(Pack<kDType>(v[i], v[i + 1]), Pack<kDType>(v[i + 2], v[i + 3]),
                                       Pack<kDType>(v[i + 4], v[i + 5]),
                                       Pack<kDType>(v[i + 6], v[i + 7]));
        *reinterpret_cast<uint4*>(Chunk(slot, row, lane_ % 4 * 2 + i % 16 / 8)) = eight;
      }
    } else {
      // Lanes 8 i to 8 i + 7 give the rows of matrix i: of rows 0 to 7 and 8 to 15 in turns.
      const int row = Layout::SlotRow(lane_ % 16);
#pragma unroll
      for (int x = 0; x < 16; x += 4) {
        const uint32_t matrices[4] = {
            Pack<kDType>(v[x], v[x + 1]), Pack<kDType>(v[16 + x], v[16 + x + 1]),
            Pack<kDType>(v[x + 2], v[x + 3]), Pack<kDType>(v[16 + x + 2], v[16 + x + 3])};
        StoreMatrices(Chunk(slot, row, x / 2 + lane_ / 16), matrices);
      }
    }
    SendSlot(slot, tensor, maps, m_offset, warp_row, column);
  }

  // A slice of float32 is two slots of 32 columns.
  __device__ void StoreWide(const float (&v)[kSliceValues], const Tensor& tensor,
                            const CUtensorMap* maps, int m_offset, int warp_row, int column) {
    constexpr int kColumns = kSliceColumns / 2;
    const int quad = lane_ % 4;
#pragma unroll
    for (int part = 0; part < 2; ++part) {
      char* slot = TakeSlot();
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = Layout::SlotRow(lane_ / 4 + 8 * half);
        const float* from = v + 16 * half;
        if constexpr (Layout::kColumnsInClasses) {
          if (quad / 2 == part) {
#pragma unroll
            for (int x = 0; x < 16; x += 4) {
              *reinterpret_cast<float4*>(Chunk(slot, row, quad % 2 * 4 + x / 4)) =
                  make_float4(from[x], from[x + 1], from[x + 2], from[x + 3]);
            }
          }
        } else {
#pragma unroll
          for (int t = 0; t < 4; ++t) {
            const int x = 8 * part + 2 * t;
            char* chunk = Chunk(slot, row, 2 * t + quad / 2);
            *reinterpret_cast<float2*>(chunk + quad % 2 * 8) = make_float2(from[x], from[x + 1]);
          }
        }
      }
      SendSlot(slot, tensor, maps, m_offset, warp_row, column + part * kColumns);
    }
  }

  // A slot that no store reads any more. The lanes that issued stores are the ones that can wait.
  __device__ char* TakeSlot() {
    WaitForStoresToRead<kSlotsPerWarp - 1>();
    __syncwarp();
    char* slot = slots_ + slot_ * kSlotBytes;
    slot_ ^= 1;
    return slot;
  }

  static __device__ __forceinline__ char* Chunk(char* slot, int row, int chunk) {
    return slot + row * kSwizzleBytes + ((chunk ^ row % 8) * 16);
  }

  __device__ void SendSlot(char* slot, const Tensor& tensor, const CUtensorMap* maps, int m_offset,
                           int warp_row, int column) {
    // Every lane's writes become visible to the copy engine, then one lane (or eight) starts it.
    FenceAsyncProxy();
    __syncwarp();
    constexpr int kBoxes = kWarpRows / Layout::kBoxRows;
    if (lane_ < kBoxes) {
      BoxOrigin origin = {column, m_offset + warp_row, d_matrix_};
      int row_class = 0;
      if constexpr (Layout::kDInClasses) {
        constexpr int kRows = Layout::kRowsPerClass;
        row_class = Layout::kRowsInClasses ? warp_row / kRows : lane_;
        const int row = RowInClass(m_offset + (Layout::kRowsInClasses ? 0 : warp_row), row_class,
                                   params_.m);
        origin.row = row + (Layout::kRowsInClasses ? warp_row % kRows : 0);
        origin.column += RowClassShift(tensor, row_class);
      }
      StoreBox(&maps[row_class], origin, slot + lane_ * Layout::kBoxRows * kSwizzleBytes);
    }
    CommitStores();
  }

  const GemmParams& params_;
  const CUtensorMap* d_maps_;
  const CUtensorMap* z_maps_;
  char* slots_;
  int lane_;
  int slot_ = 0;
  float alpha_ = 1.0f;
  float beta_ = 1.0f;
  int d_matrix_ = 0;
  int64_t c_offset_ = 0;
};

}  // namespace jaxgemm
