// Takes the place of CUDA's header of this name, where kernels are compiled as host C++.
#pragma once

#include_next <cuda_runtime.h>
#include <vector_functions.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "machine.h"

#undef __shared__
// CTAs with static shared memory run one after another, so all can use the same. Kernels are not
// the only ones who access it: other threads do, whenever this one waits.
#define __shared__ static __attribute__((section("emulated_smem"), used))
#undef __grid_constant__
#define __grid_constant__
#undef __launch_bounds__
#define __launch_bounds__(...)

extern uint3 threadIdx;
extern uint3 blockIdx;
extern dim3 gridDim;

using std::max;
using std::min;

inline void __syncthreads() { emulator::SyncCta(); }
inline void __syncwarp() { emulator::MeetWarp("__syncwarp"); }

template <typename T>
T __shfl_sync(unsigned, T value, int lane) {
  return emulator::ExchangeInWarp("__shfl_sync", value)[lane];
}

template <typename T>
T __ldg(const T* from) {
  emulator::CheckRead(from, sizeof(T));
  return *from;
}

inline uint32_t __funnelshift_r(uint32_t low, uint32_t high, uint32_t shift) {
  return static_cast<uint32_t>((static_cast<uint64_t>(high) << 32 | low) >> shift % 32);
}

template <typename Kernel>
cudaError_t cudaFuncSetAttribute(Kernel, cudaFuncAttribute, int bytes) {
  return bytes <= 227 * 1024 ? cudaSuccess : cudaErrorInvalidValue;
}

namespace emulator {

template <typename... Parameters, typename... Arguments>
cudaError_t LaunchKernel(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                         const Arguments&... arguments) {
  RunGrid(*config, [&] { kernel(arguments...); });
  return cudaSuccess;
}

}  // namespace emulator

// CUDA's own template of this name gives the arguments to a function of the library.
#define cudaLaunchKernelEx emulator::LaunchKernel
