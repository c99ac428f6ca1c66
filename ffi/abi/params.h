// One GEMM as plain data: what handlers decode from XLA's buffers and every kernel is given.
//
//     z[b…, m, n] = alpha · Σ_k a[b…, m, k] · b[b…, k, n] + beta · c[b…, m, n] + bias[b…, n]
//     d[b…, m, n] = clamp(act(z[b…, m, n]))
//
// or, with `pullback`, d = act'(z) · (alpha · Σ … + beta · c) for a given z.
// No XLA header and no CUDA header: the CPU handler and device code read the same struct.
#pragma once

#include <cstdint>

namespace jaxgemm {

// Raised whenever this file changes, or the attributes of a call, or what a kernel expects of its
// knobs and its workspace. ABI_VERSION in jaxgemm/ffi_kernels/library.py is the same number.
inline constexpr int32_t kAbiVersion = 6;
inline constexpr int kMaxBatchAxes = 4;
inline constexpr int kMaxKnobs = 8;

// Our own kernels read and write the first three; kU8 is a workspace.
enum class DType : int32_t { kF32, kBF16, kF16, kU8, kF64, kS8, kS32, kF8E4M3, kF8E5M2 };

enum class Activation : int32_t {
  kNone,
  kRelu,
  kGelu,
  kGeluExact,
  kSilu,
  kSigmoid,
  kTanh,
  kRelu2,
};

// Along which dimension of the product the elements of an operand are contiguous.
enum class Major : int32_t { kMN, kK };

// An operand or output. A batch axis that it does not have has stride 0.
struct Tensor {
  // Null where the operand or output is absent. Outputs are written through it.
  void* data;
  DType dtype;
  // Elements between rows of a matrix as stored; the last dimension is contiguous. Where a batch
  // axis lies between the two dimensions of a matrix, rows of other matrices lie between its own.
  int64_t row_stride;
  // Elements, in the order of batch_sizes. All of them are multiples of the smallest one.
  int64_t batch_strides[kMaxBatchAxes];
};

struct GemmParams {
  int32_t m;
  int32_t n;
  int32_t k;
  // Matrices in d: the product of batch_sizes.
  int64_t num_matrices;
  int32_t num_batch_axes;
  int32_t batch_sizes[kMaxBatchAxes];

  // kK: stored as (m, k); kMN: stored as (k, m).
  Major a_major;
  // kK: stored as (n, k); kMN: stored as (k, n).
  Major b_major;
  Activation activation;
  // Between which the result is kept; infinite where there is no bound.
  float clamp_low;
  float clamp_high;
  // Whether z is an operand, and d a product times the slope of the activation there.
  bool pullback;

  Tensor a;
  Tensor b;
  Tensor c;      // (m, n)
  Tensor bias;   // (n)
  Tensor alpha;  // scalar in the accumulator dtype, on the device
  Tensor beta;   // scalar in the accumulator dtype, on the device; 0 means that c is not read
  Tensor d;      // (m, n)
  Tensor z;      // (m, n): what the activation is applied to; an output but for `pullback`
  Tensor d_sum;  // (n): the sum of the rows of d, rounded or not

  // Scratch memory that this call owns while it runs; its contents are undefined.
  void* workspace;
  int64_t workspace_bytes;
  // What a kernel's config says at run time; each kernel gives them their meaning.
  int32_t num_knobs;
  int32_t knobs[kMaxKnobs];
};

}  // namespace jaxgemm
