// Units of 16 bytes that are not where memory has its units.
#pragma once

#include <cstdint>

namespace jaxgemm {

// Where rows begin anywhere, they are seen as halves of 2 bytes: an element has one or two.
inline constexpr int kUnitHalves = 8;
inline constexpr int kUnitBytes = 2 * kUnitHalves;

// Where a unit begins in the one that memory has there, in halves.
__device__ __forceinline__ int ShiftOf(const void* unit) {
  return static_cast<int>(reinterpret_cast<uint64_t>(unit)) / 2 & (kUnitHalves - 1);
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

// All of an operand.
struct HalvesRange {
  const uint16_t* begin;
  const uint16_t* end;
};

// A unit on its way to registers: the two units of memory that it lies in, or its own halves, where
// those would reach out of the operand. Nothing outside of the operand is read. Many can be under
// way in a thread: who takes one waits.
class UnitInFlight {
 public:
  // Begins to load the unit whose first half is at `from`, which is in the operand or after it.
  __device__ __forceinline__ void Load(const HalvesRange& operand, const uint16_t* from) {
    const uint64_t first = reinterpret_cast<uint64_t>(from) / kUnitBytes * kUnitBytes;
    is_whole_ = (first >= reinterpret_cast<uint64_t>(operand.begin)) &
                (first + 2 * kUnitBytes <= reinterpret_cast<uint64_t>(operand.end));
    if (is_whole_) {
      const uint4* units = reinterpret_cast<const uint4*>(first);
      const uint4 low = __ldg(units);
      const uint4 high = __ldg(units + 1);
      words_[0] = low.x, words_[1] = low.y, words_[2] = low.z, words_[3] = low.w;
      words_[4] = high.x, words_[5] = high.y, words_[6] = high.z, words_[7] = high.w;
      return;
    }
#pragma unroll
    for (int i = 0; i < kUnitHalves; ++i) {
      words_[i] = from + i < operand.end ? __ldg(from + i) : 0;
    }
  }

  // `shift`: ShiftOf what was loaded.
  __device__ __forceinline__ uint4 Take(int shift) {
    if (is_whole_) {
      return ShiftedUnit(words_, shift);
    }
    return make_uint4(words_[0] | words_[1] << 16, words_[2] | words_[3] << 16,
                      words_[4] | words_[5] << 16, words_[6] | words_[7] << 16);
  }

 private:
  uint32_t words_[kUnitHalves];
  bool is_whole_;
};

}  // namespace jaxgemm
