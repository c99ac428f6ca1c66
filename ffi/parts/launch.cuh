// Launching a kernel that takes GemmParams.
#pragma once

#include <cuda_runtime.h>

#include "abi/params.h"

namespace jaxgemm {

// More shared memory than this has to be asked for.
inline constexpr int kDefaultSmemBytes = 48 * 1024;

inline int64_t CeilDiv(int64_t x, int64_t y) { return (x + y - 1) / y; }

// Enqueues a one-dimensional grid. Returns null, or CUDA's text of what went wrong.
inline const char* LaunchKernel(void (*kernel)(GemmParams), const GemmParams& params,
                                int64_t num_ctas, int num_threads, int smem_bytes,
                                cudaStream_t stream) {
  if (num_ctas > INT32_MAX) {
    return "the grid has more than 2^31 - 1 CTAs";
  }
  if (smem_bytes > kDefaultSmemBytes) {
    const cudaError_t error =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, smem_bytes);
    if (error != cudaSuccess) {
      return cudaGetErrorString(error);
    }
  }
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(num_ctas));
  config.blockDim = dim3(num_threads);
  config.dynamicSmemBytes = smem_bytes;
  config.stream = stream;
  const cudaError_t error = cudaLaunchKernelEx(&config, kernel, params);
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

}  // namespace jaxgemm
