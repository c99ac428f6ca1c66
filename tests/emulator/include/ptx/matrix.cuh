// As ffi/ptx/matrix.cuh, after the PTX ISA, "Warp level matrix instructions".
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstring>

#include "ptx/shared_address.cuh"

namespace jaxgemm {

// PTX ISA, "ldmatrix" and "stmatrix": thread 8 i + r names row r of matrix i. Of each matrix lane
// 4 r + q has elements 2 q and 2 q + 1 of row r; with `.trans`, of column r.
template <typename Move>
void ForEachElement(const void* row, const char* instruction, bool is_transposed,
                    const Move& move) {
  const uint32_t address = SharedAddress(row);
  if (address % 16 != 0) {
    emulator::Fail("%s: address %u is not a multiple of 16", instruction, address);
  }
  const uint32_t* rows = emulator::ExchangeInWarp(instruction, address);
  const int lane = emulator::Lane();
  for (int matrix = 0; matrix < 4; ++matrix) {
    for (int i = 0; i < 2; ++i) {
      const int at_row = is_transposed ? lane % 4 * 2 + i : lane / 4;
      const int column = is_transposed ? lane / 4 : lane % 4 * 2 + i;
      char* smem = emulator::SharedMemory(*emulator::current->cta,
                                          rows[8 * matrix + at_row] + 2 * column, 2, instruction);
      if (smem != nullptr) {
        move(matrix, 16 * i, smem);
      }
    }
  }
}

inline void LoadMatricesAs(uint32_t (&matrices)[4], const void* row, bool is_transposed) {
  for (uint32_t& matrix : matrices) {
    matrix = 0;
  }
  ForEachElement(row, "ldmatrix", is_transposed, [&](int matrix, int shift, const char* smem) {
    uint16_t half;
    std::memcpy(&half, smem, sizeof half);
    matrices[matrix] |= static_cast<uint32_t>(half) << shift;
  });
}
inline void LoadMatrices(uint32_t (&matrices)[4], const void* row) {
  LoadMatricesAs(matrices, row, false);
}
inline void LoadMatricesTransposed(uint32_t (&matrices)[4], const void* row) {
  LoadMatricesAs(matrices, row, true);
}

inline void StoreMatrices(void* row, const uint32_t (&matrices)[4]) {
  ForEachElement(row, "stmatrix", false, [&](int matrix, int shift, char* smem) {
    const auto half = static_cast<uint16_t>(matrices[matrix] >> shift);
    std::memcpy(smem, &half, sizeof half);
  });
}

// Element `i` of the 16-bit ones in words.
template <typename T>
float ElementOf(const uint32_t* words, int i) {
  const auto half = static_cast<uint16_t>(words[i / 2] >> 16 * (i % 2));
  return static_cast<float>(__builtin_bit_cast(T, half));
}

struct Fragments {
  uint32_t a[4];
  uint32_t b[2];
};

// PTX ISA, "Matrix fragments for mma.m16n8k16 with floating point type": of acc a lane has row
// lane / 4 (+ 8 from element 2 on) and columns lane % 4 · 2 (+ 1). `product(all, row, column)` is
// the sum over k of the lanes' fragments.
template <typename Product>
void MultiplyAs(float (&acc)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                const Product& product) {
  const Fragments* all =
      emulator::ExchangeInWarp("mma", Fragments{{a[0], a[1], a[2], a[3]}, {b0, b1}});
  const int lane = emulator::Lane();
  for (int i = 0; i < 4; ++i) {
    acc[i] += product(all, lane / 4 + i / 2 * 8, lane % 4 * 2 + i % 2);
  }
}

// The same section: of a, elements 2 and 3 of each four are 8 rows further on, and the last four
// are 8 deeper; of b the last two are.
template <typename T>
void MultiplyWarp(float (&acc)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  MultiplyAs(acc, a, b0, b1, [](const Fragments* all, int row, int column) {
    float sum = 0.0f;
    for (int k = 0; k < 16; ++k) {
      const int lane_k = k % 8 / 2;
      sum += ElementOf<T>(all[row % 8 * 4 + lane_k].a, k % 2 + row / 8 * 2 + k / 8 * 4) *
             ElementOf<T>(all[column * 4 + lane_k].b, k % 2 + k / 8 * 2);
    }
    return sum;
  });
}

// PTX ISA, "Matrix fragments for mma.m16n8k8", of `.tf32`, whose 13 lowest bits do not take part.
template <>
inline void MultiplyWarp<float>(float (&acc)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  MultiplyAs(acc, a, b0, b1, [](const Fragments* all, int row, int column) {
    float sum = 0.0f;
    for (int k = 0; k < 8; ++k) {
      const uint32_t x = all[row % 8 * 4 + k % 4].a[row / 8 + k / 4 * 2];
      const uint32_t y = all[column * 4 + k % 4].b[k / 4];
      sum += __builtin_bit_cast(float, x & ~0x1FFFu) * __builtin_bit_cast(float, y & ~0x1FFFu);
    }
    return sum;
  });
}

// PTX ISA, "cvt.rna.tf32": to nearest, ties away from zero.
inline uint32_t RoundToTf32(uint32_t x) {
  const bool is_finite = (x & 0x7F800000u) != 0x7F800000u;
  return is_finite ? (x + 0x1000u) & ~0x1FFFu : x;
}

}  // namespace jaxgemm
