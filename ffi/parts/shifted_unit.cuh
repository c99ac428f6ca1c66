// Units of 16 bytes that are not where memory has its units.
#pragma once

#include <cstdint>

namespace jaxgemm {

// Where rows begin anywhere, they are seen as halves of 2 bytes: an element has one or two.
inline constexpr int kUnitHalves = 8;
inline constexpr int kUnitBytes = 2 * kUnitHalves;

// Where a unit begins in the one that memory has there, in halves.
__device__ __forceinline__ int ShiftOf(const void* unit) {
  return reinterpret_cast<uint64_t>(unit) / 2 % kUnitHalves;
}

// Halves `shift` to `shift` + 7 of the 16 in `words`.
__device__ __forceinline__ uint4 ShiftedUnit(uint32_t (&words)[8], int shift) {
#pragma unroll
  for (int i = 0; i < 6; ++i) {
    words[i] = shift & 4 ? words[i + 2] : words[i];
  }
#pragma unroll
  for (int i = 0; i < 5; ++i) {
    words[i] = shift & 2 ? words[i + 1] : words[i];
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    words[i] = __funnelshift_r(words[i], words[i + 1], shift & 1 ? 16 : 0);
  }
  return make_uint4(words[0], words[1], words[2], words[3]);
}

// The first `count` halves of a unit, and zeros.
__device__ __forceinline__ uint4 FirstHalves(const uint4& unit, int count) {
  const auto word = [&](uint32_t bits, int first) {
    return count > first + 1 ? bits : count > first ? bits & 0xffff : 0;
  };
  return make_uint4(word(unit.x, 0), word(unit.y, 2), word(unit.z, 4), word(unit.w, 6));
}

// Begins to load the halves of a unit one by one, each to a word of its own; none from `end` on.
__device__ __forceinline__ void LoadHalves(const uint16_t* from, const uint16_t* end,
                                           uint32_t (&words)[8]) {
#pragma unroll
  for (int i = 0; i < kUnitHalves; ++i) {
    words[i] = from + i < end ? __ldg(from + i) : 0;
  }
}
__device__ __forceinline__ uint4 JoinedHalves(const uint32_t (&words)[8]) {
  return make_uint4(words[0] | words[1] << 16, words[2] | words[3] << 16, words[4] | words[5] << 16,
                    words[6] | words[7] << 16);
}

}  // namespace jaxgemm
