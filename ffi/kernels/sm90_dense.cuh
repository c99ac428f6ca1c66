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
// tile, and stores those of a plain product while it multiplies the next (parts/packed_tile.cuh).
// All that is not a product but must be done for each tile is done while products run: to find the
// next one, and to load what the epilogue reads.
//
// Every m, n and k is taken. Operands that TMA cannot address are copied to the workspace first
// (parts/realign.cuh); such outputs are stored by ordinary stores. The one knob is the width of the
// strips in which it walks over tiles (parts/tile_walk.cuh).
//
// Limit now: power. At 4096³ the Tensor Cores are busy 9 cycles in 10, and the clock sinks.
#pragma once

#include "parts/bias_in_flight.cuh"
#include "parts/dense_multiplier.cuh"
#include "parts/fragment.cuh"
#include "parts/layouts.h"
#include "parts/operand_tile.cuh"
#include "parts/packed_tile.cuh"
#include "parts/persistent.cuh"
#include "parts/plain_product.cuh"
#include "parts/sm90_loads.cuh"
#include "parts/sm90_plan.cuh"

namespace jaxgemm {

// kTileM, kTileN: tile of a CTA. kClusterM, kClusterN: CTAs of a cluster side by side, one is 1.
template <typename T, int kTileM, int kTileN, int kStages, int kClusterM, int kClusterN,
          bool kTurns>
struct Sm90Dense {
  static const char* Launch(const GemmParams& params, cudaStream_t stream);
};

// The kernel for one pair of layouts.
template <typename T_, Major kAMajor_, Major kBMajor_, int kTileM_, int kTileN_, int kStages_,
          int kClusterM_, int kClusterN_, bool kTurns_>
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

  static constexpr int kNumConsumers = 2;
  static constexpr int kNumThreads = (kNumConsumers + 1) * kWarpgroupSize;
  // 128 threads of each role together hold at most 65536 registers.
  static constexpr int kProducerRegisters = 40;
  static constexpr int kConsumerRegisters = 232;

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
__device__ void Produce(const Sm90Work<Kernel>& work, const TilePlace& first, int lane) {
  using ATile = typename Kernel::ATile;
  using BTile = typename Kernel::BTile;
  constexpr uint32_t kStageBytes = ATile::kBytes + BTile::kBytes;
  const CachePolicy a_policy = work.PolicyOfA();
  const CachePolicy b_policy = work.PolicyOfB();
  auto& ring = work.smem.ring;
  RingPosition<Kernel::kStages> at;
  TilePlace place = first;
  WaitForKernelBefore();
  for (int turn = 0; work.Has(turn); place = work.At(++turn)) {
    const BatchPlace batch = work.BatchPlaceOf(place);
    const TileOrigin a = {place.m_index * Kernel::kTileM, work.loads.a_matrices.At(batch)};
    const TileOrigin b = {place.n_index * Kernel::kTileN, work.loads.b_matrices.At(batch)};
    for (int step = 0; step < work.loads.num_steps; ++step) {
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

// Multiplies and stores, where the plan is plain. In code of its own: it is short, and whoever runs
// first waits for every instruction.
template <class Kernel>
__device__ __forceinline__ void ConsumePlain(const Sm90Work<Kernel>& work, const Sm90Plan& plan,
                                             int consumer, int warp, int lane) {
  using Packed = PackedTile<typename Kernel::T, Kernel::kParts, Kernel::kTileN / 2>;
  const int num_steps = work.loads.num_steps;
  // A tile is stored while the next one is multiplied: with turns, by the other consumer.
  const bool stores_later = !Kernel::kTurns && num_steps > Packed::kNumSlices;
  WarpEpilogue epilogue(work.params, plan.outputs, work.smem.slots[consumer * 4 + warp], lane);
  Packed packed;
  DenseMultiplier<Kernel> multiplier(work, consumer, lane);
  while (multiplier.HasTile()) {
    const TilePlace place = multiplier.Place();
    int d_matrix = 0;
    const auto meanwhile = [&](int step) {
      if (step == 0) {
        d_matrix = plan.d_matrices.At(work.BatchPlaceOf(place));
      } else if constexpr (!Kernel::kTurns) {
        packed.StoreNext(epilogue);
      }
    };
    typename DenseMultiplier<Kernel>::Accumulators acc;
    // Other kernels take the long way then.
    if (Kernel::kOnlyPlain && num_steps == 0) {
      multiplier.SetToZero(acc);
      meanwhile(0);
    } else {
      multiplier.MultiplyTile(acc, meanwhile);
    }
    epilogue.Begin(d_matrix);
    packed.Take(acc, multiplier.Row(place, warp), place.n_index * Kernel::kTileN);
    if (!stores_later || !multiplier.HasTile()) {
      packed.template StoreAll<true>(epilogue);
    }
  }
  epilogue.Finish();
}

// Multiplies, finishes and stores.
template <class Kernel>
__device__ __forceinline__ void Consume(const Sm90Work<Kernel>& work, const Sm90Plan& plan,
                                        int consumer, int warp, int lane) {
  using T = typename Kernel::T;
  const GemmParams& params = work.params;
  const int thread = warp * kWarpSize + lane;
  const bool has_bias = params.bias.data != nullptr;
  float* bias_smem = work.smem.bias[consumer];
  WarpEpilogue epilogue(params, plan.outputs, work.smem.slots[consumer * 4 + warp], lane);
  DenseMultiplier<Kernel> multiplier(work, consumer, lane);
  while (multiplier.HasTile()) {
    const TilePlace place = multiplier.Place();
    const int n_offset = place.n_index * Kernel::kTileN;
    const int row = multiplier.Row(place, warp);
    BiasInFlight<Kernel::kTileN> bias;
    const auto meanwhile = [&](int step) {
      if (step > 0) {
        return;
      }
      const BatchPlace batch = work.BatchPlaceOf(place);
      epilogue.Begin(plan.d_matrices.At(batch));
      if (has_bias) {
        bias.Load(params, batch, n_offset, thread);
      }
      epilogue.LoadScalars(batch);
      epilogue.PrefetchTile<Kernel::kParts, Kernel::kTileN / 2>(row, n_offset);
    };
    typename DenseMultiplier<Kernel>::Accumulators acc;
    if (work.loads.num_steps == 0) {
      multiplier.SetToZero(acc);
      meanwhile(0);
    } else {
      multiplier.MultiplyTile(acc, meanwhile);
    }
    if (has_bias) {
      bias.Publish(bias_smem, kBiasBarrier + consumer, thread);
    }
    if (IsPlainProduct(params, DTypeOf<T>())) {
      PackedTile<T, Kernel::kParts, Kernel::kTileN / 2> packed;
      packed.Take(acc, row, n_offset);
      packed.template StoreAll<false>(epilogue);
    } else {
      epilogue.Store(acc, row, n_offset, bias_smem);
    }
  }
  epilogue.Finish();
}

template <class Kernel>
__global__ void __launch_bounds__(Kernel::kNumThreads, 1)
    Sm90DenseKernel(const __grid_constant__ GemmParams params,
                    const __grid_constant__ Sm90Plan plan) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  auto& smem = *reinterpret_cast<typename Kernel::Smem*>(KeptSharedMemory<kSwizzleAtomBytes>());
  // The compiler sees that it is the same for all lanes.
  const int warp = __shfl_sync(~0u, threadIdx.x / kWarpSize, 0);
  const int lane = threadIdx.x % kWarpSize;
  const uint32_t rank = Kernel::kClusterSize > 1 ? ClusterRank() : 0;
  const Sm90Work<Kernel> work = {params, plan.loads, smem, rank};
  // While one warp makes the ring, the one that loads finds its first tile.
  TilePlace first = {};
  if (warp == 0) {
    first = work.FoundAt(0);
  } else if (warp == 1 && lane == 0) {
    PrefetchMaps(plan);
  } else if (warp == 2 && lane == 0) {
    MakeRing(smem.ring, Kernel::kReaders * 4 * Kernel::kClusterSize);
    FenceBarrierInit();
  }
  SyncRings<Kernel>();
  // In this order the compiler puts the producer's code first, right behind what has just run. The
  // other way round it is 100 KB away, and the first loads of a cold kernel wait for it
  // (tests/aot/ffi.py).
  if (warp >= 4) {
    TakeRegisters<Kernel::kConsumerRegisters>();
    const int consumer = warp / 4 - 1;
    if (Kernel::kOnlyPlain || plan.is_plain) {
      ConsumePlain(work, plan, consumer, warp % 4, lane);
    } else if constexpr (!Kernel::kOnlyPlain) {
      Consume(work, plan, consumer, warp % 4, lane);
    }
  } else {
    ReleaseRegisters<Kernel::kProducerRegisters>();
    if (warp == 0) {
      Produce(work, first, lane);
    }
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
  const char* error = PlanWalk<Kernel>(params, &plan.loads);
  if (error == nullptr) {
    error = PrepareLoads<Kernel>(&params, stream, &plan.loads);
  }
  if (error == nullptr) {
    error = PlanOutputs<typename Kernel::T>(params, &plan);
  }
  if (error != nullptr) {
    return error;
  }
  return LaunchPersistent(Sm90DenseKernel<Kernel>, params, plan, plan.loads.walk.num_tiles,
                          Kernel::kClusterSize, Kernel::kNumThreads,
                          static_cast<int>(sizeof(typename Kernel::Smem)), plan.loads.has_copies,
                          stream);
}

template <typename T, int kTileM, int kTileN, int kStages, int kClusterM, int kClusterN,
          bool kTurns>
const char* Sm90Dense<T, kTileM, kTileN, kStages, kClusterM, kClusterN, kTurns>::Launch(
    const GemmParams& params, cudaStream_t stream) {
  return LaunchForLayouts(params, [&](auto a_major, auto b_major) {
    return LaunchSm90Dense<Sm90DenseForm<T, decltype(a_major)::value, decltype(b_major)::value,
                                         kTileM, kTileN, kStages, kClusterM, kClusterN, kTurns>>(
        params, stream);
  });
}

}  // namespace jaxgemm
