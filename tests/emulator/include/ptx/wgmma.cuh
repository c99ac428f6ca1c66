// As ffi/ptx/wgmma.cuh; wgmma.cc says what the instructions do.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "ptx/descriptor.cuh"
#include "wgmma.h"

namespace jaxgemm {

inline void FenceProducts() { emulator::FenceProducts(); }
inline void CommitProducts() { emulator::CommitProducts(); }

template <int kPending>
void WaitForProducts() {
  emulator::WaitForProducts(kPending);
}

template <typename T, int kN, Major kAMajor, Major kBMajor>
void Multiply(float (&acc)[kN / 2], uint64_t a, uint64_t b, bool adds) {
  constexpr bool kIsBF16 = std::is_same_v<T, __nv_bfloat16>;
  emulator::Multiply({kIsBF16 ? emulator::Element::kBF16 : emulator::Element::kF16, kN,
                      kAMajor == Major::kMN, kBMajor == Major::kMN},
                     acc, a, nullptr, b, adds);
}

template <int kN>
void MultiplyTf32(float (&acc)[kN / 2], const uint32_t (&a)[4], uint64_t b) {
  emulator::Multiply({emulator::Element::kTF32, kN, false, false}, acc, 0, a, b, true);
}

}  // namespace jaxgemm
