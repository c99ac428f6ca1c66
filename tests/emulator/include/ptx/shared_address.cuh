// As ffi/ptx/shared_address.cuh.
#pragma once

#include "machine.h"

namespace jaxgemm {

inline uint32_t SharedAddress(const void* smem) { return emulator::SharedAddress(smem); }

// PTX ISA, "Special registers": the CTA's dynamic shared memory.
template <int kAlignment>
char* DynamicSharedMemory() {
  static_assert(kAlignment <= 1024, "shared memory begins at a multiple of this");
  return emulator::current->cta->smem;
}

template <int kAlignment>
char* KeptSharedMemory() {
  return DynamicSharedMemory<kAlignment>();
}

}  // namespace jaxgemm
