// The tensor memory accelerator: copies of boxes of a tensor between global and shared memory.
//
// A tensor map (see parts/tensor_map.cuh) says where the tensor lies and how large a box is;
// coordinates count elements, innermost first. What a box has outside the tensor is zero when it is
// loaded, counts towards the bytes all the same, and is left out when it is stored.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "ptx/shared_address.cuh"

namespace jaxgemm {

struct BoxOrigin {
  int column;
  int row;
  int matrix;
};

// Which lines the L2 cache gives up when it needs room.
using CachePolicy = uint64_t;

__device__ __forceinline__ CachePolicy EvictNormal() {
  CachePolicy policy;
  asm("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

__device__ __forceinline__ CachePolicy EvictLast() {
  CachePolicy policy;
  asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

__device__ __forceinline__ void PrefetchTensorMap(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// Begins to load a box; its bytes count towards the phase of `barrier`.
__device__ __forceinline__ void LoadBox(const CUtensorMap* map, BoxOrigin origin, void* smem,
                                        uint64_t* barrier, CachePolicy policy) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".L2::cache_hint [%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(SharedAddress(smem)),
      "l"(map), "r"(SharedAddress(barrier)), "r"(origin.column), "r"(origin.row),
      "r"(origin.matrix), "l"(policy)
      : "memory");
}

// As LoadBox, to the same place in every CTA of the cluster whose bit is set in `cta_mask`; in
// each, the bytes count towards its own barrier.
__device__ __forceinline__ void LoadBoxMulticast(const CUtensorMap* map, BoxOrigin origin,
                                                 void* smem, uint64_t* barrier, uint16_t cta_mask,
                                                 CachePolicy policy) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster.L2::cache_hint [%0], [%1, {%3, %4, %5}], [%2], %6, %7;" ::"r"(
          SharedAddress(smem)),
      "l"(map), "r"(SharedAddress(barrier)), "r"(origin.column), "r"(origin.row),
      "r"(origin.matrix), "h"(cta_mask), "l"(policy)
      : "memory");
}

// Begins to store a box. Written data must have passed FenceAsyncProxy in the threads that wrote
// it.
__device__ __forceinline__ void StoreBox(const CUtensorMap* map, BoxOrigin origin,
                                         const void* smem) {
  asm volatile(
      "cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(map),
      "r"(SharedAddress(smem)), "r"(origin.column), "r"(origin.row), "r"(origin.matrix)
      : "memory");
}

// Ends a group of this thread's stores; a group may be empty.
__device__ __forceinline__ void CommitStores() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// Waits until shared memory has been read by all but the newest kPending of this thread's groups.
template <int kPending>
__device__ __forceinline__ void WaitForStoresToRead() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}

// Orders this thread's ordinary writes to shared memory before later reads of it by the copy engine
// and by wgmma.
__device__ __forceinline__ void FenceAsyncProxy() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

}  // namespace jaxgemm
