// Words and units of 16 bytes: from and to global memory under a condition, and from shared memory.
// Where a condition is false nothing is accessed.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace jaxgemm {

// Loads two units that nothing writes while the kernel runs, from a multiple of 16 bytes on.
__device__ __forceinline__ void LoadUnitsIf(bool condition, const void* from,
                                            uint32_t (&words)[8]) {
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "setp.ne.b32 p, %8, 0;\n"
      "@p ld.global.nc.v4.b32 {%0, %1, %2, %3}, [%9];\n"
      "@p ld.global.nc.v4.b32 {%4, %5, %6, %7}, [%9 + 16];\n"
      "}"
      : "+r"(words[0]), "+r"(words[1]), "+r"(words[2]), "+r"(words[3]), "+r"(words[4]),
        "+r"(words[5]), "+r"(words[6]), "+r"(words[7])
      : "r"(static_cast<uint32_t>(condition)), "l"(from));
}

__device__ __forceinline__ void StoreUnitIf(bool condition, void* to, const uint4& unit) {
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "setp.ne.b32 p, %0, 0;\n"
      "@p st.global.v4.b32 [%1], {%2, %3, %4, %5};\n"
      "}" ::"r"(static_cast<uint32_t>(condition)),
      "l"(to), "r"(unit.x), "r"(unit.y), "r"(unit.z), "r"(unit.w)
      : "memory");
}

__device__ __forceinline__ void StoreHalfIf(bool condition, void* to, uint16_t half) {
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "setp.ne.b32 p, %0, 0;\n"
      "@p st.global.b16 [%1], %2;\n"
      "}" ::"r"(static_cast<uint32_t>(condition)),
      "l"(to), "h"(half)
      : "memory");
}

// The word in a register of its own, from here on.
__device__ __forceinline__ uint32_t CopyOfWord(uint32_t word) {
  uint32_t copy;
  asm volatile("mov.b32 %0, %1;" : "=r"(copy) : "r"(word));
  return copy;
}

// Loads two words that begin at a multiple of 8 bytes. `address` is a SharedAddress.
__device__ __forceinline__ void LoadSharedWords(uint32_t& first, uint32_t& second,
                                                uint32_t address) {
  asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];"
               : "=r"(first), "=r"(second)
               : "r"(address)
               : "memory");
}

}  // namespace jaxgemm
