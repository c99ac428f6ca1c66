// Instructions for parts of a CTA: named barriers, registers of a warpgroup, clusters; and hints to
// the caches.
#pragma once

#include <cstdint>

namespace jaxgemm {

inline constexpr int kWarpSize = 32;
inline constexpr int kWarpgroupSize = 128;

// Barrier 0 is __syncthreads; `num_threads` counts those that arrive and those that wait.
__device__ __forceinline__ void SyncNamedBarrier(int barrier, int num_threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(num_threads) : "memory");
}

__device__ __forceinline__ void ArriveNamedBarrier(int barrier, int num_threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(num_threads) : "memory");
}

// Gives registers back, for others to take. All warps of the warpgroup execute it.
template <int kRegisters>
__device__ __forceinline__ void ReleaseRegisters() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// Waits until there are as many registers, and takes them.
template <int kRegisters>
__device__ __forceinline__ void TakeRegisters() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// Read anew each time, so that it, and what follows from it, needs no registers in between.
__device__ __forceinline__ int LaneId() {
  int lane;
  asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
  return lane;
}

__device__ __forceinline__ uint32_t ClusterRank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// Waits for all threads of all CTAs of the cluster. What they have written is not visible to one
// another by this alone: a release would wait until memory has it.
__device__ __forceinline__ void SyncCluster() {
  asm volatile(
      "barrier.cluster.arrive.relaxed.aligned;\n"
      "barrier.cluster.wait.acquire.aligned;" ::
          : "memory");
}

// Lets the next kernel of the stream start, if it was launched as one that may start early, once
// all CTAs have come here. What it may read of this one it must wait for.
__device__ __forceinline__ void LaunchDependents() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// Waits until the kernel before this one is complete and its writes are visible. For a kernel that
// was not launched early it is so already.
__device__ __forceinline__ void WaitForKernelBefore() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Asks for a line of global memory.
__device__ __forceinline__ void PrefetchToL1(const void* address) {
  asm volatile("prefetch.global.L1 [%0];" ::"l"(address));
}

__device__ __forceinline__ void PrefetchToL2(const void* address) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
}

}  // namespace jaxgemm
