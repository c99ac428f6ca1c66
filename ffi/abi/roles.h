// What decoding attributes and decoding buffers share: the names of roles, sets of them, and
// errors.
#pragma once

#include <array>
#include <cstdint>
#include <sstream>
#include <string_view>

#include "abi/call.h"

namespace jaxgemm {

inline constexpr std::array<std::string_view, kNumRoles> kRoleNames = {
    "a", "b", "c", "bias", "alpha", "beta", "d", "z", "d_sum", "workspace"};

inline std::string_view Name(Role role) { return kRoleNames[static_cast<int>(role)]; }
constexpr uint32_t Bit(Role role) { return 1u << static_cast<int>(role); }

template <typename... Parts>
xla::ffi::Error InvalidArgument(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  return xla::ffi::Error::InvalidArgument(text.str());
}

template <typename... Parts>
xla::ffi::Unexpected<xla::ffi::Error> Invalid(const Parts&... parts) {
  return xla::ffi::Unexpected(InvalidArgument(parts...));
}

inline constexpr uint32_t kMatrices =
    Bit(Role::kA) | Bit(Role::kB) | Bit(Role::kC) | Bit(Role::kD) | Bit(Role::kZ);

}  // namespace jaxgemm
