// Random problems for a kernel's instance, of which every element is compared with the exact
// result.
//
// Operands are small integers: sums are exact, and each output is rounded once. Some elements of a
// and b are NaN, which must reach their rows and columns only. Every buffer lies between pages that
// nobody can access, at its beginning or at its end, and between NaN that must not change.
#pragma once

#include <string>

#include "abi/params.h"
#include "cuda_runtime.h"

// The instance, which is linked with this file.
extern "C" const char* LaunchInstance(const jaxgemm::GemmParams& params, cudaStream_t stream);

namespace emulator {

// What an instance takes.
struct Limits {
  jaxgemm::DType dtype;
  int tile_m;
  int tile_n;
  int tile_k;
  // Only a · b, in the dtype of a, with rows of d of whole units of 16 bytes.
  bool only_plain;
  // Not both a and b contiguous along m and n.
  bool needs_k_major;
};

// Says in `text` what the case is, then whether the instance does what it should.
bool RunRandomCase(const Limits& limits, unsigned seed, std::string* text);

}  // namespace emulator
