// What a call launches: a compiled row of instances.json, or a library's product.
#pragma once

#include <optional>
#include <string_view>

#include "abi/params.h"

// CUDA's stream without its headers.
struct CUstream_st;

namespace jaxgemm {

// Enqueues a kernel. Returns null, or what went wrong. Does not wait, allocate or read the device.
using Launch = const char* (*)(const GemmParams&, CUstream_st*);

// Prepares the current device for launches, outside of any graph. Returns null, or what went wrong.
using Start = const char* (*)();

struct Instance {
  std::string_view name;
  // Of a and b. None: the instance checks the dtypes of all operands and outputs itself.
  std::optional<DType> dtype;
  Launch launch;
  // Null where there is nothing to prepare.
  Start start = nullptr;
};

// The instance of a name, null if this library does not have it.
const Instance* FindInstance(std::string_view name);

}  // namespace jaxgemm
