// How kernels/sm90_dense.cuh loads operands that TMA cannot address, without copies of them: by two
// warpgroups, whose threads put units of 16 bytes where TMA would put them.
//
//     barrier   from → to             arrivals             protects
//     full      producer → consumer   1 for each warp      a slot before it is read
//     empty     consumer → producer   1 for each warp      a slot before it is written to
//
// A tile is lines of 128 bytes, eight units each: rows of an operand along k, or 64 columns of its
// rows at each k. A thread has the same unit of every 32nd line. 32 rows of any stride are a
// multiple of 16 bytes, and so is a step of 64 elements or 64 rows: all units of a thread begin at
// the same place of the two units of memory that they lie in (parts/shifted_unit.cuh). From one
// step to the next nothing changes but an offset.
//
// Writes of threads and reads of wgmma go different ways to shared memory (proxies), so between
// them there is a fence. The consumer executes it after it has waited, as PTX allows (by its
// proxy-preserved base causality order): a fence waits for what its thread has under way, which
// would be loads in the producer.
//
// As soon as units are stored, those of the next step are asked for, into the same registers. That
// hides the latency of L2, but not that of memory. So when the kernel begins, the consumer, which
// has nothing to do yet, asks L2 for all of a and b.
#pragma once

#include "parts/batch.h"
#include "parts/operand_tile.cuh"
#include "parts/ring.cuh"
#include "parts/shifted_unit.cuh"
#include "parts/sm90_loads.cuh"
#include "parts/sm90_plan.cuh"
#include "parts/tensor_map.cuh"
#include "ptx/cta.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/word.cuh"

namespace jaxgemm {

// Bytes of a and b together, at most: a grid asks for all of them when it begins, and offsets in
// them are an int.
inline constexpr int64_t kMaxThreadLoadedBytes = 16 << 20;
inline constexpr int kLineBytes = 128;
inline constexpr int kLineUnits = kLineBytes / kUnitBytes;
inline constexpr int kLoadingWarps = 8;
// Lines that threads load at a time.
inline constexpr int kLinesAtATime = kLoadingWarps * kWarpSize / kLineUnits;
static_assert(kLinesAtATime * sizeof(uint16_t) % kUnitBytes == 0, "rows begin at one shift again");
static_assert(kLinesAtATime % 8 == 0, "lines of a thread have one place in the swizzle");
static_assert(kLinesAtATime * 2 * sizeof(uint16_t) == kLineBytes, "two of them are a step deep");

// Says in the plan what to prefetch. Returns null, or why operands cannot be loaded in this way.
inline const char* PlanThreadLoads(const GemmParams& params, Sm90Plan* plan) {
  const auto num_bytes = [&](const Tensor& tensor, StoredSize size) {
    return NumOwnMatrices(params, tensor, size.rows) * size.rows * tensor.row_stride *
           ItemBytes(tensor.dtype);
  };
  if (params.k == 0) {
    return nullptr;
  }
  plan->a_bytes = num_bytes(params.a, StoredSizeOfA(params));
  plan->b_bytes = num_bytes(params.b, StoredSizeOfB(params));
  return plan->a_bytes + plan->b_bytes <= kMaxThreadLoadedBytes
             ? nullptr
             : "this instance loads operands of at most 16 MiB";
}

// Asks for an operand, of which each thread of the grid names some lines.
__device__ __forceinline__ void PrefetchOperand(const Tensor& tensor, int64_t num_bytes,
                                                int thread_of_grid, int num_threads) {
  const char* data = static_cast<const char*>(tensor.data);
  for (int64_t at = int64_t{kLineBytes} * thread_of_grid; at < num_bytes;
       at += int64_t{kLineBytes} * num_threads) {
    PrefetchToL2AndKeep(data + at);
  }
}

// By `num_threads` of each CTA.
__device__ __forceinline__ void PrefetchOperands(const GemmParams& params, const Sm90Plan& plan,
                                                 int thread, int num_threads) {
  const int thread_of_grid = static_cast<int>(blockIdx.x) * num_threads + thread;
  const int all_threads = static_cast<int>(gridDim.x) * num_threads;
  PrefetchOperand(params.a, plan.a_bytes, thread_of_grid, all_threads);
  PrefetchOperand(params.b, plan.b_bytes, thread_of_grid, all_threads);
}

// A thread's units of the tiles of one operand.
template <Major kMajor, int kTileMn>
class OperandByThreads {
 public:
  // `num_bytes`: of all matrices. `mn_size`: rows of a, or columns of b.
  __device__ OperandByThreads(const Tensor& tensor, int64_t num_bytes, int mn_size, int thread)
      : tensor_(tensor),
        mn_size_(mn_size),
        line_(thread / kLineUnits),
        unit_(thread % kLineUnits),
        row_bytes_(static_cast<int>(tensor.row_stride) * 2),
        step_bytes_(kIsKMajor ? kLineBytes : kStepDepth * row_bytes_) {
    const uint64_t begin = reinterpret_cast<uint64_t>(tensor.data);
    const uint64_t first = (begin + kUnitBytes - 1) / kUnitBytes * kUnitBytes;
    first_ = reinterpret_cast<const char*>(first);
    end_ = static_cast<int>(begin - first) + static_cast<int>(num_bytes);
  }

  // Begins to load the first step of the tile at `mn` of a matrix of the batch.
  __device__ __forceinline__ void Begin(const BatchPlace& batch, int mn) {
    const int matrix = static_cast<int>(batch.Offset(tensor_)) * 2;
    const int to_matrix = static_cast<int>(static_cast<const char*>(tensor_.data) - first_);
    // Instead of what is past the end along m or n, units of the tile are loaded twice.
    const int last = mn_size_ - 1 - mn;
    const int at = kIsKMajor ? min(line_, last) : min(unit_ * kUnitHalves, last);
    at_ = to_matrix + matrix +
          (kIsKMajor ? (mn + at) * row_bytes_ + unit_ * kUnitBytes
                     : line_ * row_bytes_ + (mn + at) * 2);
    shift_ = ShiftOf(first_ + at_);
    at_ -= shift_ * 2;
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      const int lines = i * kLinesAtATime;
      if constexpr (kIsKMajor) {
        offsets_[i] =
            max(0, min(lines, (last - line_) / kLinesAtATime * kLinesAtATime)) * row_bytes_;
      } else {
        const int columns = lines / kStepDepth * kStepDepth;
        offsets_[i] = lines % kStepDepth * row_bytes_ + (at + columns <= last ? columns * 2 : 0);
      }
    }
    Load();
  }

  // Stores the step that is there, of which the first `depth` elements along k belong to the
  // matrix, and zeros.
  __device__ __forceinline__ void Store(const void* smem, int depth) {
    const uint32_t to = SharedAddress(smem) + line_ * kLineBytes + (unit_ ^ line_ % 8) * kUnitBytes;
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      uint4 unit = ShiftedUnit(words_[i], shift_);
      if (depth < kStepDepth) {
        unit = FirstHalves(unit, Count(i, depth));
      }
      StoreSharedUnit(to + i * kLinesAtATime * kLineBytes, unit);
    }
    // The last one of Major::kMN may be too deep.
    const int last = Count(kUnits - 1, depth) > 0 ? offsets_[kUnits - 1] : offsets_[kUnits - 2];
    if (Count(0, depth) > 0 && !(IsWhole(at_) && IsWhole(at_ + last))) {
      StoreEnds(to, depth);
    }
  }

  // Begins to load the step after the one that has been stored.
  __device__ __forceinline__ void LoadNext() {
    at_ += step_bytes_;
    Load();
  }

 private:
  static constexpr bool kIsKMajor = kMajor == Major::kK;
  // Elements of a line, and how deep a step is.
  static constexpr int kStepDepth = kLineBytes / 2;
  static constexpr int kUnits = kTileMn / kLinesAtATime;
  static_assert(kTileMn % kStepDepth == 0, "a row of Major::kMN is a number of whole lines long");

  // Whether two units from an offset on are part of the operand.
  __device__ __forceinline__ bool IsWhole(int offset) const {
    return (offset >= 0) & (offset + 2 * kUnitBytes <= end_);
  }

  // How many halves of a unit are within `depth`.
  __device__ __forceinline__ int Count(int i, int depth) const {
    if constexpr (kIsKMajor) {
      return depth - unit_ * kUnitHalves;
    } else {
      return (line_ + i * kLinesAtATime) % kStepDepth < depth ? kUnitHalves : 0;
    }
  }

  // Nothing outside of the operand.
  __device__ __forceinline__ void Load() {
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      const int at = at_ + offsets_[i];
      LoadUnitsIf(IsWhole(at), first_ + at, words_[i]);
    }
  }

  // Stores again, half by half, the units at the ends of the operand.
  __device__ void StoreEnds(uint32_t to, int depth) const {
    const uint16_t* end = reinterpret_cast<const uint16_t*>(first_ + end_);
#pragma unroll 1
    for (int i = 0; i < kUnits; ++i) {
      const int at = at_ + Offset(i);
      const int count = Count(i, depth);
      if (!IsWhole(at) && count > 0) {
        uint32_t words[8];
        LoadHalves(reinterpret_cast<const uint16_t*>(first_ + at) + shift_, end, words);
        StoreSharedUnit(to + i * kLinesAtATime * kLineBytes,
                        FirstHalves(JoinedHalves(words), count));
      }
    }
  }

  // As offsets_, of which registers have no index.
  __device__ __forceinline__ int Offset(int i) const {
    int offset = offsets_[0];
#pragma unroll
    for (int j = 1; j < kUnits; ++j) {
      offset = i == j ? offsets_[j] : offset;
    }
    return offset;
  }

  const Tensor& tensor_;
  int mn_size_;
  // Of this thread: a line of the tile, and a unit of it.
  int line_;
  int unit_;
  int row_bytes_;
  int step_bytes_;
  // The first unit of memory that is part of the operand. Offsets count from it, in bytes.
  const char* first_;
  int end_;
  // Where units of memory begin in which the step lies: the first, and from there each.
  int at_;
  int offsets_[kUnits];
  int shift_;
  uint32_t words_[kUnits][8] = {};
};

// Loads tiles of a and b into the ring, as slots become empty. kLoadingWarps warps.
template <class Kernel>
__device__ void ProduceByThreads(const Sm90Work<Kernel>& work, const Sm90Plan& plan, int thread) {
  const GemmParams& params = work.params;
  OperandByThreads<Kernel::kAMajor, Kernel::kTileM> a(params.a, plan.a_bytes, params.m, thread);
  OperandByThreads<Kernel::kBMajor, Kernel::kTileN> b(params.b, plan.b_bytes, params.n, thread);
  if (work.loads.num_steps == 0) {
    return;
  }
  auto& ring = work.smem.ring;
  RingPosition<Kernel::kStages> at;
  for (int turn = 0; work.Has(turn); ++turn) {
    const TilePlace place = work.At(turn);
    const BatchPlace batch = work.BatchPlaceOf(place);
    a.Begin(batch, place.m_index * Kernel::kTileM);
    b.Begin(batch, place.n_index * Kernel::kTileN);
#pragma unroll 1
    for (int depth = params.k; depth > 0; depth -= Kernel::kTileK) {
      WaitBarrierGuarded(&ring.empty[at.stage], at.parity ^ 1);
      const bool has_next = depth > Kernel::kTileK;
      a.Store(work.smem.a[at.stage], depth);
      if (has_next) {
        a.LoadNext();
      }
      b.Store(work.smem.b[at.stage], depth);
      if (has_next) {
        b.LoadNext();
      }
      // One lane tells what all have written, which the consumer makes visible to wgmma.
      __syncwarp();
      if (thread % kWarpSize == 0) {
        ArriveBarrier(&ring.full[at.stage]);
      }
      at.Next();
    }
  }
  TakeSlotsBack(ring, at);
}

}  // namespace jaxgemm
