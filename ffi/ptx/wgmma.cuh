// wgmma: a warpgroup multiplies 64 rows by kN columns at a depth of 32 bytes: 16 elements of 16
// bits from shared memory, or 8 of float32 in TF32 with the first operand from registers.
//
// Lane 4r + q of warp w holds of the product, in acc[4 t + 2 h + e], row 16 w + r + 8 h and column
// 8 t + 2 q + e. The product is asynchronous: between the first Multiply and the wait for its
// group, the accumulators and operands belong to the Tensor Cores.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "abi/params.h"
#include "ptx/descriptor.cuh"

namespace jaxgemm {

// Orders this warpgroup's accesses to accumulators and registers before the products that follow.
__device__ __forceinline__ void FenceProducts() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void CommitProducts() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Waits until at most kPending groups of products are incomplete.
template <int kPending>
__device__ __forceinline__ void WaitForProducts() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// Operands %0 to %(count - 1) of an asm statement, as text and as constraints.
#define JAXGEMM_TEXT_8(a, b, c, d, e, f, g, h) \
  "%" #a ",%" #b ",%" #c ",%" #d ",%" #e ",%" #f ",%" #g ",%" #h
#define JAXGEMM_TEXT_32                                                \
  JAXGEMM_TEXT_8(0, 1, 2, 3, 4, 5, 6, 7)                               \
  "," JAXGEMM_TEXT_8(8, 9, 10, 11, 12, 13, 14, 15) "," JAXGEMM_TEXT_8( \
      16, 17, 18, 19, 20, 21, 22, 23) "," JAXGEMM_TEXT_8(24, 25, 26, 27, 28, 29, 30, 31)
#define JAXGEMM_TEXT_64                                                                         \
  JAXGEMM_TEXT_32 "," JAXGEMM_TEXT_8(32, 33, 34, 35, 36, 37, 38, 39) "," JAXGEMM_TEXT_8(        \
      40, 41, 42, 43, 44, 45, 46, 47) "," JAXGEMM_TEXT_8(48, 49, 50, 51, 52, 53, 54,            \
                                                         55) "," JAXGEMM_TEXT_8(56, 57, 58, 59, \
                                                                                60, 61, 62, 63)
#define JAXGEMM_TEXT_96                                                                         \
  JAXGEMM_TEXT_64 "," JAXGEMM_TEXT_8(64, 65, 66, 67, 68, 69, 70, 71) "," JAXGEMM_TEXT_8(        \
      72, 73, 74, 75, 76, 77, 78, 79) "," JAXGEMM_TEXT_8(80, 81, 82, 83, 84, 85, 86,            \
                                                         87) "," JAXGEMM_TEXT_8(88, 89, 90, 91, \
                                                                                92, 93, 94, 95)
#define JAXGEMM_TEXT_128                                                                     \
  JAXGEMM_TEXT_96 "," JAXGEMM_TEXT_8(96, 97, 98, 99, 100, 101, 102, 103) "," JAXGEMM_TEXT_8( \
      104, 105, 106, 107, 108, 109, 110,                                                     \
      111) "," JAXGEMM_TEXT_8(112, 113, 114, 115, 116, 117, 118,                             \
                              119) "," JAXGEMM_TEXT_8(120, 121, 122, 123, 124, 125, 126, 127)
#define JAXGEMM_ACC_8(i)                                                                \
  "+f"(acc[i]), "+f"(acc[i + 1]), "+f"(acc[i + 2]), "+f"(acc[i + 3]), "+f"(acc[i + 4]), \
      "+f"(acc[i + 5]), "+f"(acc[i + 6]), "+f"(acc[i + 7])
#define JAXGEMM_ACC_32(i) \
  JAXGEMM_ACC_8(i), JAXGEMM_ACC_8(i + 8), JAXGEMM_ACC_8(i + 16), JAXGEMM_ACC_8(i + 24)
#define JAXGEMM_ACC_64(i) JAXGEMM_ACC_32(i), JAXGEMM_ACC_32(i + 32)
#define JAXGEMM_ACC_96(i) JAXGEMM_ACC_64(i), JAXGEMM_ACC_32(i + 64)
#define JAXGEMM_ACC_128(i) JAXGEMM_ACC_64(i), JAXGEMM_ACC_64(i + 64)

// The instruction with both operands in shared memory: s0 to s4 are the numbers of the operands
// after the accumulators (a, b, whether to add to acc, and which operands are transposed).
#define JAXGEMM_WGMMA_SS(n, count, dtype, s0, s1, s2, s3, s4)                                     \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #s2                                           \
               ", 0;\n"                                                                           \
               "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." dtype "." dtype                  \
               " {" JAXGEMM_TEXT_##count "}, %" #s0 ", %" #s1 ", p, 1, 1, %" #s3 ", %" #s4 ";\n}" \
               : JAXGEMM_ACC_##count(0)                                                           \
               : "l"(a), "l"(b), "r"(static_cast<int>(adds)), "n"(kAMajor == Major::kMN),         \
                 "n"(kBMajor == Major::kMN))

// acc = a · b, added to acc if `adds`; a and b are descriptors of 64 x 16 and 16 x kN elements.
template <typename T, int kN, Major kAMajor, Major kBMajor>
__device__ __forceinline__ void Multiply(float (&acc)[kN / 2], uint64_t a, uint64_t b, bool adds) {
  static_assert(kN == 64 || kN == 128 || kN == 192 || kN == 256, "these sizes are written out");
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    if constexpr (kN == 256) {
      JAXGEMM_WGMMA_SS(256, 128, "bf16", 128, 129, 130, 131, 132);
    } else if constexpr (kN == 192) {
      JAXGEMM_WGMMA_SS(192, 96, "bf16", 96, 97, 98, 99, 100);
    } else if constexpr (kN == 128) {
      JAXGEMM_WGMMA_SS(128, 64, "bf16", 64, 65, 66, 67, 68);
    } else {
      JAXGEMM_WGMMA_SS(64, 32, "bf16", 32, 33, 34, 35, 36);
    }
  } else {
    if constexpr (kN == 256) {
      JAXGEMM_WGMMA_SS(256, 128, "f16", 128, 129, 130, 131, 132);
    } else if constexpr (kN == 192) {
      JAXGEMM_WGMMA_SS(192, 96, "f16", 96, 97, 98, 99, 100);
    } else if constexpr (kN == 128) {
      JAXGEMM_WGMMA_SS(128, 64, "f16", 64, 65, 66, 67, 68);
    } else {
      JAXGEMM_WGMMA_SS(64, 32, "f16", 32, 33, 34, 35, 36);
    }
  }
}

#undef JAXGEMM_WGMMA_SS

// The instruction with the first operand in registers: r0 to r3 and s0 are the numbers of the
// operands after the accumulators (a, b).
#define JAXGEMM_WGMMA_RS_TF32(n, count, r0, r1, r2, r3, s0)                                   \
  asm volatile("wgmma.mma_async.sync.aligned.m64n" #n                                         \
               "k8.f32.tf32.tf32"                                                             \
               " {" JAXGEMM_TEXT_##count "}, {%" #r0 ", %" #r1 ", %" #r2 ", %" #r3 "}, %" #s0 \
                                         ", 1, 1, 1;"                                         \
               : JAXGEMM_ACC_##count(0)                                                       \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))

// acc += a · b in TF32; b is the descriptor of 8 x kN elements, contiguous along k. Of a, 64 x 8,
// lane 4r + q of warp w holds column q of rows 16 w + r and 16 w + r + 8, then column q + 4 of
// both; they belong to the Tensor Cores as the accumulators do. The 13 lowest bits of an element do
// not take part, so operands should be rounded before.
template <int kN>
__device__ __forceinline__ void MultiplyTf32(float (&acc)[kN / 2], const uint32_t (&a)[4],
                                             uint64_t b) {
  static_assert(kN == 64 || kN == 128 || kN == 256, "these sizes are written out");
  if constexpr (kN == 256) {
    JAXGEMM_WGMMA_RS_TF32(256, 128, 128, 129, 130, 131, 132);
  } else if constexpr (kN == 128) {
    JAXGEMM_WGMMA_RS_TF32(128, 64, 64, 65, 66, 67, 68);
  } else {
    JAXGEMM_WGMMA_RS_TF32(64, 32, 32, 33, 34, 35, 36);
  }
}

#undef JAXGEMM_WGMMA_RS_TF32

}  // namespace jaxgemm
