// Descriptors, by which wgmma finds operands in shared memory.
#pragma once

#include <cstdint>

#include "abi/params.h"
#include "ptx/shared_address.cuh"

namespace jaxgemm {

// Rows of 128 bytes whose 16-byte chunks are permuted by the row's place in groups of 8.
inline constexpr int kSwizzleBytes = 128;
inline constexpr int kSwizzleAtomBytes = 8 * kSwizzleBytes;

// Where an operand's tile lies, for wgmma. The tile is made of swizzle atoms of 8 rows; rows hold k
// for Major::kK and m or n for Major::kMN. `mn_stride_bytes`: between atoms along m or n that have
// the same k; needed for Major::kMN only. Others lie one after another.
template <Major kMajor>
__device__ __forceinline__ uint64_t MakeDescriptor(const void* smem, uint32_t mn_stride_bytes) {
  constexpr uint64_t kSwizzle128 = 1ull << 62;
  constexpr uint64_t kAtom = static_cast<uint64_t>(kSwizzleAtomBytes >> 4) << 32;
  const uint64_t leading = kMajor == Major::kMN ? mn_stride_bytes >> 4 : 1;
  const uint64_t address = (SharedAddress(smem) & 0x3FFFF) >> 4;
  return address | leading << 16 | kAtom | kSwizzle128;
}

// The descriptor of what lies `bytes` further on.
__device__ __forceinline__ uint64_t Advance(uint64_t descriptor, uint32_t bytes) {
  return descriptor + (bytes >> 4);
}

}  // namespace jaxgemm
