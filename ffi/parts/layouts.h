// From layouts that are known at run time to the template that is compiled for them.
#pragma once

#include <type_traits>

#include "abi/params.h"

namespace jaxgemm {

// Calls `launch(a_major, b_major)` with types whose `value` is the layout of a and of b.
template <class LaunchForm>
const char* LaunchForLayouts(const GemmParams& params, const LaunchForm& launch) {
  constexpr std::integral_constant<Major, Major::kK> kK;
  constexpr std::integral_constant<Major, Major::kMN> kMN;
  if (params.a_major == Major::kK) {
    return params.b_major == Major::kK ? launch(kK, kK) : launch(kK, kMN);
  }
  return params.b_major == Major::kK ? launch(kMN, kK) : launch(kMN, kMN);
}

}  // namespace jaxgemm
