// One compiled instance. The build defines, from a row of instances.json:
//   JAXGEMM_HEADER    the kernel's file
//   JAXGEMM_SYMBOL    a C name of its own
//   JAXGEMM_TEMPLATE  a type with `static const char* Launch(const GemmParams&, cudaStream_t)`
#include "abi/params.h"
#include JAXGEMM_HEADER

extern "C" const char* JAXGEMM_SYMBOL(const jaxgemm::GemmParams& params, cudaStream_t stream) {
  return jaxgemm::JAXGEMM_TEMPLATE::Launch(params, stream);
}
