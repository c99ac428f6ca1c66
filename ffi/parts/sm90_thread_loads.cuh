// How kernels/sm90_dense.cuh loads operands that TMA cannot address, without copies of them: by two
// warpgroups, each warp of which puts its rows of every step into the slots (parts/line_loader.h).
//
//     barrier   from → to             arrivals             protects
//     full      producer → consumer   1 for each warp      a slot before it is read
//     empty     consumer → producer   1 for each warp      a slot before it is written to
//
// Writes of threads and reads of wgmma go different ways to shared memory (proxies), so between
// them there is a fence. The consumer executes it after it has waited, as PTX allows (by its
// proxy-preserved base causality order): a fence waits for what its thread has under way, which
// would be loads in the producer.
//
// While a warp stores a step, it has loads of the next one under way: all of b's, in registers of
// their own, and a's as soon as those of a are free. It waits for them after it has told that the
// step is there, and meanwhile the other warps store theirs. That hides the latency of L2, but not
// that of memory. So when the kernel begins, the consumer, which has nothing to do yet, asks L2 for
// all of a and b.
#pragma once

#include <type_traits>

#include "parts/batch.h"
#include "parts/line_loader.h"
#include "parts/operand_tile.cuh"
#include "parts/ring.cuh"
#include "parts/sm90_loads.cuh"
#include "parts/sm90_plan.cuh"
#include "parts/tensor_map.cuh"
#include "ptx/cta.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/tma.cuh"
#include "ptx/word.cuh"

namespace jaxgemm {

// Bytes of a and b together, at most: a grid asks for all of them when it begins.
inline constexpr int64_t kMaxThreadLoadedBytes = 16 << 20;
static_assert(kMaxThreadLoadedBytes <= kMaxLineElements * 2, "as many as a matrix may have");

// The accesses of a LineLoader.
struct LineMemory {
  CachePolicy policy;

  __device__ __forceinline__ uint32_t LoadWord(const uint32_t* from) const {
    return jaxgemm::LoadWord(from, policy);
  }
  __device__ __forceinline__ uint32_t LoadWordIf(uint32_t condition, const uint32_t* from,
                                                 uint32_t otherwise) const {
    return jaxgemm::LoadWordIf(condition, from, otherwise, policy);
  }
  __device__ __forceinline__ uint16_t LoadHalf(const uint16_t* from) const { return __ldg(from); }
  // The compiler would move the word later, and so wait for the load that follows.
  __device__ __forceinline__ uint32_t Keep(uint32_t word) const { return CopyOfWord(word); }
  __device__ __forceinline__ void StoreWord(uint32_t address, uint32_t word) const {
    StoreSharedWord(address, word);
  }
  __device__ __forceinline__ void StoreHalf(uint32_t address, uint32_t half) const {
    StoreSharedHalf(address, static_cast<uint16_t>(half));
  }
};

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

// One operand of the tiles of a CTA.
template <Major kMajor, int kTileMn>
class OperandByThreads {
 public:
  // `num_rows` as stored.
  __device__ OperandByThreads(const Tensor& tensor, int num_rows, int num_columns, int warp,
                              int lane)
      : tensor_(tensor),
        num_elements_(static_cast<int>((num_rows - 1) * tensor.row_stride) + num_columns),
        warp_(warp),
        lane_(lane),
        memory_{EvictLast()} {}

  // Begins to read the first step of the tile at `mn` of a matrix of the batch.
  __device__ __forceinline__ void Begin(const BatchPlace& batch, int mn) {
    const uint16_t* data = static_cast<const uint16_t*>(tensor_.data) + batch.Offset(tensor_);
    loader_.Begin(memory_, LineMatrix::Of(data, num_elements_),
                  static_cast<int>(tensor_.row_stride), mn, warp_, lane_);
  }

  __device__ __forceinline__ void ReadOver() { loader_.ReadOver(memory_); }
  __device__ __forceinline__ void ReadAhead() { loader_.ReadAhead(memory_); }
  __device__ __forceinline__ void TakeAhead() { loader_.TakeAhead(); }

  // `depth`: elements along k of the step that belong to the matrix; without kCuts all do.
  template <bool kCuts>
  __device__ __forceinline__ void Store(const void* smem, int depth) const {
    loader_.template Store<kCuts>(memory_, SharedAddress(smem), depth);
  }

 private:
  const Tensor& tensor_;
  int num_elements_;
  int warp_;
  int lane_;
  LineMemory memory_;
  LineLoader<kMajor, kTileMn> loader_;
};

// Loads tiles of a and b into the ring, as slots become empty. kLoadingWarps warps.
template <class Kernel>
__device__ void ProduceByThreads(const Sm90Work<Kernel>& work, int warp, int lane) {
  const GemmParams& params = work.params;
  const bool a_is_k = Kernel::kAMajor == Major::kK;
  const bool b_is_k = Kernel::kBMajor == Major::kK;
  OperandByThreads<Kernel::kAMajor, Kernel::kTileM> a(params.a, a_is_k ? params.m : params.k,
                                                      a_is_k ? params.k : params.m, warp, lane);
  OperandByThreads<Kernel::kBMajor, Kernel::kTileN> b(params.b, b_is_k ? params.n : params.k,
                                                      b_is_k ? params.k : params.n, warp, lane);
  if (work.loads.num_steps == 0) {
    return;
  }
  auto& ring = work.smem.ring;
  RingPosition<Kernel::kStages> at;
  const auto fill_slot = [&](auto cuts, int depth, const auto& read_a) {
    WaitBarrierGuarded(&ring.empty[at.stage], at.parity ^ 1);
    a.template Store<decltype(cuts)::value>(work.smem.a[at.stage], depth);
    read_a();
    b.template Store<decltype(cuts)::value>(work.smem.b[at.stage], depth);
    // One lane tells what all have written, which the consumer makes visible to wgmma.
    __syncwarp();
    if (lane == 0) {
      ArriveBarrier(&ring.full[at.stage]);
    }
    at.Next();
  };
  const int last_depth = params.k - (work.loads.num_steps - 1) * Kernel::kTileK;
  for (int turn = 0; work.Has(turn); ++turn) {
    const TilePlace place = work.At(turn);
    const BatchPlace batch = work.BatchPlaceOf(place);
    a.Begin(batch, place.m_index * Kernel::kTileM);
    b.Begin(batch, place.n_index * Kernel::kTileN);
    for (int step = 0; step < work.loads.num_steps - 1; ++step) {
      b.ReadAhead();
      fill_slot(std::false_type(), Kernel::kTileK, [&] { a.ReadOver(); });
      b.TakeAhead();
    }
    fill_slot(std::true_type(), last_depth, [] {});
  }
  TakeSlotsBack(ring, at);
}

}  // namespace jaxgemm
