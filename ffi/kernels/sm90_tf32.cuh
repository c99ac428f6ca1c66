// cuda.sm90.tf32: rung 7 for float32, in TF32, where b or a is contiguous along n or m. For Hopper.
//
// wgmma reads elements of 4 bytes from shared memory only where they are contiguous along k. Its
// first operand can come from registers, though, where threads put it in any order. So the operand
// that is not contiguous along k goes through registers, and the other one stays where it is:
//
//     layout  registers              shared memory   the Tensor Cores compute
//     NN      b, contiguous along n  a               dᵀ = bᵀ · aᵀ
//     TT      a, contiguous along m  b               d = a · b
//     NT      a, contiguous along k  b               d = a · b
//
// TN has no operand for shared memory. Nothing is copied or transposed: TMA brings both tiles as
// they are (parts/operand_tile.cuh), and each thread reads the elements that its product needs, two
// at a time and without bank conflicts (parts/register_rows.h). What a stage asks of an SM, for 128
// rows from registers and 256 from shared memory, in cycles (128 bytes of shared memory a cycle):
//
//     products 1024    TMA writes 384    wgmma reads 512    threads read 128
//
// Shared memory is as busy as the Tensor Cores, as it is in cuda.sm90.dense. 256 x 128 would read
// twice as much through registers. Bytes from L2 for a tile of a CTA, with two CTAs that each load
// half of what they both have in shared memory:
//
//     bytes = 4 · k · (128 + 256 / 2)      flops = 2 · 128 · 256 · k
//
// that is 64 flops a byte, so 413 TFLOP/s ask 6.5 TB/s of the L2 cache.
//
// Fragments of a stage are read into one of two sets of registers while products of the stage
// before run from the other. So a slot of the operand from registers is read, and free again, long
// before the other's: each operand has a ring of its own (parts/ring.cuh), which gives loads more
// time:
//
//     barrier   from → to                 protects
//     full      producer → consumers      a slot before it is read
//     empty     consumers → producer      a slot before it is overwritten
//
// In one warpgroup a warp for each operand loads, two warpgroups multiply, each 64 of the rows from
// registers. d is stored straight from registers (parts/pair_epilogue.cuh), while producers load
// the first stages of the next tile.
//
// Every m, n and k is taken. Operands that TMA cannot address are copied to the workspace first
// (parts/realign.cuh). Its one knob is the width of the strips in which it walks over tiles
// (parts/tile_walk.cuh). Elements are rounded to TF32 as TMA loads them.
#pragma once

#include <type_traits>

#include "parts/layouts.h"
#include "parts/operand_tile.cuh"
#include "parts/pair_epilogue.cuh"
#include "parts/persistent.cuh"
#include "parts/register_rows.h"
#include "parts/sm90_loads.cuh"
#include "ptx/matrix.cuh"
#include "ptx/word.cuh"

namespace jaxgemm {

// kColumns: columns of a CTA's product on the Tensor Cores, of the operand in shared memory.
// kRowStages, kColumnStages: slots for the operand from registers, and for that in shared memory.
// kClusterSize: CTAs that share the latter.
template <int kColumns, int kRowStages, int kColumnStages, int kClusterSize>
struct Sm90Tf32 {
  static const char* Launch(const GemmParams& params, cudaStream_t stream);
};

// The kernel for one pair of layouts.
template <Major kAMajor, Major kBMajor, int kColumns_, int kRowStages_, int kColumnStages_,
          int kClusterSize_>
struct Sm90Tf32Form {
  static constexpr int kColumns = kColumns_;
  static constexpr int kRowStages = kRowStages_;
  static constexpr int kColumnStages = kColumnStages_;
  static constexpr int kClusterSize = kClusterSize_;

  static constexpr int kNumConsumers = 2;
  static constexpr int kNumThreads = (kNumConsumers + 1) * kWarpgroupSize;
  // 128 threads of each role together hold at most 65536 registers.
  static constexpr int kProducerRegisters = 24;
  static constexpr int kConsumerRegisters = 240;

  // Whether b is the operand from registers, and the product the transpose of d.
  static constexpr bool kTransposed = kBMajor == Major::kMN;
  static constexpr Major kRowMajor = kTransposed ? kBMajor : kAMajor;
  static constexpr Major kColumnMajor = kTransposed ? kAMajor : kBMajor;
  static_assert(kColumnMajor == Major::kK, "wgmma reads elements of 4 bytes along k only");

  static constexpr int kRows = 64 * kNumConsumers;
  static constexpr int kTileM = kTransposed ? kColumns : kRows;
  static constexpr int kTileN = kTransposed ? kRows : kColumns;
  static constexpr int kTileK = kRowElements<float>;
  static constexpr int kClusterM = kTransposed ? 1 : kClusterSize;
  static constexpr int kClusterN = kTransposed ? kClusterSize : 1;
  static_assert(kClusterSize <= 2 && kRowStages >= 2 && kColumnStages >= 2,
                "the forms that are written and tested");

  using RowTile = OperandTile<float, kRowMajor, kRows, 1>;
  using ColumnTile = OperandTile<float, kColumnMajor, kColumns, kClusterSize>;
  using ATile = std::conditional_t<kTransposed, ColumnTile, RowTile>;
  using BTile = std::conditional_t<kTransposed, RowTile, ColumnTile>;
  using LaneRows = RegisterRows<kRowMajor>;
  static constexpr int kProducts = kTileK / ColumnTile::kDepth;

  struct alignas(kSwizzleAtomBytes) Smem {
    alignas(kSwizzleAtomBytes) char rows[kRowStages][RowTile::kBytes];
    char columns[kColumnStages][ColumnTile::kBytes];
    Ring<kRowStages> row_ring;
    Ring<kColumnStages> column_ring;
  };

  static_assert(sizeof(Smem) <= 227 * 1024, "a CTA has 227 KiB of shared memory");
};

// Loads tiles of one operand into its ring, as slots become empty. One warp. kIsA: whether it is a.
template <class Kernel, bool kIsA, class Tile, int kStages>
__device__ void Produce(const Sm90Work<Kernel>& work, Ring<kStages>& ring,
                        char (&slots)[kStages][Tile::kBytes], const TilePlace& first, int lane) {
  const Sm90Loads& loads = work.loads;
  const CachePolicy policy = kIsA ? work.PolicyOfA() : work.PolicyOfB();
  RingPosition<kStages> at;
  TilePlace place = first;
  WaitForKernelBefore();
  for (int turn = 0; work.Has(turn); place = work.At(++turn)) {
    const BatchPlace batch = work.BatchPlaceOf(place);
    const TileOrigin origin =
        kIsA ? TileOrigin{place.m_index * Kernel::kTileM, loads.a_matrices.At(batch)}
             : TileOrigin{place.n_index * Kernel::kTileN, loads.b_matrices.At(batch)};
    for (int step = 0; step < work.loads.num_steps; ++step) {
      uint64_t* full = &ring.full[at.stage];
      WaitBarrierGuarded(&ring.empty[at.stage], at.parity ^ 1);
      if (lane == 0) {
        ArriveExpectBytes(full, Tile::kBytes);
      }
      Tile::Load(kIsA ? &loads.a : &loads.b, origin, step * Kernel::kTileK, lane, work.rank,
                 slots[at.stage], full, policy);
      at.Next();
    }
  }
  // No CTA may exit while a peer can still arrive at its barriers.
  TakeSlotsBack(ring, at);
}

// One consumer's way through the rings.
template <class Kernel>
class Multiplier {
 public:
  // `warp` is that of the consumer.
  __device__ __forceinline__ Multiplier(const Sm90Work<Kernel>& work, int consumer, int warp)
      : smem_(work.smem),
        num_steps_(work.loads.num_steps),
        part_(consumer * Kernel::LaneRows::kPartBytes),
        warp_(warp),
        lane_(LaneId()) {}

  // Multiplies this consumer's rows of the next tile and gives its slots back.
  __device__ __forceinline__ void MultiplyTile(float (&acc)[Kernel::kColumns / 2]) {
#pragma unroll
    for (float& x : acc) {
      x = 0.0f;
    }
    if (num_steps_ == 0) {
      return;
    }
    // Of even steps and of odd ones: registers of which products run are left alone.
    Fragments even;
    Fragments odd;
    LoadFragments(even);
    for (int step = 0;
         MultiplyStage(acc, even, odd, step) && MultiplyStage(acc, odd, even, step + 1);
         step += 2) {
    }
    WaitForProducts<0>();
    ReleaseColumns();
  }

 private:
  // Of the products of a stage: see MultiplyTf32.
  using Fragments = uint32_t[Kernel::kProducts][4];

  // Issues the products of a step from its fragments, and loads those of the next while they run.
  // Returns whether there is a next one.
  __device__ __forceinline__ bool MultiplyStage(float (&acc)[Kernel::kColumns / 2],
                                                const Fragments& fragments, Fragments& next,
                                                int step) {
    using Tile = typename Kernel::ColumnTile;
    WaitBarrier(&smem_.column_ring.full[columns_.stage], columns_.parity);
    const uint64_t descriptor = Tile::Descriptor(smem_.columns[columns_.stage], 0);
    FenceProducts();
#pragma unroll
    for (int product = 0; product < Kernel::kProducts; ++product) {
      MultiplyTf32<Kernel::kColumns>(acc, fragments[product],
                                     Advance(descriptor, product * Tile::kDepthBytes));
    }
    CommitProducts();
    // Products have been issued from all fragments, so these have been read.
    ReleaseRows();
    // Those of the step before are done: with their columns, and with registers of `next`.
    WaitForProducts<1>();
    if (step > 0) {
      ReleaseColumns();
    }
    last_column_stage_ = columns_.stage;
    columns_.Next();
    if (step + 1 == num_steps_) {
      return false;
    }
    LoadFragments(next);
    return true;
  }

  // Loads this consumer's rows of the next stage once they are there.
  __device__ __forceinline__ void LoadFragments(Fragments& fragments) const {
    WaitBarrier(&smem_.row_ring.full[rows_.stage], rows_.parity);
    const char* rows = smem_.rows[rows_.stage] + part_;
#pragma unroll
    for (int product = 0; product < Kernel::kProducts; ++product) {
      const int place = Kernel::LaneRows::Place(warp_, lane_, product);
      uint32_t (&fragment)[4] = fragments[product];
      if constexpr (Kernel::kRowMajor == Major::kK) {
        LoadMatrices(fragment, rows + place);
      } else {
        const int upper_place = Kernel::LaneRows::PlaceOfUpperHalf(place);
        LoadSharedWords(fragment[0], fragment[1], SharedAddress(rows + place));
        LoadSharedWords(fragment[2], fragment[3], SharedAddress(rows + upper_place));
      }
    }
  }

  // Gives back the slot that fragments were loaded from.
  __device__ __forceinline__ void ReleaseRows() {
    __syncwarp();
    if (lane_ == 0) {
      ArriveBarrier(&smem_.row_ring.empty[rows_.stage]);
    }
    rows_.Next();
  }

  // Gives back the slot that products of the step before have read.
  __device__ __forceinline__ void ReleaseColumns() const {
    ReleaseSlot<Kernel>(&smem_.column_ring.empty[last_column_stage_], lane_);
  }

  typename Kernel::Smem& smem_;
  const int num_steps_;
  // Bytes of a tile before this consumer's rows.
  const int part_;
  const int warp_;
  const int lane_;
  RingPosition<Kernel::kRowStages> rows_;
  RingPosition<Kernel::kColumnStages> columns_;
  int last_column_stage_ = 0;
};

// Multiplies, finishes and stores this consumer's part of all tiles of the CTA.
template <class Kernel>
__device__ void Consume(const Sm90Work<Kernel>& work, int consumer, int warp) {
  using LaneRows = typename Kernel::LaneRows;
  Multiplier<Kernel> multiplier(work, consumer, warp);
  for (int turn = 0; work.Has(turn); ++turn) {
    const TilePlace place = work.At(turn);
    const PairEpilogue<Kernel::kTransposed, LaneRows::kSecondRow> epilogue(
        work.params, work.BatchPlaceOf(place));
    float acc[Kernel::kColumns / 2];
    multiplier.MultiplyTile(acc);
    // Where this lane's first accumulator is in the product.
    const int lane = LaneId();
    const int row = 64 * consumer + LaneRows::First(warp, lane);
    const int column = lane % 4 * 2;
    epilogue.Store(acc, place.m_index * Kernel::kTileM + (Kernel::kTransposed ? column : row),
                   place.n_index * Kernel::kTileN + (Kernel::kTransposed ? row : column));
  }
}

template <class Kernel>
__global__ void __launch_bounds__(Kernel::kNumThreads, 1)
    Sm90Tf32Kernel(const __grid_constant__ GemmParams params,
                   const __grid_constant__ Sm90Loads loads) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  auto& smem = *reinterpret_cast<typename Kernel::Smem*>(KeptSharedMemory<kSwizzleAtomBytes>());
  // The compiler sees that it is the same for all lanes.
  const int warp = __shfl_sync(~0u, threadIdx.x / kWarpSize, 0);
  const int lane = threadIdx.x % kWarpSize;
  const uint32_t rank = Kernel::kClusterSize > 1 ? ClusterRank() : 0;
  const Sm90Work<Kernel> work = {params, loads, smem, rank};
  // While one warp makes the rings, those that load find their first tile.
  TilePlace first = {};
  if (warp < 2) {
    first = work.FoundAt(0);
  } else if (warp == 2 && lane == 0) {
    PrefetchMaps(loads);
  } else if (warp == 3 && lane == 0) {
    constexpr int kNumWarps = Kernel::kNumConsumers * 4;
    MakeRing(smem.row_ring, kNumWarps);
    MakeRing(smem.column_ring, kNumWarps * Kernel::kClusterSize);
    FenceBarrierInit();
  }
  SyncRings<Kernel>();
  // In this order the compiler puts the producers' code first: see kernels/sm90_dense.cuh.
  if (warp >= 4) {
    TakeRegisters<Kernel::kConsumerRegisters>();
    Consume(work, warp / 4 - 1, warp % 4);
  } else {
    constexpr bool kTransposed = Kernel::kTransposed;
    ReleaseRegisters<Kernel::kProducerRegisters>();
    if (warp == 0) {
      Produce<Kernel, !kTransposed, typename Kernel::RowTile>(work, smem.row_ring, smem.rows, first,
                                                              lane);
    } else if (warp == 1) {
      Produce<Kernel, kTransposed, typename Kernel::ColumnTile>(work, smem.column_ring,
                                                                smem.columns, first, lane);
    }
  }
#endif
}

template <class Kernel>
const char* LaunchSm90Tf32(GemmParams params, cudaStream_t stream) {
  Sm90Loads loads = {};
  const char* error = PlanWalk<Kernel>(params, &loads);
  if (error == nullptr) {
    error = PrepareLoads<Kernel>(&params, stream, &loads);
  }
  if (error != nullptr) {
    return error;
  }
  return LaunchPersistent(Sm90Tf32Kernel<Kernel>, params, loads, loads.walk.num_tiles,
                          Kernel::kClusterSize, Kernel::kNumThreads,
                          static_cast<int>(sizeof(typename Kernel::Smem)), loads.has_copies,
                          stream);
}

template <int kColumns, int kRowStages, int kColumnStages, int kClusterSize>
const char* Sm90Tf32<kColumns, kRowStages, kColumnStages, kClusterSize>::Launch(
    const GemmParams& params, cudaStream_t stream) {
  return LaunchForLayouts(params, [&](auto a_major, auto b_major) -> const char* {
    constexpr Major kAMajor = decltype(a_major)::value;
    constexpr Major kBMajor = decltype(b_major)::value;
    if constexpr (kAMajor == Major::kMN && kBMajor == Major::kMN) {
      return "neither a nor b is contiguous along k";
    } else {
      return LaunchSm90Tf32<
          Sm90Tf32Form<kAMajor, kBMajor, kColumns, kRowStages, kColumnStages, kClusterSize>>(
          params, stream);
    }
  });
}

}  // namespace jaxgemm
