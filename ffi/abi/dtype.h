// The dtypes of params.h: their names, and what XLA calls them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "abi/params.h"
#include "xla/ffi/api/ffi.h"

namespace jaxgemm {

// As text for people, such as "float32 or bfloat16".
std::string Names(const std::vector<DType>& dtypes);

// None for a dtype that no kernel has.
std::optional<DType> FromXla(xla::ffi::DataType dtype);

}  // namespace jaxgemm
