// Shared memory: where it is, and how instructions name a place in it.
#pragma once

#include <cstdint>

namespace jaxgemm {

__device__ __forceinline__ uint32_t SharedAddress(const void* smem) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(smem));
}

// What the launch has asked for. All kernels of a file give the same alignment.
template <int kAlignment>
__device__ __forceinline__ char* DynamicSharedMemory() {
  extern __shared__ __align__(kAlignment) char dynamic_smem[];
  return dynamic_smem;
}

}  // namespace jaxgemm
