// Barriers in shared memory (mbarrier): arrivals and bytes of asynchronous copies complete a phase.
//
// A barrier counts down from the number of arrivals it was made with, and from the bytes that were
// announced. When both are at zero its phase ends, the counts start again, and whoever waits for
// the parity of that phase goes on. A fresh barrier is in phase 0; to wait for parity 1 of a fresh
// barrier returns at once, which is what a producer wants of slots that nobody has filled.
#pragma once

#include <cstdint>

#include "ptx/shared_address.cuh"

namespace jaxgemm {

__device__ __forceinline__ void InitBarrier(uint64_t* barrier, int num_arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(SharedAddress(barrier)),
               "r"(num_arrivals)
               : "memory");
}

// Makes initialised barriers visible to the copy engine and to the other CTAs of the cluster. The
// thread that initialised them calls it, before the CTA or the cluster synchronises.
__device__ __forceinline__ void FenceBarrierInit() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// Arrives once and announces bytes that copies will bring in this phase.
__device__ __forceinline__ void ArriveExpectBytes(uint64_t* barrier, uint32_t bytes) {
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(SharedAddress(barrier)),
      "r"(bytes)
      : "memory");
}

// Arrives once at a barrier of this CTA. Whoever then sees the phase end also sees what this thread
// wrote before.
__device__ __forceinline__ void ArriveBarrier(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(SharedAddress(barrier)) : "memory");
}

// Arrives once at the barrier with the same place in the shared memory of CTA `rank` of the
// cluster. Orders nothing beyond this CTA, and need not: it tells of reads that are over. A release
// for the cluster would wait for all of this thread's accesses to global memory.
__device__ __forceinline__ void ArriveAtPeer(uint64_t* barrier, uint32_t rank) {
  asm volatile(
      "{\n"
      ".reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [remote];\n"
      "}" ::"r"(SharedAddress(barrier)),
      "r"(rank)
      : "memory");
}

__device__ __forceinline__ bool TryWait(uint64_t* barrier, uint32_t parity) {
  uint32_t done;
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "selp.b32 %0, 1, 0, p;\n"
      "}"
      : "=r"(done)
      : "r"(SharedAddress(barrier)), "r"(parity)
      : "memory");
  return done != 0;
}

// Waits until the phase with this parity has ended.
__device__ __forceinline__ void WaitBarrier(uint64_t* barrier, uint32_t parity) {
  while (!TryWait(barrier, parity)) {
  }
}

// As WaitBarrier, for producers, by all lanes of a warp. They go on together: one that was left two
// phases behind would wait for the next end of its parity, which may never come.
//
// In builds with JAXGEMM_WATCHDOG a wait without end traps, so that tests of a kernel that hangs
// end with an error. A producer's last waits are for consumers to finish, so this finds their hangs
// too; in their own code it would cost them registers.
__device__ __forceinline__ void WaitBarrierGuarded(uint64_t* barrier, uint32_t parity) {
#if defined(JAXGEMM_WATCHDOG)
  constexpr int kMaxAttempts = 1 << 24;
  for (int attempt = 0; !TryWait(barrier, parity); ++attempt) {
    if (attempt == kMaxAttempts) {
      __trap();
    }
  }
#else
  WaitBarrier(barrier, parity);
#endif
  __syncwarp();
}

}  // namespace jaxgemm
