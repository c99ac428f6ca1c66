// How instructions name a place in shared memory.
#pragma once

#include <cstdint>

namespace jaxgemm {

__device__ __forceinline__ uint32_t SharedAddress(const void* smem) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(smem));
}

}  // namespace jaxgemm
