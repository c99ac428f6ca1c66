// Instructions of one warp on small matrices: ldmatrix, stmatrix and mma.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "ptx/shared_address.cuh"

namespace jaxgemm {

// Loads four 8x8 matrices of 16-bit elements. Lanes 8i to 8i + 7 give the addresses of the rows of
// matrix i; of each, lane 4r + q gets elements 2q and 2q + 1 of row r.
__device__ __forceinline__ void LoadMatrices(uint32_t (&matrices)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(matrices[0]), "=r"(matrices[1]), "=r"(matrices[2]), "=r"(matrices[3])
               : "r"(SharedAddress(row))
               : "memory");
}

// As LoadMatrices, with each matrix transposed on the way.
__device__ __forceinline__ void LoadMatricesTransposed(uint32_t (&matrices)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(matrices[0]), "=r"(matrices[1]), "=r"(matrices[2]), "=r"(matrices[3])
               : "r"(SharedAddress(row))
               : "memory");
}

// The reverse of LoadMatrices.
__device__ __forceinline__ void StoreMatrices(void* row, const uint32_t (&matrices)[4]) {
  asm volatile(
      "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(SharedAddress(row)),
      "r"(matrices[0]), "r"(matrices[1]), "r"(matrices[2]), "r"(matrices[3])
      : "memory");
}

// acc += a · b for a 16x8 tile: depth 16 of 16-bit elements, depth 8 of TF32. Lane 4r + q holds
// rows r and r + 8 of a and acc, columns 2q and 2q + 1 of acc, column r of b.
template <typename T>
__device__ __forceinline__ void MultiplyWarp(float (&acc)[4], const uint32_t (&a)[4], uint32_t b0,
                                             uint32_t b1);

template <>
__device__ __forceinline__ void MultiplyWarp<__nv_bfloat16>(float (&acc)[4], const uint32_t (&a)[4],
                                                            uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7},"
      " {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(acc[0]), "+f"(acc[1]), "+f"(acc[2]), "+f"(acc[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

template <>
__device__ __forceinline__ void MultiplyWarp<__half>(float (&acc)[4], const uint32_t (&a)[4],
                                                     uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7},"
      " {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(acc[0]), "+f"(acc[1]), "+f"(acc[2]), "+f"(acc[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Float32 in TF32: the 13 lowest bits do not take part, so operands should be rounded before.
template <>
__device__ __forceinline__ void MultiplyWarp<float>(float (&acc)[4], const uint32_t (&a)[4],
                                                    uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7},"
      " {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(acc[0]), "+f"(acc[1]), "+f"(acc[2]), "+f"(acc[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ uint32_t RoundToTf32(uint32_t x) {
  uint32_t y;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(y) : "f"(__uint_as_float(x)));
  return y;
}

}  // namespace jaxgemm
