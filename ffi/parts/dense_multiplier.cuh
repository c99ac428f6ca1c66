// What consumers of kernels/sm90_dense.cuh do with the slots of the ring: they multiply.
//
// A `Kernel` is the type that says what its form is.
#pragma once

#include "parts/fragment.cuh"
#include "parts/ring.cuh"
#include "parts/sm90_loads.cuh"
#include "parts/tile_walk.cuh"
#include "ptx/cta.cuh"
#include "ptx/descriptor.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/wgmma.cuh"

namespace jaxgemm {

// Named barriers: one for the turn of each of two consumers, one for the bias of each.
inline constexpr int kTurnBarrier = 1;
inline constexpr int kBiasBarrier = kTurnBarrier + 2;

// One consumer's way through the ring and through the tiles that it multiplies: all of the CTA, or
// every second one.
template <class Kernel>
class DenseMultiplier {
 public:
  using Accumulators = float[Kernel::kParts][Kernel::kTileN / 2];

  __device__ __forceinline__ DenseMultiplier(const Sm90Work<Kernel>& work, int consumer, int lane)
      : work_(work),
        consumer_(consumer),
        lane_(lane),
        turn_(Kernel::kTurns ? consumer : 0),
        place_(work.At(turn_)) {}

  // Whether there is a next tile, and where.
  __device__ __forceinline__ bool HasTile() const { return work_.Has(turn_); }
  __device__ __forceinline__ TilePlace Place() const { return place_; }

  // The first row of d that a warp of this consumer has of a tile.
  __device__ __forceinline__ int Row(const TilePlace& place, int warp) const {
    return place.m_index * Kernel::kTileM + FirstRow() + kWarpRows * warp;
  }

  // Multiplies this consumer's rows of the next tile, gives its slots back and goes on to the tile
  // after it. `meanwhile(step)` is what this thread does while products of a step run.
  //
  // All products begin and end in here, on one way through the code, and accumulators live no
  // longer than a tile. Where another way joins while products run, the compiler has each of them
  // wait for the one before (its remark C7515).
  template <class Meanwhile>
  __device__ __forceinline__ void MultiplyTile(Accumulators& acc, const Meanwhile& meanwhile) {
    if constexpr (Kernel::kTurns) {
      TakeTurn();
    }
    MultiplyStage<false>(acc);
    place_ = work_.FoundAt(turn_ + kStep);
    meanwhile(0);
    for (int step = 1; step < work_.loads.num_steps; ++step) {
      uint64_t* previous = &work_.smem.ring.empty[at_.stage];
      at_.Next();
      MultiplyStage<true>(acc);
      // Products of the step before are done: those that read its slot.
      WaitForProducts<1>();
      ReleaseSlot<Kernel>(previous, lane_);
      meanwhile(step);
    }
    if constexpr (Kernel::kTurns) {
      GiveTurn();
    }
    WaitForProducts<0>();
    ReleaseSlot<Kernel>(&work_.smem.ring.empty[at_.stage], lane_);
    at_.Next();
    turn_ += kStep;
  }

  // As MultiplyTile where there are no steps.
  __device__ __forceinline__ void SetToZero(Accumulators& acc) {
#pragma unroll
    for (auto& part : acc) {
#pragma unroll
      for (float& x : part) {
        x = 0.0f;
      }
    }
    turn_ += kStep;
    place_ = work_.At(turn_);
  }

 private:
  // Tiles of the CTA from one to the next of this consumer.
  static constexpr int kStep = Kernel::kTurns ? 2 : 1;

  // Of a tile, the first row that this consumer multiplies.
  __device__ __forceinline__ int FirstRow() const {
    return Kernel::kTurns ? 0 : consumer_ * Kernel::kConsumerRows;
  }

  // Waits until products of the tile before have been issued: those that follow leave no gap, and
  // do not mix with them.
  __device__ __forceinline__ void TakeTurn() {
    if (turn_ > 0) {
      at_.Skip(work_.loads.num_steps);
      SyncNamedBarrier(kTurnBarrier + consumer_, 2 * kWarpgroupSize);
    }
  }

  __device__ __forceinline__ void GiveTurn() const {
    if (work_.Has(turn_ + 1)) {
      ArriveNamedBarrier(kTurnBarrier + 1 - consumer_, 2 * kWarpgroupSize);
    }
  }

  // Waits for a slot and issues its products.
  template <bool kAdds>
  __device__ __forceinline__ void MultiplyStage(Accumulators& acc) const {
    using ATile = typename Kernel::ATile;
    using BTile = typename Kernel::BTile;
    WaitBarrier(&work_.smem.ring.full[at_.stage], at_.parity);
    const uint64_t a = ATile::Descriptor(work_.smem.a[at_.stage], FirstRow());
    const uint64_t b = BTile::Descriptor(work_.smem.b[at_.stage], 0);
    FenceProducts();
#pragma unroll
    for (int product = 0; product < Kernel::kTileK / ATile::kDepth; ++product) {
#pragma unroll
      for (int part = 0; part < Kernel::kParts; ++part) {
        const uint64_t a_part =
            Advance(a, part * ATile::kChunkBytes + product * ATile::kDepthBytes);
        Multiply<typename Kernel::T, Kernel::kTileN, Kernel::kAMajor, Kernel::kBMajor>(
            acc[part], a_part, Advance(b, product * BTile::kDepthBytes), kAdds || product > 0);
      }
    }
    CommitProducts();
  }

  const Sm90Work<Kernel>& work_;
  const int consumer_;
  const int lane_;
  int turn_;
  TilePlace place_;
  RingPosition<Kernel::kStages> at_;
};

}  // namespace jaxgemm
