// A GEMM on NVIDIA's cuBLASLt: the instance "cublaslt".
//
// The library's matrices are column-major, so ours, which lie by rows, are their transposes:
//
//     dᵀ (n, m) = act(alpha · op(b)ᵀ (n, k) · op(a)ᵀ (k, m) + beta · cᵀ (n, m) + bias (n))
//
// and what it calls the gradient of a bias is the sum of the columns of dᵀ: our d_sum (n).
//
// Knobs: the index of an algorithm in the list that the library's heuristics give, best first,
// where an index past the end is the last one; and whether float32 is multiplied as it is (1) or as
// TF32 (0). `workspace_bytes` is the most that an algorithm may use.
#pragma once

#include "abi/params.h"
#include "cublaslt/api.h"

namespace jaxgemm::cublaslt {

// As `Launch` and `Start` in abi/instance.h. The text of an error lives until the thread's next
// one.
const char* Launch(const GemmParams& params, CUstream_st* stream);
const char* Start();

}  // namespace jaxgemm::cublaslt
