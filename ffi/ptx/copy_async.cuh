// cp.async: from global to shared memory past the registers, in groups that can be waited for.
#pragma once

#include <cstdint>

namespace jaxgemm {

// Copies kBytes (4, 8 or 16), to which both addresses are aligned. Where `valid` is false it writes
// zeros and reads nothing. `address` is a SharedAddress.
template <int kBytes>
__device__ __forceinline__ void CopyAsync(uint32_t address, const void* gmem, bool valid = true) {
  static_assert(kBytes == 4 || kBytes == 8 || kBytes == 16, "cp.async copies 4, 8 or 16 bytes");
  // The predicate is `ignore-src`.
  if constexpr (kBytes == 16) {
    // .cg: past L1, which it would only pollute.
    asm volatile(
        "{\n"
        ".reg .pred ignores;\n"
        "setp.eq.s32 ignores, %2, 0;\n"
        "cp.async.cg.shared.global [%0], [%1], 16, ignores;\n"
        "}" ::"r"(address),
        "l"(gmem), "r"(static_cast<int>(valid))
        : "memory");
  } else {
    asm volatile(
        "{\n"
        ".reg .pred ignores;\n"
        "setp.eq.s32 ignores, %3, 0;\n"
        "cp.async.ca.shared.global [%0], [%1], %2, ignores;\n"
        "}" ::"r"(address),
        "l"(gmem), "n"(kBytes), "r"(static_cast<int>(valid))
        : "memory");
  }
}

// Ends a group; empty groups are complete at once.
__device__ __forceinline__ void CommitCopies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits until at most kPending of this thread's newest groups are incomplete. Others' copies can be
// read after a barrier.
template <int kPending>
__device__ __forceinline__ void WaitForCopies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace jaxgemm
