// Rung 1, cuda.naive: one thread computes one element of d, straight from global memory.
//
// There is no rung below. Each thread reads a row of a and a column of b:
//
//     bytes = itemsize · 2 · m · n · k        flops = 2 · m · n · k        intensity 1 / itemsize
//
// so every element of a is asked for n times and every element of b m times. Neighbouring threads
// of a warp (threadIdx.x) take neighbouring *rows* of d, the order in which one loops over
// matrices in C. Then a load of a row-major a touches 32 different rows, 32 sectors of 32 bytes of
// which 4 are used, and so does every store.
//
// Limits now: sectors a request, so the load/store units and L1. Rung 2 turns the warp by 90°.
#pragma once

#include "parts/batch.h"
#include "parts/elements.cuh"
#include "parts/epilogue.cuh"
#include "parts/launch.cuh"

namespace jaxgemm {

template <typename T>
struct Naive {
  static constexpr int kTile = 16;

  static __device__ void Run(const GemmParams& params) {
    const int64_t tiles_m = (params.m + kTile - 1) / kTile;
    const int64_t tiles_n = (params.n + kTile - 1) / kTile;
    const int64_t matrix = blockIdx.x / (tiles_m * tiles_n);
    const int64_t tile = blockIdx.x % (tiles_m * tiles_n);
    const int row = static_cast<int>(tile / tiles_n) * kTile + threadIdx.x % kTile;
    const int column = static_cast<int>(tile % tiles_n) * kTile + threadIdx.x / kTile;
    if (row >= params.m || column >= params.n) {
      return;
    }
    const T* a = static_cast<const T*>(params.a.data) + MatrixOffset(params, params.a, matrix);
    const T* b = static_cast<const T*>(params.b.data) + MatrixOffset(params, params.b, matrix);
    const bool a_is_k_major = params.a_major == Major::kK;
    const bool b_is_k_major = params.b_major == Major::kK;
    const int64_t a_step = a_is_k_major ? 1 : params.a.row_stride;
    const int64_t b_step = b_is_k_major ? 1 : params.b.row_stride;
    a += a_is_k_major ? row * params.a.row_stride : row;
    b += b_is_k_major ? column * params.b.row_stride : column;
    float product = 0.0f;
    for (int k = 0; k < params.k; ++k) {
      product += ToFloat(a[k * a_step]) * ToFloat(b[k * b_step]);
    }
    Epilogue(params, matrix).Store(row, column, product);
  }

  static const char* Launch(const GemmParams& params, cudaStream_t stream);
};

template <typename T>
__global__ __launch_bounds__(Naive<T>::kTile* Naive<T>::kTile) void NaiveKernel(
    const __grid_constant__ GemmParams params) {
  Naive<T>::Run(params);
}

template <typename T>
const char* Naive<T>::Launch(const GemmParams& params, cudaStream_t stream) {
  const int64_t num_ctas =
      CeilDiv(params.m, kTile) * CeilDiv(params.n, kTile) * params.num_matrices;
  return LaunchKernel(NaiveKernel<T>, params, num_ctas, kTile * kTile, 0, stream);
}

}  // namespace jaxgemm
