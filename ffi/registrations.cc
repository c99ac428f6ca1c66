// What Python looks up in a library, and the table of its instances.
#include "abi/call.h"
#include "abi/instance.h"
#include "cublaslt/matmul.h"

// Written by the build: JAXGEMM_INSTANCE(name, dtype) for each compiled row of instances.json, and
// JAXGEMM_ARCHS, what they are compiled for.
#include "instances.inc"

#define JAXGEMM_INSTANCE(name, dtype) \
  extern "C" const char* jaxgemm_launch_##name(const jaxgemm::GemmParams&, CUstream_st*);
JAXGEMM_INSTANCES
#undef JAXGEMM_INSTANCE

namespace jaxgemm {

const Instance* FindInstance(std::string_view name) {
  static constexpr Instance instances[] = {
#define JAXGEMM_INSTANCE(name, dtype) {#name, DType::dtype, jaxgemm_launch_##name},
      JAXGEMM_INSTANCES
#undef JAXGEMM_INSTANCE
      {"cublaslt", std::nullopt, cublaslt::Launch, cublaslt::Start}};
  for (const Instance& instance : instances) {
    if (instance.name == name) {
      return &instance;
    }
  }
  return nullptr;
}

}  // namespace jaxgemm

extern "C" {

int JaxgemmAbiVersion() { return jaxgemm::kAbiVersion; }

// The minor version of XLA's FFI headers: a runtime accepts it or an older one.
int JaxgemmFfiMinor() { return XLA_FFI_API_MINOR; }

// The architectures that there is machine code for, as in "80 90a"; none on the CPU.
const char* JaxgemmArchs() { return JAXGEMM_ARCHS; }

// The names of the compiled instances, each after a space.
const char* JaxgemmInstances() {
#define JAXGEMM_INSTANCE(name, dtype) " " #name
  return "" JAXGEMM_INSTANCES;
#undef JAXGEMM_INSTANCE
}

void* JaxgemmCallTypeId() { return &jaxgemm::Call::id; }

const void* JaxgemmCallTypeInfo() { return &jaxgemm::Call::info; }

// Loads cuBLASLt from a file or by its name. Returns null, or what went wrong.
const char* JaxgemmLoadCublasLt(const char* file) { return jaxgemm::cublaslt::Load(file); }
}
