// The epilogue of wgmma: from accumulators in registers, through shared memory, to d and z by TMA.
//
// A warp finishes its 16 rows in slices of 64 columns. Warps do not wait for one another: each has
// its own two staging slots, in turns, of 16 rows of 128 bytes, swizzled as TMA expects it. Outputs
// that TMA cannot address leave the slots by ordinary stores.
#pragma once

#include "parts/batch.h"
#include "parts/shifted_unit.cuh"
#include "parts/slice.cuh"
#include "parts/tensor_map.cuh"
#include "ptx/cta.cuh"
#include "ptx/matrix.cuh"
#include "ptx/tma.cuh"
#include "ptx/wgmma.cuh"
#include "ptx/word.cuh"

namespace jaxgemm {

inline constexpr int kWarpRows = 16;
inline constexpr int kSlotBytes = kWarpRows * kSwizzleBytes;
inline constexpr int kSlotsPerWarp = 2;

// Maps of outputs that TMA can address, which it can, and how far from one another matrices lie.
struct OutputMaps {
  CUtensorMap d;
  CUtensorMap z;
  bool has_d;
  bool has_z;
  // Elements; of d, and of z as well.
  int64_t matrix_stride;
};

// What a warp needs to finish its rows of a tile of d.
class WarpEpilogue {
 public:
  // `slots` is this warp's staging memory.
  __device__ WarpEpilogue(const GemmParams& params, const OutputMaps& maps, char* slots, int lane)
      : params_(params), maps_(maps), slots_(slots), lane_(lane) {}

  // The next tile is of this matrix of d, as OwnMatrices counts them.
  __device__ void Begin(int d_matrix) { d_matrix_ = d_matrix; }

  // Reads what else belongs to the matrix.
  __device__ void LoadScalars(const BatchPlace& batch) {
    alpha_ = ScalarOf(params_.alpha, batch);
    beta_ = ScalarOf(params_.beta, batch);
    // beta = 0 means that c is not read: NaN in c never shows.
    reads_c_ = params_.c.data != nullptr && beta_ != 0.0f;
    c_offset_ = batch.Offset(params_.c);
  }

  // Asks for c of the tile that `Store` takes next, from the same element on, to be in the L2 cache
  // by then.
  template <int kParts, int kAccumulators>
  __device__ void PrefetchTile(int first_row, int n_offset) const {
    constexpr int kNumSlices = kAccumulators / kSliceValues;
    for (int index = 0; index < kParts * kNumSlices; ++index) {
      PrefetchC<PrefetchToL2>(first_row + index / kNumSlices * 64,
                              n_offset + index % kNumSlices * kSliceColumns);
    }
  }

  // Finishes and stores 16 rows of each part of 64, from element (first_row, n_offset) of the
  // matrix on. `bias` holds that of the tile's columns, if there is one.
  template <int kParts, int kAccumulators>
  __device__ void Store(const float (&acc)[kParts][kAccumulators], int first_row, int n_offset,
                        const float* bias) {
    constexpr int kNumSlices = kAccumulators / kSliceValues;
    // A loop with one body, not a copy of it for each slice: the body is long.
#pragma unroll 1
    for (int index = 0; index < kParts * kNumSlices; ++index) {
      float v[kSliceValues];
#pragma unroll
      for (int s = 0; s < kParts * kNumSlices; ++s) {
        if (s == index) {
          const auto& part = acc[s / kNumSlices];
#pragma unroll
          for (int i = 0; i < kSliceValues; ++i) {
            v[i] = part[s % kNumSlices * kSliceValues + i % 16 / 2 * 4 + i / 16 * 2 + i % 2];
          }
        }
      }
      const int row = first_row + index / kNumSlices * 64;
      const int slice_offset = index % kNumSlices * kSliceColumns;
      if (index + 1 < kParts * kNumSlices) {
        PrefetchC<PrefetchToL1>(first_row + (index + 1) / kNumSlices * 64,
                                n_offset + (index + 1) % kNumSlices * kSliceColumns);
      }
      Preactivate(v, row, n_offset + slice_offset, bias + slice_offset);
      if (params_.z.data != nullptr) {
        StoreSlice(v, params_.z, maps_.has_z ? &maps_.z : nullptr, row, n_offset + slice_offset);
      }
      FinishAll(params_, v);
      StoreSlice(v, params_.d, maps_.has_d ? &maps_.d : nullptr, row, n_offset + slice_offset);
    }
  }

  // Begins to store a slice of 16-bit elements whose first one belongs at (row, column) of the
  // matrix; packed[2 x + h] holds v[16 h + 2 x] and the value after it. kByTma: whether TMA is
  // known to address d.
  template <bool kByTma>
  __device__ __forceinline__ void StorePacked(const uint32_t (&packed)[kSliceValues / 2], int row,
                                              int column) {
    char* slot = TakeSlot();
    // Lanes 8 i to 8 i + 7 give the rows of matrix i: of rows 0 to 7 and 8 to 15 in turns.
#pragma unroll
    for (int x = 0; x < kSliceValues / 2; x += 4) {
      const uint32_t matrices[4] = {packed[x], packed[x + 1], packed[x + 2], packed[x + 3]};
      StoreMatrices(Chunk(slot, lane_ % 16, x / 2 + lane_ / 16), matrices);
    }
    if constexpr (kByTma) {
      SendBox(slot, &maps_.d, row, column);
    } else {
      SendSlot<uint16_t>(slot, params_.d, maps_.has_d ? &maps_.d : nullptr, row, column);
    }
  }

  // Waits until all slots have been read; no lane may exit before. The end of the kernel waits
  // until everything is written.
  __device__ void Finish() { WaitForStoresToRead<0>(); }

 private:
  // Asks for a slice of c, of which a row lies in at most three lines of a cache: the elements that
  // two lanes name are in all of them.
  template <void (*kPrefetch)(const void*)>
  __device__ __forceinline__ void PrefetchC(int row, int column) const {
    const int c_row = row + lane_ / 2;
    const int c_column = column + lane_ % 2 * (kSliceColumns / 2);
    if (!reads_c_ || c_row >= params_.m) {
      return;
    }
    const int bytes = ItemBytes(params_.c.dtype);
    const char* from = static_cast<const char*>(params_.c.data) +
                       (c_offset_ + c_row * params_.c.row_stride + c_column) * bytes;
    if (c_column < params_.n) {
      kPrefetch(from);
    }
    if (c_column + kSliceColumns / 2 <= params_.n) {
      kPrefetch(from + (kSliceColumns / 2 - 1) * bytes);
    }
  }

  __device__ void Preactivate(float (&v)[kSliceValues], int row, int column,
                              const float* bias) const {
    if (params_.alpha.data != nullptr) {
#pragma unroll
      for (float& x : v) {
        x *= alpha_;
      }
    }
    if (reads_c_) {
      switch (params_.c.dtype) {
        case DType::kBF16:
          AddC<__nv_bfloat16>(v, row, column);
          break;
        case DType::kF16:
          AddC<__half>(v, row, column);
          break;
        default:
          AddC<float>(v, row, column);
      }
    }
    if (params_.bias.data != nullptr) {
#pragma unroll
      for (int i = 0; i < kSliceValues; ++i) {
        v[i] += bias[ColumnInSlice(lane_, i % 16)];
      }
    }
  }

  template <typename C>
  __device__ void AddC(float (&v)[kSliceValues], int row, int column) const {
    const C* c = static_cast<const C*>(params_.c.data) + c_offset_ + column;
    const bool in_pairs =
        reinterpret_cast<uint64_t>(c) % (2 * sizeof(C)) == 0 && params_.c.row_stride % 2 == 0;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int c_row = row + lane_ / 4 + 8 * half;
      // Nothing is loaded of rows and columns that are not there.
      const int num_columns = c_row < params_.m ? params_.n - column : 0;
      const C* from = c + c_row * params_.c.row_stride;
      // Loads of one row at a time: more would need more registers than there are.
      asm volatile("" ::: "memory");
#pragma unroll
      for (int x = 0; x < 16; x += 2) {
        const int offset = ColumnInSlice(lane_, x);
        float2 pair = make_float2(0.0f, 0.0f);
        if (in_pairs) {
          if (offset < num_columns) {
            pair = LoadPair(from + offset);
          }
        } else {
          pair.x = offset < num_columns ? ToFloat(from[offset]) : 0.0f;
          pair.y = offset + 1 < num_columns ? ToFloat(from[offset + 1]) : 0.0f;
        }
        v[16 * half + x] += beta_ * pair.x;
        v[16 * half + x + 1] += beta_ * pair.y;
      }
    }
  }

  __device__ void StoreSlice(const float (&v)[kSliceValues], const Tensor& tensor,
                             const CUtensorMap* map, int row, int column) {
    switch (tensor.dtype) {
      case DType::kBF16:
        StoreNarrow<DType::kBF16>(v, tensor, map, row, column);
        break;
      case DType::kF16:
        StoreNarrow<DType::kF16>(v, tensor, map, row, column);
        break;
      default:
        StoreWide(v, tensor, map, row, column);
    }
  }

  // A slice of 16-bit elements is one slot.
  template <DType kDType>
  __device__ void StoreNarrow(const float (&v)[kSliceValues], const Tensor& tensor,
                              const CUtensorMap* map, int row, int column) {
    char* slot = TakeSlot();
    // Lanes 8 i to 8 i + 7 give the rows of matrix i: of rows 0 to 7 and 8 to 15 in turns.
#pragma unroll
    for (int x = 0; x < 16; x += 4) {
      const uint32_t matrices[4] = {
          Pack<kDType>(v[x], v[x + 1]), Pack<kDType>(v[16 + x], v[16 + x + 1]),
          Pack<kDType>(v[x + 2], v[x + 3]), Pack<kDType>(v[16 + x + 2], v[16 + x + 3])};
      StoreMatrices(Chunk(slot, lane_ % 16, x / 2 + lane_ / 16), matrices);
    }
    SendSlot<uint16_t>(slot, tensor, map, row, column);
  }

  // A slice of float32 is two slots of 32 columns.
  __device__ void StoreWide(const float (&v)[kSliceValues], const Tensor& tensor,
                            const CUtensorMap* map, int row, int column) {
    constexpr int kColumns = kSliceColumns / 2;
    const int quad = lane_ % 4;
#pragma unroll
    for (int part = 0; part < 2; ++part) {
      char* slot = TakeSlot();
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int slot_row = lane_ / 4 + 8 * half;
        const float* from = v + 16 * half;
#pragma unroll
        for (int t = 0; t < 4; ++t) {
          const int x = 8 * part + 2 * t;
          char* chunk = Chunk(slot, slot_row, 2 * t + quad / 2);
          *reinterpret_cast<float2*>(chunk + quad % 2 * 8) = make_float2(from[x], from[x + 1]);
        }
      }
      SendSlot<uint32_t>(slot, tensor, map, row, column + part * kColumns);
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

  template <typename Slot>
  static __device__ __forceinline__ Slot* Chunk(Slot* slot, int row, int chunk) {
    return slot + row * kSwizzleBytes + ((chunk ^ row % 8) * 16);
  }

  // Begins to store a slot whose first element belongs at (row, column) of the matrix.
  template <typename Bits>
  __device__ void SendSlot(char* slot, const Tensor& tensor, const CUtensorMap* map, int row,
                           int column) {
    if (map == nullptr) {
      __syncwarp();
      StoreElements<Bits>(slot, tensor, row, column);
      // An empty group: whoever takes a slot counts one for each.
      CommitStores();
      return;
    }
    SendBox(slot, map, row, column);
  }

  __device__ void SendBox(char* slot, const CUtensorMap* map, int row, int column) {
    // Every lane's writes become visible to the copy engine, then one lane starts it.
    FenceAsyncProxy();
    __syncwarp();
    if (lane_ == 0) {
      StoreBox(map, {column, row, d_matrix_}, slot);
    }
    CommitStores();
  }

  // By ordinary stores, for rows at any address: eight lanes a row, each of which reads two rows
  // before it stores them.
  template <typename Bits>
  __device__ void StoreElements(const char* slot, const Tensor& tensor, int row, int column) const {
    constexpr int kHalves = sizeof(Bits) / 2;
    constexpr int kRows = kWarpSize / kSlotUnits;
    constexpr int kTurns = kWarpRows / (2 * kRows);
    const int64_t matrix = d_matrix_ * maps_.matrix_stride;
    const int64_t row_bytes = tensor.row_stride * sizeof(Bits);
    const int num_halves = min((params_.n - column) * kHalves, kSlotUnits * kUnitHalves);
    const int slot_row = lane_ / kSlotUnits;
    int num_rows = params_.m - row - slot_row;
    char* to = static_cast<char*>(tensor.data) + (row + slot_row) * row_bytes +
               (matrix + column) * static_cast<int>(sizeof(Bits));
#pragma unroll 1
    for (int turn = 0; turn < kTurns; ++turn) {
      SlotRow first = ReadRow(slot, slot_row, to, num_rows > 0 ? num_halves : 0);
      SlotRow second = ReadRow(slot, slot_row + kRows, to + kRows * row_bytes,
                               num_rows > kRows ? num_halves : 0);
      StoreRow(first);
      StoreRow(second);
      num_rows -= 2 * kRows;
      to += 2 * kRows * row_bytes;
      slot += 2 * kRows * kSwizzleBytes;
    }
  }

  static constexpr int kSlotUnits = kSwizzleBytes / kUnitBytes;

  // A lane's part of a row of a slot, of which `num_halves` belong to the matrix: a unit as memory
  // has them, and a half each of what is before the first of these and after the last one.
  struct SlotRow {
    char* to;
    int num_halves;
    int before;
    int after;
    uint32_t words[8];
    uint16_t half_before;
    uint16_t half_after;
  };

  __device__ __forceinline__ SlotRow ReadRow(const char* slot, int slot_row, char* to,
                                             int num_halves) const {
    const int at = lane_ % kSlotUnits;
    SlotRow row = {to, num_halves};
    row.before = -ShiftOf(to) & (kUnitHalves - 1);
    row.after = row.before + max(num_halves - row.before, 0) / kUnitHalves * kUnitHalves + at;
    const auto unit = [&](int i) {
      return *reinterpret_cast<const uint4*>(Chunk(slot, slot_row, i));
    };
    const auto half = [&](int i) {
      const char* chunk = Chunk(slot, slot_row, i / kUnitHalves);
      return reinterpret_cast<const uint16_t*>(chunk)[i % kUnitHalves];
    };
    reinterpret_cast<uint4*>(row.words)[0] = unit(at);
    reinterpret_cast<uint4*>(row.words)[1] = unit(min(at + 1, kSlotUnits - 1));
    row.half_before = half(at);
    // Past the end of the slot any will do.
    row.half_after = half(row.after % (kSlotUnits * kUnitHalves));
    return row;
  }

  // Without a branch, so that no read has to wait for one.
  __device__ __forceinline__ void StoreRow(SlotRow& row) const {
    const int at = lane_ % kSlotUnits;
    StoreUnitIf(row.before + (at + 1) * kUnitHalves <= row.num_halves,
                row.to + (row.before + at * kUnitHalves) * 2, ShiftedUnit(row.words, row.before));
    StoreHalfIf(at < min(row.before, row.num_halves), row.to + at * 2, row.half_before);
    StoreHalfIf(row.after < row.num_halves, row.to + row.after * 2, row.half_after);
  }

  const GemmParams& params_;
  const OutputMaps& maps_;
  char* slots_;
  int lane_;
  int slot_ = 0;
  float alpha_ = 1.0f;
  float beta_ = 1.0f;
  bool reads_c_ = false;
  int d_matrix_ = 0;
  int64_t c_offset_ = 0;
};

}  // namespace jaxgemm
