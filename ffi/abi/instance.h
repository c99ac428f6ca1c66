// A compiled kernel instance: a row of instances.json.
#pragma once

#include <string_view>

#include "abi/params.h"

// CUDA's stream without its headers.
struct CUstream_st;

namespace jaxgemm {

// Enqueues a kernel. Returns null, or what went wrong. Does not wait, allocate or read the device.
using Launch = const char* (*)(const GemmParams&, CUstream_st*);

struct Instance {
  std::string_view name;
  // Of a and b.
  DType dtype;
  Launch launch;
};

// The instance of a name, null if this library does not have it.
const Instance* FindInstance(std::string_view name);

}  // namespace jaxgemm
