// Functions that host code and device code share.
#pragma once

#if defined(__CUDACC__)
#define JAXGEMM_HOST_DEVICE __host__ __device__ __forceinline__
// Before a loop: what it indexes stays in registers.
#define JAXGEMM_UNROLL _Pragma("unroll")
#else
#define JAXGEMM_HOST_DEVICE inline
#define JAXGEMM_UNROLL
#endif
