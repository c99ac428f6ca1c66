// From XLA's attributes (call.cc) and buffers (buffers.cc) to GemmParams, with every check.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "abi/instance.h"
#include "abi/params.h"
#include "xla/ffi/api/ffi.h"

namespace jaxgemm {

// What a buffer of a call is. Outputs begin with kD, but kZ may be an operand too.
enum class Role : int32_t { kA, kB, kC, kBias, kAlpha, kBeta, kD, kZ, kDSum, kWorkspace };
inline constexpr int kNumRoles = 10;

// The attributes of one call site, decoded when XLA builds the executable.
struct Call {
  static xla::ffi::TypeId id;
  static const xla::ffi::TypeInfo info;

  std::string instance_name;
  // Null on the CPU, where one function computes what no library does.
  const Instance* instance = nullptr;
  std::vector<Role> operands;
  std::vector<Role> outputs;
  // Bit masks of the roles that have each batch axis, outermost axis first.
  std::vector<uint32_t> batch;
  // For each axis, of these the ones that have it between the two dimensions of their matrices.
  std::vector<uint32_t> inside;
  Major a_major = Major::kK;
  Major b_major = Major::kMN;
  Activation activation = Activation::kNone;
  // Its lower and upper bound.
  std::array<float, 2> clamp = {};
  // Whether z is among the operands.
  bool pullback = false;
  std::vector<int32_t> knobs;
};

// Attributes, as text and exact integer types: see `attributes` in jaxgemm/ffi_kernels/call.py.
xla::ffi::ErrorOr<std::unique_ptr<Call>> DecodeCall(xla::ffi::Dictionary attributes);

// Buffers, checked against the call and one another.
xla::ffi::ErrorOr<GemmParams> DecodeBuffers(const Call& call, xla::ffi::RemainingArgs args,
                                            xla::ffi::RemainingRets rets);

// The CPU's and CUDA's instantiate stage have nothing but attributes.
inline auto BindInstantiate() { return xla::ffi::Ffi::BindInstantiate().Attrs(); }

}  // namespace jaxgemm
