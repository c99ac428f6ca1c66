// Words and halves of them: from global memory with a hint to the L2 cache, to and from shared
// memory.
#pragma once

#include <cstdint>

#include "ptx/tma.cuh"

namespace jaxgemm {

// Loads a word that nothing writes while the kernel runs, and that this SM needs once.
__device__ __forceinline__ uint32_t LoadWord(const uint32_t* from, CachePolicy policy) {
  uint32_t word;
  asm volatile("ld.global.nc.L1::no_allocate.L2::cache_hint.b32 %0, [%1], %2;"
               : "=r"(word)
               : "l"(from), "l"(policy));
  return word;
}

// As LoadWord; where `condition` is 0 nothing is read.
__device__ __forceinline__ uint32_t LoadWordIf(uint32_t condition, const uint32_t* from,
                                               uint32_t otherwise, CachePolicy policy) {
  uint32_t word = otherwise;
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "setp.ne.b32 p, %1, 0;\n"
      "@p ld.global.nc.L1::no_allocate.L2::cache_hint.b32 %0, [%2], %3;\n"
      "}"
      : "+r"(word)
      : "r"(condition), "l"(from), "l"(policy));
  return word;
}

// The word in a register of its own, from here on.
__device__ __forceinline__ uint32_t CopyOfWord(uint32_t word) {
  uint32_t copy;
  asm volatile("mov.b32 %0, %1;" : "=r"(copy) : "r"(word));
  return copy;
}

// Stores 16 bytes to global memory. Where `condition` is false nothing is written.
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

// `address` is a SharedAddress.
__device__ __forceinline__ void StoreSharedWord(uint32_t address, uint32_t word) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(word) : "memory");
}

__device__ __forceinline__ void StoreSharedHalf(uint32_t address, uint16_t half) {
  asm volatile("st.shared.b16 [%0], %1;" ::"r"(address), "h"(half) : "memory");
}

// Loads two words that begin at a multiple of 8 bytes.
__device__ __forceinline__ void LoadSharedWords(uint32_t& first, uint32_t& second,
                                                uint32_t address) {
  asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];"
               : "=r"(first), "=r"(second)
               : "r"(address)
               : "memory");
}

}  // namespace jaxgemm
