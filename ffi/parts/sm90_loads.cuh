// How a persistent grid of clusters finds its tiles of a and b: what the host works out, and what
// all roles know.
//
// A `Kernel` is the type that says what its form is: tiles, stages, clusters, shared memory.
#pragma once

#include "parts/batch.h"
#include "parts/operand_tile.cuh"
#include "parts/realign.cuh"
#include "parts/ring.cuh"
#include "parts/tensor_map.cuh"
#include "parts/tile_walk.cuh"
#include "ptx/word.cuh"

namespace jaxgemm {

// Maps of the operands, the order of tiles, and which of their matrices operands take.
struct Sm90Loads {
  CUtensorMap a;
  CUtensorMap b;
  // Of a tile: stages along k.
  int num_steps;
  TileWalk walk;
  BatchAxes batch_axes;
  OwnMatrices a_matrices;
  OwnMatrices b_matrices;
  // Of operands, by the kernel before: loads wait for it.
  bool has_copies;
};

// The map of an operand's tiles. Tensor Cores cut float32 off where TF32 ends; TMA rounds it
// before.
template <class Tile>
const char* MakeOperandMap(const GemmParams& params, const Tensor& tensor, StoredSize size,
                           CUtensorMap* map) {
  const bool is_float32 = tensor.dtype == DType::kF32;
  const CUtensorMapDataType dtype =
      is_float32 ? CU_TENSOR_MAP_DATA_TYPE_TFLOAT32 : TmaDType(tensor.dtype);
  return MakeTensorMap(params, tensor, dtype, size, Tile::kBoxRows, map);
}

// Fills the order of steps, tiles and matrices. Returns null, or what went wrong.
template <class Kernel>
const char* PlanWalk(const GemmParams& params, Sm90Loads* loads) {
  if (params.num_knobs != 1 || params.knobs[0] < 1) {
    return "knobs: expected the width of a strip in tiles";
  }
  const int num_m = static_cast<int>(CeilDiv(params.m, Kernel::kTileM * Kernel::kClusterM));
  const int num_n = static_cast<int>(CeilDiv(params.n, Kernel::kTileN * Kernel::kClusterN));
  // With room for the first turn past the last tile.
  if (params.num_matrices * num_m * num_n > INT32_MAX / 2) {
    return "d has more than 2^30 tiles";
  }
  loads->walk = TileWalk::Of(static_cast<int>(params.num_matrices), num_m, num_n, params.knobs[0]);
  loads->num_steps = static_cast<int>(CeilDiv(params.k, Kernel::kTileK));
  loads->batch_axes = BatchAxes::Of(params);
  return nullptr;
}

// Enqueues the copies that operands need and puts them in their places, then fills the rest.
// Returns null, or what went wrong.
template <class Kernel>
const char* PrepareLoads(GemmParams* params, cudaStream_t stream, Sm90Loads* loads) {
  // With k = 0 there is nothing to load.
  if (params->k == 0) {
    return nullptr;
  }
  if (const char* error = RealignOperands(params, stream, &loads->has_copies)) {
    return error;
  }
  const StoredSize a_size = StoredSizeOfA(*params);
  const StoredSize b_size = StoredSizeOfB(*params);
  loads->a_matrices = OwnMatrices::Of(*params, params->a, a_size.rows);
  loads->b_matrices = OwnMatrices::Of(*params, params->b, b_size.rows);
  const char* error = MakeOperandMap<typename Kernel::ATile>(*params, params->a, a_size, &loads->a);
  if (error == nullptr) {
    error = MakeOperandMap<typename Kernel::BTile>(*params, params->b, b_size, &loads->b);
  }
  return error;
}

// By one thread, early: what fetches a map first waits for memory.
__device__ __forceinline__ void PrefetchMaps(const Sm90Loads& loads) {
  if (loads.num_steps > 0) {
    PrefetchTensorMap(&loads.a);
    PrefetchTensorMap(&loads.b);
  }
}

// What every role knows of the problem.
template <class Kernel>
struct Sm90Work {
  const GemmParams& params;
  const Sm90Loads& loads;
  typename Kernel::Smem& smem;
  uint32_t rank;

  // The tile of this CTA in its turn `turn`.
  __device__ __forceinline__ bool Has(int turn) const {
    return Position(turn) < loads.walk.num_tiles;
  }
  __device__ __forceinline__ TilePlace At(int turn) const {
    TilePlace place = loads.walk.At(Position(turn));
    place.m_index = place.m_index * Kernel::kClusterM + (Kernel::kClusterM > 1 ? rank : 0);
    place.n_index = place.n_index * Kernel::kClusterN + (Kernel::kClusterN > 1 ? rank : 0);
    return place;
  }

  // As At, but found here, not where the compiler would rather have it.
  __device__ __forceinline__ TilePlace FoundAt(int turn) const {
    TilePlace place = At(turn);
    place.m_index = CopyOfWord(place.m_index);
    place.n_index = CopyOfWord(place.n_index);
    return place;
  }

  // How long tiles stay in the L2 cache.
  __device__ __forceinline__ CachePolicy PolicyOfA() const { return PolicyFor(loads.walk.num_n); }
  __device__ __forceinline__ CachePolicy PolicyOfB() const { return PolicyFor(loads.walk.num_m); }

  __device__ __forceinline__ BatchPlace BatchPlaceOf(const TilePlace& place) const {
    return loads.batch_axes.At(place.matrix);
  }

 private:
  __device__ __forceinline__ int Position(int turn) const {
    return (turn * gridDim.x + blockIdx.x) / Kernel::kClusterSize;
  }

  // What no other tile reads need not stay in the L2 cache.
  static __device__ __forceinline__ CachePolicy PolicyFor(int num_readers) {
    const CachePolicy kept = EvictLast();
    const CachePolicy normal = EvictNormal();
    return num_readers > 1 ? kept : normal;
  }
};

// Waits until all CTAs of the cluster have made their rings: no copy may signal a peer's barrier
// before.
template <class Kernel>
__device__ __forceinline__ void SyncRings() {
  if constexpr (Kernel::kClusterSize > 1) {
    SyncCluster();
  } else {
    __syncthreads();
  }
}

// Tells the producers of all CTAs that fill a slot that this warp has read it. `empty` is that of
// the slot.
template <class Kernel>
__device__ __forceinline__ void ReleaseSlot(uint64_t* empty, int lane) {
  __syncwarp();
  if (lane < Kernel::kClusterSize) {
    ArriveAtPeer(empty, lane);
  }
}

}  // namespace jaxgemm
