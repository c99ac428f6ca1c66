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
// for 128 x 256: 128 flops a byte, so 800 TFLOP/s ask 6.3 TB/s of the L2 cache.
//
//     barrier   from → to                    protects
//     full      producer → consumers         a slot of the ring before it is read
//     empty     consumers → producer         a slot of the ring before it is overwritten
//     turn      consumer → other consumer    order of products, if consumers take whole tiles in turns
//     slots     a warp → itself              staging of d and z: bulk-group wait, no barrier
//
// The grid is persistent, and the ring goes on across tiles: while consumers store one, the producer
// already loads the next. With kTurns consumers take whole tiles in turns, so that one stores its
// tile while the other multiplies; without, each multiplies half of the rows of every tile.
//
// kAnyStride takes every m, n, k and row stride: rows that TMA cannot address are loaded and stored
// in eight classes (parts/row_classes.cuh), which leaves the rows of some tiles in another order.
//
//     a, b       in classes  what comes out in another order, and who knows
//     kK,  kMN   m; k        rows of d: the epilogue. k of b only: a goes through registers, where
//                            its k is brought into the same order (LoadPermuted)
//     kK,  kK    m; n        rows and columns of d: the epilogue
//     kMN, kMN   k; k        k of both, which does not matter
//     kMN, kK    -; n        columns of d: the epilogue. a itself must be aligned
//
// Limit now: power. At 4096³ the Tensor Cores are busy 9 cycles in 10, and the clock sinks.
#pragma once

#include "parts/fragment.cuh"
#include "parts/operand_tile.cuh"
#include "parts/persistent.cuh"
#include "parts/ring.cuh"
#include "parts/tensor_map.cuh"
#include "parts/tile_walk.cuh"

namespace jaxgemm {

// kTileM, kTileN: tile of a CTA. kClusterM, kClusterN: CTAs side by side in a cluster, one of them 1.
template <typename T_, Major kAMajor_, Major kBMajor_, bool kAnyStride_, int kTileM_, int kTileN_,
          int kStages_, int kClusterM_, int kClusterN_, bool kTurns_>
struct Sm90Dense {
  using T = T_;
  static constexpr Major kAMajor = kAMajor_;
  static constexpr Major kBMajor = kBMajor_;
  static constexpr bool kAnyStride = kAnyStride_;
  static constexpr int kTileM = kTileM_;
  static constexpr int kTileN = kTileN_;
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

  static constexpr bool kAInClasses = kAnyStride && (kAMajor == Major::kK || kBMajor == Major::kMN);
  static constexpr bool kBInClasses = kAnyStride;
  static constexpr bool kAThroughRegisters =
      kAnyStride && kAMajor == Major::kK && kBMajor == Major::kMN;
  // Whether a slot is still being read when the products of its step are issued.
  static constexpr bool kKeepsSlot = !kAThroughRegisters;
  using ATile = OperandTile<kAMajor, kAInClasses, kTileM, kClusterN>;
  using BTile = OperandTile<kBMajor, kBInClasses, kTileN, kClusterM>;
  using Layout = FragmentLayout<kTileM, kTileN, kAInClasses && kAMajor == Major::kK,
                                kBInClasses && kBMajor == Major::kK, kAnyStride>;

  static_assert(kTileM % (64 * kReaders) == 0, "a consumer multiplies whole parts of 64 rows");
  static_assert(kParts * kTileN <= 256, "a thread has registers for 128 accumulators");
  static_assert(kClusterSize <= 2 && kStages >= 2, "the forms that are written and tested");

  struct Maps {
    CUtensorMap a[ATile::kNumMaps];
    CUtensorMap b[BTile::kNumMaps];
    CUtensorMap d[Layout::kNumMaps];
    CUtensorMap z[Layout::kNumMaps];
  };

  struct alignas(kSwizzleAtomBytes) Smem {
    alignas(kSwizzleAtomBytes) char a[kStages][ATile::kBytes];
    char b[kStages][BTile::kBytes];
    char slots[kNumConsumers * 4][kSlotsPerWarp * kSlotBytes];
    float bias[kNumConsumers][kTileN];
    Ring<kStages> ring;
  };

  static const char* Launch(const GemmParams& params, cudaStream_t stream);
};

// What every role knows of the problem.
template <class Kernel>
struct Sm90Work {
  const GemmParams& params;
  const typename Kernel::Maps& maps;
  typename Kernel::Smem& smem;
  TileWalk walk;
  uint32_t rank;
  int num_steps;

  // The tile of this CTA in its turn `turn`.
  __device__ __forceinline__ bool Has(int turn) const { return Position(turn) < walk.num_tiles; }
  __device__ __forceinline__ TilePlace At(int turn) const {
    TilePlace place = walk.At(Position(turn));
    place.m_index = place.m_index * Kernel::kClusterM + (Kernel::kClusterM > 1 ? rank : 0);
    place.n_index = place.n_index * Kernel::kClusterN + (Kernel::kClusterN > 1 ? rank : 0);
    return place;
  }

  // Which of its own matrices an operand contributes.
  __device__ __forceinline__ int OwnMatrix(const Tensor& tensor, int64_t matrix, int64_t rows,
                                           int64_t columns) const {
    if (params.num_batch_axes == 0) {
      return 0;
    }
    return static_cast<int>(MatrixOffset(params, tensor, matrix) / (rows * columns));
  }

 private:
  __device__ __forceinline__ int64_t Position(int turn) const {
    const int clusters = gridDim.x / Kernel::kClusterSize;
    return static_cast<int64_t>(turn) * clusters + blockIdx.x / Kernel::kClusterSize;
  }
};

// Loads tiles of a and b into the ring, as slots become empty. One warp.
template <class Kernel>
__device__ void Produce(const Sm90Work<Kernel>& work, int lane) {
  using ATile = typename Kernel::ATile;
  using BTile = typename Kernel::BTile;
  constexpr uint32_t kStageBytes = ATile::kBytes + BTile::kBytes;
  const GemmParams& params = work.params;
  const int a_rows = Kernel::kAMajor == Major::kK ? params.m : params.k;
  const int b_rows = Kernel::kBMajor == Major::kK ? params.n : params.k;
  if (lane < ATile::kNumMaps) {
    PrefetchTensorMap(&work.maps.a[lane]);
  }
  if (lane < BTile::kNumMaps) {
    PrefetchTensorMap(&work.maps.b[lane]);
  }
  auto& ring = work.smem.ring;
  RingPosition<Kernel::kStages> at;
  for (int turn = 0; work.Has(turn); ++turn) {
    const TilePlace place = work.At(turn);
    const TileOrigin a = {place.m_index * Kernel::kTileM,
                          work.OwnMatrix(params.a, place.matrix, params.m, params.k)};
    const TileOrigin b = {place.n_index * Kernel::kTileN,
                          work.OwnMatrix(params.b, place.matrix, params.n, params.k)};
    for (int step = 0; step < work.num_steps; ++step) {
      uint64_t* full = &ring.full[at.stage];
      WaitBarrierGuarded(&ring.empty[at.stage], at.parity ^ 1);
      if (lane == 0) {
        ArriveExpectBytes(full, kStageBytes);
      }
      const int k = step * kTileK;
      ATile::Load(work.maps.a, params.a, a_rows, a, k, lane, work.rank, work.smem.a[at.stage], full);
      BTile::Load(work.maps.b, params.b, b_rows, b, k, lane, work.rank, work.smem.b[at.stage], full);
      at.Next();
    }
  }
  // Takes all slots back: no CTA may exit while a peer can still arrive at its barriers.
  for (int stage = 0; stage < Kernel::kStages; ++stage) {
    WaitBarrierGuarded(&ring.empty[at.stage], at.parity ^ 1);
    at.Next();
  }
}

// The fragments of 64 rows of a K-major tile for four products of depth 16, with k in the order of
// an MN-major tile in row classes: the products take k = r, r + 8, …, r + 56 and then those of r + 1,
// for r = 0, 2, 4, 6. Lane 4g + q has depths 2q, 2q + 1, 2q + 8 and 2q + 9, which are elements r and
// r + 1 of the 16-byte chunks 2q and 2q + 1 of its rows: of each row it needs just these two chunks.
__device__ __forceinline__ void LoadPermuted(uint32_t (&fragments)[4][4], const char* rows,
                                             int lane) {
  const int quad = lane % 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = lane / 4 + 8 * half;
    const char* from = rows + row * kSwizzleBytes;
    const uint4 even = *reinterpret_cast<const uint4*>(from + ((2 * quad) ^ row % 8) * 16);
    const uint4 odd = *reinterpret_cast<const uint4*>(from + ((2 * quad + 1) ^ row % 8) * 16);
    const uint32_t even_words[4] = {even.x, even.y, even.z, even.w};
    const uint32_t odd_words[4] = {odd.x, odd.y, odd.z, odd.w};
#pragma unroll
    for (int product = 0; product < 4; ++product) {
      // The lower halves are elements 2 · product of both chunks, the upper ones the next.
      fragments[product][half] = __byte_perm(even_words[product], odd_words[product], 0x5410);
      fragments[product][2 + half] = __byte_perm(even_words[product], odd_words[product], 0x7632);
    }
  }
}

// Issues the products of one stage, for this consumer's rows.
template <class Kernel>
__device__ __forceinline__ void MultiplyStage(float (&acc)[Kernel::kParts][Kernel::kTileN / 2],
                                              const char* a_smem, const char* b_smem, int first_row,
                                              int warp, int lane, bool adds) {
  using T = typename Kernel::T;
  using ATile = typename Kernel::ATile;
  using BTile = typename Kernel::BTile;
  constexpr int kProducts = kTileK / 16;
  const uint64_t b = BTile::Descriptor(b_smem, 0);
  if constexpr (Kernel::kAThroughRegisters) {
    uint32_t fragments[Kernel::kParts][kProducts][4];
#pragma unroll
    for (int part = 0; part < Kernel::kParts; ++part) {
      const int row = first_row + 64 * part + kWarpRows * warp;
      LoadPermuted(fragments[part], a_smem + row * kSwizzleBytes, lane);
    }
    FenceProducts();
#pragma unroll
    for (int product = 0; product < kProducts; ++product) {
#pragma unroll
      for (int part = 0; part < Kernel::kParts; ++part) {
        MultiplyRegisters<T, Kernel::kTileN, Kernel::kBMajor>(
            acc[part], fragments[part][product], Advance(b, product * BTile::kDepthBytes),
            adds || product > 0);
      }
    }
    CommitProducts();
    // The fragments belong to the products until these are done. Meanwhile the other consumer's
    // products keep the Tensor Cores busy.
    WaitForProducts<0>();
  } else {
    const uint64_t a = ATile::Descriptor(a_smem, first_row);
    FenceProducts();
#pragma unroll
    for (int product = 0; product < kProducts; ++product) {
#pragma unroll
      for (int part = 0; part < Kernel::kParts; ++part) {
        const uint64_t a_part =
            Advance(a, part * ATile::kChunkBytes + product * ATile::kDepthBytes);
        Multiply<T, Kernel::kTileN, Kernel::kAMajor, Kernel::kBMajor>(
            acc[part], a_part, Advance(b, product * BTile::kDepthBytes), adds || product > 0);
      }
    }
    CommitProducts();
  }
}

// Tells the producers of all CTAs that fill a slot that this warp has read it.
template <class Kernel>
__device__ __forceinline__ void ReleaseSlot(const Sm90Work<Kernel>& work, int stage, int lane) {
  __syncwarp();
  if (lane < Kernel::kClusterSize) {
    ArriveAtPeer(&work.smem.ring.empty[stage], lane);
  }
}

// Multiplies one tile and gives its slots back, but for the last one where kKeepsSlot: a slot goes
// when the products of the step after it are issued, because then those that read it are done. The
// products of the last step may still run on return.
template <class Kernel>
__device__ __forceinline__ RingPosition<Kernel::kStages> MultiplyTile(
    const Sm90Work<Kernel>& work, float (&acc)[Kernel::kParts][Kernel::kTileN / 2],
    RingPosition<Kernel::kStages> at, int first_row, int warp, int lane) {
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
    MultiplyStage<Kernel>(acc, work.smem.a[at.stage], work.smem.b[at.stage], first_row, warp, lane,
                          step > 0);
    if constexpr (!Kernel::kKeepsSlot) {
      ReleaseSlot(work, at.stage, lane);
    } else if (step > 0) {
      WaitForProducts<1>();
      ReleaseSlot(work, previous, lane);
    }
    previous = at.stage;
    at.Next();
  }
  return at;
}

// The bias of a tile, on its way from global to shared memory: thread i of a consumer holds columns
// i, i + 128, … while the tile is multiplied.
template <int kTileN>
struct BiasInFlight {
  static constexpr int kCount = (kTileN + kWarpgroupSize - 1) / kWarpgroupSize;
  float values[kCount];

  __device__ __forceinline__ void Load(const GemmParams& params, int64_t matrix, int n_offset,
                                       int thread) {
    const int64_t offset = MatrixOffset(params, params.bias, matrix);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int column = n_offset + thread + i * kWarpgroupSize;
      values[i] = column < params.n
                      ? LoadElement(params.bias.data, params.bias.dtype, offset + column)
                      : 0.0f;
    }
  }

  // For all warps of the consumer to read.
  __device__ __forceinline__ void Publish(float* smem, int barrier, int thread) const {
    // All have read that of the tile before.
    SyncNamedBarrier(barrier, kWarpgroupSize);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (thread + i * kWarpgroupSize < kTileN) {
        smem[thread + i * kWarpgroupSize] = values[i];
      }
    }
    SyncNamedBarrier(barrier, kWarpgroupSize);
  }
};

// Multiplies, finishes and stores: all tiles of the CTA, or every second one.
template <class Kernel>
__device__ void Consume(const Sm90Work<Kernel>& work, int consumer, int thread) {
  constexpr int kTurnBarrier = 1;
  constexpr int kBiasBarrier = kTurnBarrier + Kernel::kNumConsumers;
  const GemmParams& params = work.params;
  const int warp = thread / kWarpSize;
  const int lane = thread % kWarpSize;
  const int first_row = Kernel::kTurns ? 0 : consumer * Kernel::kConsumerRows;
  const bool has_bias = params.bias.data != nullptr;
  float* bias_smem = work.smem.bias[consumer];
  WarpEpilogue<typename Kernel::Layout> epilogue(params, work.maps.d, work.maps.z,
                                                 work.smem.slots[consumer * 4 + warp], lane);
  float acc[Kernel::kParts][Kernel::kTileN / 2];
  RingPosition<Kernel::kStages> at;
  for (int turn = Kernel::kTurns ? consumer : 0; work.Has(turn); turn += Kernel::kTurns ? 2 : 1) {
    const TilePlace place = work.At(turn);
    const int m_offset = place.m_index * Kernel::kTileM;
    const int n_offset = place.n_index * Kernel::kTileN;
    BiasInFlight<Kernel::kTileN> bias;
    if (has_bias) {
      bias.Load(params, place.matrix, n_offset, thread);
    }
    epilogue.Begin(place.matrix, work.OwnMatrix(params.d, place.matrix, params.m, params.n));
    if constexpr (Kernel::kTurns) {
      at = RingPosition<Kernel::kStages>::At(static_cast<int64_t>(turn) * work.num_steps);
      // Products of the tile before have been issued: these follow without a gap, and do not mix.
      if (turn > 0) {
        SyncNamedBarrier(kTurnBarrier + consumer, 2 * kWarpgroupSize);
      }
    }
    at = MultiplyTile<Kernel>(work, acc, at, first_row, warp, lane);
    if constexpr (Kernel::kTurns) {
      if (work.Has(turn + 1)) {
        ArriveNamedBarrier(kTurnBarrier + 1 - consumer, 2 * kWarpgroupSize);
      }
    }
    WaitForProducts<0>();
    if (Kernel::kKeepsSlot && work.num_steps > 0) {
      ReleaseSlot(work, at.stage == 0 ? Kernel::kStages - 1 : at.stage - 1, lane);
    }
    if (has_bias) {
      bias.Publish(bias_smem, kBiasBarrier + consumer, thread);
    }
#pragma unroll
    for (int part = 0; part < Kernel::kParts; ++part) {
      const int warp_row = first_row + 64 * part + kWarpRows * warp;
      epilogue.Store(acc[part], warp_row, m_offset, n_offset, bias_smem);
    }
  }
  epilogue.Finish();
}

template <class Kernel>
__global__ __launch_bounds__(Kernel::kNumThreads, 1) void Sm90DenseKernel(
    const __grid_constant__ GemmParams params,
    const __grid_constant__ typename Kernel::Maps maps, const TileWalk walk) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ char smem_bytes[];
  auto& smem = *reinterpret_cast<typename Kernel::Smem*>(smem_bytes);
  const int warpgroup = __shfl_sync(~0u, threadIdx.x / kWarpgroupSize, 0);
  const int lane = threadIdx.x % kWarpSize;
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < Kernel::kStages; ++stage) {
      InitBarrier(&smem.ring.full[stage], 1);
      InitBarrier(&smem.ring.empty[stage], Kernel::kReaders * 4 * Kernel::kClusterSize);
    }
    FenceBarrierInit();
  }
  // No copy may signal a peer's barrier before it is made.
  if constexpr (Kernel::kClusterSize > 1) {
    SyncCluster();
  } else {
    __syncthreads();
  }
  const int num_steps = (params.k + kTileK - 1) / kTileK;
  const uint32_t rank = Kernel::kClusterSize > 1 ? ClusterRank() : 0;
  const Sm90Work<Kernel> work = {params, maps, smem, walk, rank, num_steps};
  if (warpgroup == 0) {
    ReleaseRegisters<Kernel::kProducerRegisters>();
    if (threadIdx.x < kWarpSize) {
      Produce(work, lane);
    }
  } else {
    TakeRegisters<Kernel::kConsumerRegisters>();
    Consume(work, warpgroup - 1, threadIdx.x % kWarpgroupSize);
  }
#endif
}

// The maps of all operands and outputs. Returns null, or what went wrong.
template <class Kernel>
const char* MakeMaps(const GemmParams& params, typename Kernel::Maps* maps) {
  const StoredSize a_size = Kernel::kAMajor == Major::kK ? StoredSize{params.m, params.k}
                                                         : StoredSize{params.k, params.m};
  const StoredSize b_size = Kernel::kBMajor == Major::kK ? StoredSize{params.n, params.k}
                                                         : StoredSize{params.k, params.n};
  const StoredSize d_size = {params.m, params.n};
  using ATile = typename Kernel::ATile;
  using BTile = typename Kernel::BTile;
  using Layout = typename Kernel::Layout;
  const char* error = nullptr;
  // With k = 0 there is nothing to load.
  if (params.k > 0) {
    error = MakeTensorMaps(params, params.a, a_size, ATile::kBoxRows, ATile::kNumMaps, maps->a);
    if (error == nullptr) {
      error = MakeTensorMaps(params, params.b, b_size, BTile::kBoxRows, BTile::kNumMaps, maps->b);
    }
  }
  if (error == nullptr) {
    error = MakeTensorMaps(params, params.d, d_size, Layout::kBoxRows, Layout::kNumMaps, maps->d);
  }
  if (error == nullptr && params.z.data != nullptr) {
    error = MakeTensorMaps(params, params.z, d_size, Layout::kBoxRows, Layout::kNumMaps, maps->z);
  }
  return error;
}

template <typename T_, Major kAMajor_, Major kBMajor_, bool kAnyStride_, int kTileM_, int kTileN_,
          int kStages_, int kClusterM_, int kClusterN_, bool kTurns_>
const char* Sm90Dense<T_, kAMajor_, kBMajor_, kAnyStride_, kTileM_, kTileN_, kStages_, kClusterM_,
                      kClusterN_, kTurns_>::Launch(const GemmParams& params, cudaStream_t stream) {
  constexpr int kDefaultStripWidth = 8;
  Maps maps;
  const char* map_error = MakeMaps<Sm90Dense>(params, &maps);
  if (map_error != nullptr) {
    return map_error;
  }
  TileWalk walk;
  walk.num_m = static_cast<int>(CeilDiv(params.m, kTileM * kClusterM));
  walk.num_n = static_cast<int>(CeilDiv(params.n, kTileN * kClusterN));
  walk.strip_width = params.num_knobs > 0 ? params.knobs[0] : kDefaultStripWidth;
  walk.num_tiles = params.num_matrices * walk.num_m * walk.num_n;
  return LaunchPersistent(Sm90DenseKernel<Sm90Dense>, params, maps, walk, kClusterSize, kNumThreads,
                          static_cast<int>(sizeof(Smem)), stream);
}

}  // namespace jaxgemm
