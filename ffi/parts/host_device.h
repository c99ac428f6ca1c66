// Functions that the CPU handler and device code share.
#pragma once

#if defined(__CUDACC__)
#define JAXGEMM_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define JAXGEMM_HOST_DEVICE inline
#endif
