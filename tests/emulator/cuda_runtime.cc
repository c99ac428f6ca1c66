// What kernels' launches ask of the CUDA runtime.
#include "cuda_runtime.h"

extern "C" cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}

extern "C" cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  *value = attribute == cudaDevAttrMultiProcessorCount ? emulator::settings.num_sms : 0;
  return cudaSuccess;
}

extern "C" const char* cudaGetErrorString(cudaError_t) { return "an error of CUDA"; }

extern "C" cudaError_t cudaGetDriverEntryPointByVersion(const char*, void** function, unsigned,
                                                        unsigned long long,
                                                        cudaDriverEntryPointQueryResult* found) {
  *function = emulator::EncodeTiledFunction();
  *found = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}
