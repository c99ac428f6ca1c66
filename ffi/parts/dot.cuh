// One element of the product, from global memory.
#pragma once

#include "parts/elements.cuh"
#include "parts/operand.cuh"

namespace jaxgemm {

// Σ_k a[row, k] · b[k, column], in float32.
template <typename T>
__device__ float DotProduct(const GemmParams& params, const BatchPlace& batch, int row,
                            int column) {
  const auto a = Operand<T>::OfA(params, batch);
  const auto b = Operand<T>::OfB(params, batch);
  const T* a_k = a.At(row, 0);
  const T* b_k = b.At(column, 0);
  float sum = 0.0f;
  for (int k = 0; k < params.k; ++k) {
    sum += ToFloat(*a_k) * ToFloat(*b_k);
    a_k += a.k_stride();
    b_k += b.k_stride();
  }
  return sum;
}

}  // namespace jaxgemm
