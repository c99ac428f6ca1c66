// Division by a number that the host knows, for threads that wait for the quotient: a GPU has no
// instruction for it, and the compiler writes about forty in its place.
//
// With 2^(s - 1) < size <= 2^s and factor = ceil(2^(31 + s) / size), factor · size exceeds
// 2^(31 + s) by less than 2^s. So for x < 2^31, x · factor exceeds x / size · 2^(31 + s) by less
// than 2^(31 + s) / size: too little to reach the next whole number.
#pragma once

#include <cstdint>

#include "parts/host_device.h"

namespace jaxgemm {

struct Divisor {
  uint32_t size = 1;
  uint32_t factor = 1u << 31;
  uint32_t shift = 0;

  // `size` is from 1 to 2^31.
  static Divisor Of(uint32_t size) {
    uint32_t shift = 0;
    while ((uint64_t{1} << shift) < size) {
      ++shift;
    }
    const uint64_t factor = ((uint64_t{1} << (31 + shift)) + size - 1) / size;
    return {size, static_cast<uint32_t>(factor), shift};
  }

  // x / size, of x < 2^31.
  JAXGEMM_HOST_DEVICE uint32_t Quotient(uint32_t x) const {
    return static_cast<uint32_t>(uint64_t{2 * x} * factor >> 32) >> shift;
  }
};

}  // namespace jaxgemm
