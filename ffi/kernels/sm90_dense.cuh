// Rung 7, cuda.sm90.dense: TMA, warp roles and wgmma. For bfloat16 and float16 on Hopper.
//
// The rung below, cuda.mma_sync, keeps its warps busy with everything but multiplying: they compute
// addresses, issue copies, load fragments of a and b into registers, and only then multiply. Here
// one thread describes a whole tile to the copy engine (TMA), and one instruction of a warpgroup
// (wgmma) multiplies 64 x 256 x 16 straight from shared memory. Roles are divided: one warpgroup
// loads, two multiply. Bytes from L2 for a tile of a CTA, with two CTAs of a cluster that each load
// half of the b tile they share:
//
//     bytes = itemsize · k · (kTileM + kTileN / 2)      flops = 2 · kTileM · kTileN · k
//
// for 128 x 256: 128 flops a byte, so 800 TFLOP/s ask 6.3 TB/s of the L2 cache. Loads tell it to
// keep what other tiles read too; otherwise it gives such lines up for those of d.
//
//     barrier   from → to                 protects
//     full      producer → consumers      a slot of the ring before it is read
//     empty     consumers → producer      a slot of the ring before it is overwritten
//     turn      consumer → the other      the order of products, where they take turns
//     slots     a warp → itself           staging of d and z: bulk-group wait, no barrier
//
// The grid is persistent, and the ring goes on across tiles: while consumers store one, the
// producer already loads the next. With kTurns consumers take whole tiles in turns, so that one
// stores its tile while the other multiplies; without, each multiplies half of the rows of every
// tile.
//
// Every m, n and k is taken. Operands that TMA cannot address are copied to the workspace first
// (parts/realign.cuh), or else threads load them (Loads::kByThreads, parts/sm90_thread_loads.cuh):
// two warpgroups load, one multiplies. L1 binds that, so it is for problems whose copies would take
// longer. Outputs that TMA cannot address are stored by ordinary stores. The one knob is the width
// of the strips in which it walks over tiles (parts/tile_walk.cuh).
//
// Limit now: power. At 4096³ the Tensor Cores are busy 9 cycles in 10, and the clock sinks.
#pragma once

#include "parts/bias_in_flight.cuh"
#include "parts/fragment.cuh"
#include "parts/layouts.h"
#include "parts/operand_tile.cuh"
#include "parts/persistent.cuh"
#include "parts/plain_product.cuh"
#include "parts/sm90_loads.cuh"
#include "parts/sm90_plan.cuh"
#include "parts/sm90_thread_loads.cuh"

namespace jaxgemm {

// kTileM, kTileN: tile of a CTA. kClusterM, kClusterN: CTAs of a cluster side by side, one is 1.
template <typename T, int kTileM, int kTileN, int kStages, int kClusterM, int kClusterN,
          bool kTurns, Loads kLoads = Loads::kByTma>
struct Sm90Dense {
  static const char* Launch(const GemmParams& params, cudaStream_t stream);
};

// The kernel for one pair of layouts.
template <typename T_, Major kAMajor_, Major kBMajor_, int kTileM_, int kTileN_, int kStages_,
          int kClusterM_, int kClusterN_, bool kTurns_, Loads kLoads_>
struct Sm90DenseForm {
  using T = T_;
  static constexpr Major kAMajor = kAMajor_;
  static constexpr Major kBMajor = kBMajor_;
  static constexpr int kTileM = kTileM_;
  static constexpr int kTileN = kTileN_;
  static constexpr int kTileK = kRowElements<T>;
  static constexpr int kStages = kStages_;
  static constexpr int kClusterM = kClusterM_;
  static constexpr int kClusterN = kClusterN_;
  static constexpr int kClusterSize = kClusterM * kClusterN;
  static constexpr bool kTurns = kTurns_;
  static constexpr Loads kLoads = kLoads_;
  static constexpr bool kByTma = kLoads == Loads::kByTma;

  // Warpgroups.
  static constexpr int kNumConsumers = kByTma ? 2 : 1;
  static constexpr int kNumProducers = kByTma ? 1 : kLoadingWarps / 4;
  static constexpr int kNumThreads = (kNumConsumers + kNumProducers) * kWarpgroupSize;
  // 128 threads of each warpgroup together hold at most 65536 registers.
  static constexpr int kProducerRegisters = kByTma ? 40 : 160;
  static constexpr int kConsumerRegisters = kByTma ? 232 : 184;

  // Rows of a tile that one consumer multiplies, 64 with each instruction.
  static constexpr int kConsumerRows = kTurns ? kTileM : kTileM / kNumConsumers;
  static constexpr int kParts = kConsumerRows / 64;
  // Consumers that read a slot.
  static constexpr int kReaders = kTurns ? 1 : kNumConsumers;

  using ATile = OperandTile<T, kAMajor, kTileM, kClusterN>;
  using BTile = OperandTile<T, kBMajor, kTileN, kClusterM>;

  static_assert(kTileM % (64 * kReaders) == 0, "a consumer multiplies whole parts of 64 rows");
  // A thread has registers for 128 accumulators and any epilogue, or for 192 of a plain product.
  static constexpr bool kOnlyPlain = kParts * kTileN > 256;
  static_assert(kParts * kTileN <= 384, "a thread has registers for 192 accumulators");
  static_assert(kClusterSize <= 2 && kStages >= 2, "the forms that are written and tested");
  static_assert(kByTma || (kClusterSize == 1 && !kTurns), "one consumer, of slots of its own CTA");
  static_assert(kNumProducers * kProducerRegisters + kNumConsumers * kConsumerRegisters <= 512,
                "an SM has 512 registers for each of 128 threads");

  struct alignas(kSwizzleAtomBytes) Smem {
    alignas(kSwizzleAtomBytes) char a[kStages][ATile::kBytes];
    char b[kStages][BTile::kBytes];
    char slots[kNumConsumers * 4][kSlotsPerWarp * kSlotBytes];
    float bias[kNumConsumers][kTileN];
    Ring<kStages> ring;
  };

  static_assert(sizeof(Smem) <= 227 * 1024, "a CTA has 227 KiB of shared memory");
};

// Loads tiles of a and b into the ring, as slots become empty. One warp.
template <class Kernel>
__device__ void Produce(const Sm90Work<Kernel>& work, int lane) {
  using ATile = typename Kernel::ATile;
  using BTile = typename Kernel::BTile;
  constexpr uint32_t kStageBytes = ATile::kBytes + BTile::kBytes;
  // What no other tile reads need not stay in the L2 cache.
  const CachePolicy a_policy = work.loads.walk.num_n > 1 ? EvictLast() : EvictNormal();
  const CachePolicy b_policy = work.loads.walk.num_m > 1 ? EvictLast() : EvictNormal();
  auto& ring = work.smem.ring;
  RingPosition<Kernel::kStages> at;
  for (int turn = 0; work.Has(turn); ++turn) {
    const TilePlace place = work.At(turn);
    const BatchPlace batch = work.BatchPlaceOf(place);
    const TileOrigin a = {place.m_index * Kernel::kTileM, work.loads.a_matrices.At(batch)};
    const TileOrigin b = {place.n_index * Kernel::kTileN, work.loads.b_matrices.At(batch)};
    for (int step = 0; step < work.num_steps; ++step) {
      uint64_t* full = &ring.full[at.stage];
      WaitBarrierGuarded(&ring.empty[at.stage], at.parity ^ 1);
      if (lane == 0) {
        ArriveExpectBytes(full, kStageBytes);
      }
      const int k = step * Kernel::kTileK;
      ATile::Load(&work.loads.a, a, k, lane, work.rank, work.smem.a[at.stage], full, a_policy);
      BTile::Load(&work.loads.b, b, k, lane, work.rank, work.smem.b[at.stage], full, b_policy);
      at.Next();
    }
  }
  // No CTA may exit while a peer can still arrive at its barriers.
  TakeSlotsBack(ring, at);
}

// Issues the products of one stage, for this consumer's rows.
template <class Kernel>
__device__ __forceinline__ void MultiplyStage(float (&acc)[Kernel::kParts][Kernel::kTileN / 2],
                                              const char* a_smem, const char* b_smem, int first_row,
                                              bool adds) {
  using ATile = typename Kernel::ATile;
  using BTile = typename Kernel::BTile;
  const uint64_t a = ATile::Descriptor(a_smem, first_row);
  const uint64_t b = BTile::Descriptor(b_smem, 0);
  FenceProducts();
#pragma unroll
  for (int product = 0; product < Kernel::kTileK / ATile::kDepth; ++product) {
#pragma unroll
    for (int part = 0; part < Kernel::kParts; ++part) {
      const uint64_t a_part = Advance(a, part * ATile::kChunkBytes + product * ATile::kDepthBytes);
      Multiply<typename Kernel::T, Kernel::kTileN, Kernel::kAMajor, Kernel::kBMajor>(
          acc[part], a_part, Advance(b, product * BTile::kDepthBytes), adds || product > 0);
    }
  }
  CommitProducts();
}

// Multiplies one tile and gives its slots back, but for the last one: a slot goes when the products
// of the step after it are issued, because then those that read it are done. The products of the
// last step may still run on return.
template <class Kernel>
__device__ __forceinline__ RingPosition<Kernel::kStages> MultiplyTile(
    const Sm90Work<Kernel>& work, float (&acc)[Kernel::kParts][Kernel::kTileN / 2],
    RingPosition<Kernel::kStages> at, int first_row, int lane) {
  if (work.num_steps == 0) {
#pragma unroll
    for (auto& part : acc) {
#pragma unroll
      for (float& x : part) {
        x = 0.0f;
      }
    }
  }
  int previous = 0;
  for (int step = 0; step < work.num_steps; ++step) {
    WaitBarrier(&work.smem.ring.full[at.stage], at.parity);
    if constexpr (!Kernel::kByTma) {
      // What threads have written becomes visible to wgmma. It is up to the one who reads: in those
      // who write, the fence would wait for the loads that they have under way.
      FenceAsyncProxy();
    }
    MultiplyStage<Kernel>(acc, work.smem.a[at.stage], work.smem.b[at.stage], first_row, step > 0);
    if (step > 0) {
      WaitForProducts<1>();
      ReleaseSlot<Kernel>(&work.smem.ring.empty[previous], lane);
    }
    previous = at.stage;
    at.Next();
  }
  return at;
}

// Finishes and stores what a warp has multiplied, from element (row, n_offset) of d on.
template <class Kernel>
__device__ __forceinline__ void StoreTile(WarpEpilogue& epilogue,
                                          const float (&acc)[Kernel::kParts][Kernel::kTileN / 2],
                                          int row, int n_offset, bool is_plain,
                                          const float* bias_smem) {
  using T = typename Kernel::T;
  if constexpr (Kernel::kOnlyPlain) {
    epilogue.StorePlain<T, true>(acc, row, n_offset);
  } else if (is_plain) {
    epilogue.StorePlain<T, false>(acc, row, n_offset);
  } else {
    epilogue.Store(acc, row, n_offset, bias_smem);
  }
}

// Multiplies, finishes and stores: all tiles of the CTA, or every second one.
template <class Kernel>
__device__ void Consume(const Sm90Work<Kernel>& work, const Sm90Plan& plan, int consumer,
                        int thread) {
  constexpr int kTurnBarrier = 1;
  constexpr int kBiasBarrier = kTurnBarrier + Kernel::kNumConsumers;
  const GemmParams& params = work.params;
  const int warp = thread / kWarpSize;
  const int lane = thread % kWarpSize;
  const int first_row = Kernel::kTurns ? 0 : consumer * Kernel::kConsumerRows;
  const bool has_bias = params.bias.data != nullptr;
  const bool is_plain = IsPlainProduct(params, DTypeOf<typename Kernel::T>());
  float* bias_smem = work.smem.bias[consumer];
  WarpEpilogue epilogue(params, &plan.d, &plan.z, work.smem.slots[consumer * 4 + warp], lane);
  float acc[Kernel::kParts][Kernel::kTileN / 2];
  RingPosition<Kernel::kStages> at;
  constexpr int kStep = Kernel::kTurns ? 2 : 1;
  int turn = Kernel::kTurns ? consumer : 0;
  for (TilePlace place = work.At(turn); work.Has(turn); turn += kStep) {
    const int m_offset = place.m_index * Kernel::kTileM;
    const int n_offset = place.n_index * Kernel::kTileN;
    const BatchPlace batch = work.BatchPlaceOf(place);
    const int row = m_offset + first_row + kWarpRows * warp;
    BiasInFlight<Kernel::kTileN> bias;
    epilogue.Begin(plan.d_matrices.At(batch));
    if constexpr (!Kernel::kOnlyPlain) {
      if (has_bias) {
        bias.Load(params, batch, n_offset, thread);
      }
      epilogue.LoadScalars(batch);
      epilogue.PrefetchTile<Kernel::kParts, Kernel::kTileN / 2>(row, n_offset);
    }
    if constexpr (Kernel::kTurns) {
      at = RingPosition<Kernel::kStages>::At(static_cast<int64_t>(turn) * work.num_steps);
      // Products of the tile before have been issued: these follow without a gap, and do not mix.
      if (turn > 0) {
        SyncNamedBarrier(kTurnBarrier + consumer, 2 * kWarpgroupSize);
      }
    }
    at = MultiplyTile<Kernel>(work, acc, at, first_row, lane);
    if constexpr (Kernel::kTurns) {
      if (work.Has(turn + 1)) {
        ArriveNamedBarrier(kTurnBarrier + 1 - consumer, 2 * kWarpgroupSize);
      }
    }
    // While the last products run.
    place = work.At(turn + kStep);
    WaitForProducts<0>();
    if (work.num_steps > 0) {
      const int last = at.stage == 0 ? Kernel::kStages - 1 : at.stage - 1;
      ReleaseSlot<Kernel>(&work.smem.ring.empty[last], lane);
    }
    if constexpr (!Kernel::kOnlyPlain) {
      if (has_bias) {
        bias.Publish(bias_smem, kBiasBarrier + consumer, thread);
      }
    }
    StoreTile<Kernel>(epilogue, acc, row, n_offset, is_plain, bias_smem);
  }
  epilogue.Finish();
}

template <class Kernel>
__global__ void __launch_bounds__(Kernel::kNumThreads, 1)
    Sm90DenseKernel(const __grid_constant__ GemmParams params,
                    const __grid_constant__ Sm90Plan plan) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  auto& smem = *reinterpret_cast<typename Kernel::Smem*>(DynamicSharedMemory<kSwizzleAtomBytes>());
  const int warpgroup = __shfl_sync(~0u, threadIdx.x / kWarpgroupSize, 0);
  const int lane = threadIdx.x % kWarpSize;
  if (threadIdx.x == 0) {
    MakeRing(smem.ring, Kernel::kByTma ? 1 : kLoadingWarps,
             Kernel::kReaders * 4 * Kernel::kClusterSize);
    FenceBarrierInit();
  }
  if (threadIdx.x == kWarpSize) {
    PrefetchMaps<Kernel>(params, plan);
  }
  SyncRings<Kernel>();
  const int num_steps = (params.k + Kernel::kTileK - 1) / Kernel::kTileK;
  const uint32_t rank = Kernel::kClusterSize > 1 ? ClusterRank() : 0;
  const Sm90Work<Kernel> work = {params, plan.loads, smem, rank, num_steps};
  if (warpgroup < Kernel::kNumProducers) {
    ReleaseRegisters<Kernel::kProducerRegisters>();
    if constexpr (!Kernel::kByTma) {
      ProduceByThreads(work, plan, threadIdx.x);
    } else if (threadIdx.x < kWarpSize) {
      Produce(work, lane);
    }
  } else {
    TakeRegisters<Kernel::kConsumerRegisters>();
    if constexpr (!Kernel::kByTma) {
      const int consumer_thread = threadIdx.x - Kernel::kNumProducers * kWarpgroupSize;
      PrefetchOperands(params, plan, consumer_thread, Kernel::kNumConsumers * kWarpgroupSize);
    }
    Consume(work, plan, warpgroup - Kernel::kNumProducers, threadIdx.x % kWarpgroupSize);
  }
#endif
}

template <class Kernel>
const char* LaunchSm90Dense(GemmParams params, cudaStream_t stream) {
  const bool is_plain = IsPlainProduct(params, DTypeOf<typename Kernel::T>());
  if (Kernel::kOnlyPlain && !(is_plain && IsAlignedForTma(params.d))) {
    return "this instance computes a · b alone, of rows that TMA can address";
  }
  Sm90Plan plan = {};
  const char* error = PlanWalk<Kernel>(params, &plan.loads.walk);
  if (error == nullptr) {
    if constexpr (Kernel::kByTma) {
      error = PrepareLoads<Kernel>(&params, stream, &plan.loads);
    } else {
      error = PlanThreadLoads(params, &plan);
    }
  }
  if (error == nullptr) {
    error = MakeOutputMaps(params, &plan);
  }
  if (error != nullptr) {
    return error;
  }
  return LaunchPersistent(Sm90DenseKernel<Kernel>, params, plan, plan.loads.walk.num_tiles,
                          Kernel::kClusterSize, Kernel::kNumThreads,
                          static_cast<int>(sizeof(typename Kernel::Smem)), stream);
}

template <typename T, int kTileM, int kTileN, int kStages, int kClusterM, int kClusterN,
          bool kTurns, Loads kLoads>
const char* Sm90Dense<T, kTileM, kTileN, kStages, kClusterM, kClusterN, kTurns, kLoads>::Launch(
    const GemmParams& params, cudaStream_t stream) {
  return LaunchForLayouts(params, [&](auto a_major, auto b_major) {
    return LaunchSm90Dense<
        Sm90DenseForm<T, decltype(a_major)::value, decltype(b_major)::value, kTileM, kTileN,
                      kStages, kClusterM, kClusterN, kTurns, kLoads>>(params, stream);
  });
}

}  // namespace jaxgemm
