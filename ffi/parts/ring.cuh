// A ring of slots in shared memory, between a producer that fills them and consumers that read.
//
//     barrier   from → to              arrivals                       protects
//     full      producer → consumers   1, and the bytes of a stage    a slot before it is read
//     empty     consumers → producer   1 for each warp that reads it  a slot before it is refilled
//
// A slot that CTAs of a cluster fill for one another is read by consumers of all of them.
#pragma once

#include "ptx/mbarrier.cuh"

namespace jaxgemm {

template <int kStages>
struct Ring {
  uint64_t full[kStages];
  uint64_t empty[kStages];
};

// Makes the barriers, for so many that arrive when they have read a slot. By one thread, before any
// other uses them.
template <int kStages>
__device__ __forceinline__ void MakeRing(Ring<kStages>& ring, int num_readers) {
  for (int stage = 0; stage < kStages; ++stage) {
    InitBarrier(&ring.full[stage], 1);
    InitBarrier(&ring.empty[stage], num_readers);
  }
}

// A place in the walk around the ring: a slot, and the parity of the round.
template <int kStages>
struct RingPosition {
  int stage = 0;
  uint32_t parity = 0;

  __device__ __forceinline__ void Next() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }

  // Leaves slots to others.
  __device__ __forceinline__ void Skip(int num_slots) {
    const uint32_t slots = stage + num_slots;
    stage = slots % kStages;
    parity ^= slots / kStages & 1;
  }
};

// Takes all slots back, of which the one at `at` would be filled next. A producer's last waits are
// for consumers to finish.
template <int kStages>
__device__ __forceinline__ void TakeSlotsBack(Ring<kStages>& ring, RingPosition<kStages> at) {
  for (int i = 0; i < kStages; ++i) {
    WaitBarrierGuarded(&ring.empty[at.stage], at.parity ^ 1);
    at.Next();
  }
}

}  // namespace jaxgemm
