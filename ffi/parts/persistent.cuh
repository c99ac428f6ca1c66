// Launching a persistent grid of clusters: as many CTAs as the device runs at a time, or fewer.
#pragma once

#include <algorithm>

#include "parts/launch.cuh"

namespace jaxgemm {

// Returns null, or CUDA's text of what went wrong. With `starts_early` the kernel before lets it
// start before it is complete.
template <class Plan>
const char* LaunchPersistent(void (*kernel)(GemmParams, Plan), const GemmParams& params,
                             const Plan& plan, int num_tiles, int cluster_size, int num_threads,
                             int smem_bytes, bool starts_early, cudaStream_t stream) {
  int device = 0;
  int num_sms = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) {
    error = cudaDeviceGetAttribute(&num_sms, cudaDevAttrMultiProcessorCount, device);
  }
  if (error == cudaSuccess) {
    error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, smem_bytes);
  }
  if (error != cudaSuccess) {
    return cudaGetErrorString(error);
  }
  const int num_clusters = std::min(num_tiles, num_sms / cluster_size);
  cudaLaunchAttribute attributes[2];
  attributes[0].id = cudaLaunchAttributeClusterDimension;
  attributes[0].val.clusterDim = {static_cast<unsigned>(cluster_size), 1, 1};
  attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[1].val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(num_clusters * cluster_size));
  config.blockDim = dim3(num_threads);
  config.dynamicSmemBytes = smem_bytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = starts_early ? 2 : 1;
  error = cudaLaunchKernelEx(&config, kernel, params, plan);
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

}  // namespace jaxgemm
