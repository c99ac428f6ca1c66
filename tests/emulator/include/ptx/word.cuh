// As ffi/ptx/word.cuh.
#pragma once

#include <cstring>

#include "machine.h"

namespace jaxgemm {

inline void LoadUnitsIf(bool condition, const void* from, uint32_t (&words)[8]) {
  if (!condition) {
    return;
  }
  if (reinterpret_cast<uintptr_t>(from) % 16 != 0) {
    emulator::Fail("ld.global: %p is not aligned", from);
  }
  emulator::CheckRead(from, sizeof words);
  std::memcpy(words, from, sizeof words);
}

template <typename T>
void StoreGlobalIf(bool condition, void* to, const T& value) {
  if (!condition) {
    return;
  }
  if (reinterpret_cast<uintptr_t>(to) % sizeof value != 0) {
    emulator::Fail("st.global: %p is not aligned", to);
  }
  std::memcpy(to, &value, sizeof value);
}
inline void StoreUnitIf(bool condition, void* to, const uint4& unit) {
  StoreGlobalIf(condition, to, unit);
}
inline void StoreHalfIf(bool condition, void* to, uint16_t half) {
  StoreGlobalIf(condition, to, half);
}

inline uint32_t CopyOfWord(uint32_t word) { return word; }

inline void LoadSharedWords(uint32_t& first, uint32_t& second, uint32_t address) {
  const char* from = emulator::SharedMemory(*emulator::current->cta, address, 8, "ld.shared");
  if (address % 8 != 0) {
    emulator::Fail("ld.shared: address %u is not aligned", address);
  }
  if (from != nullptr) {
    std::memcpy(&first, from, 4);
    std::memcpy(&second, from + 4, 4);
  }
}

}  // namespace jaxgemm
