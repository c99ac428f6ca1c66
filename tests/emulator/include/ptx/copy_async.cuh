// As ffi/ptx/copy_async.cuh; async_copies.cc says what the instructions do.
#pragma once

#include "async_copies.h"

namespace jaxgemm {

template <int kBytes>
void CopyAsync(uint32_t address, const void* gmem, bool valid = true) {
  emulator::CopyAsync(address, gmem, kBytes, valid ? kBytes : 0);
}

inline void CommitCopies() { emulator::CommitCopies(); }

template <int kPending>
void WaitForCopies() {
  emulator::WaitForCopies(kPending);
}

}  // namespace jaxgemm
