// Units of 16 bytes that are not where memory has its units.
#pragma once

#include <cstdint>

namespace jaxgemm {

// Where rows begin anywhere, they are seen as halves of 2 bytes: an element has one or two.
inline constexpr int kUnitHalves = 8;

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

}  // namespace jaxgemm
