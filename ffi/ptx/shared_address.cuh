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

// As DynamicSharedMemory, with the address in a register from here on. By itself the compiler works
// it out anew wherever it is needed, from a special register for which each step would wait.
template <int kAlignment>
__device__ __forceinline__ char* KeptSharedMemory() {
  const uint32_t address = SharedAddress(DynamicSharedMemory<kAlignment>());
  const uint32_t kept = __shfl_sync(~0u, address, 0) & ~uint32_t{kAlignment - 1};
  return static_cast<char*>(__cvta_shared_to_generic(kept));
}

}  // namespace jaxgemm
