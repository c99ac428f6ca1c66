// The same operation on the CPU, behind the same checks: so that binding and errors can be tested,
// and watched by sanitizers, without a GPU. Written to be read, not to be fast.
#include <cstdint>
#include <cstring>
#include <memory>

#include "abi/call.h"
#include "handlers/platform.h"
#include "parts/activation.h"
#include "parts/batch.h"

namespace jaxgemm {

int CurrentDevice() { return 0; }

AllowedToAllocate::AllowedToAllocate() : previous_mode_(0) {}
AllowedToAllocate::~AllowedToAllocate() = default;

namespace {

namespace ffi = xla::ffi;

float FromBits(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof(x));
  return x;
}

uint32_t ToBits(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  return bits;
}

// bfloat16 is the upper half of a float32.
float FromBF16(uint16_t x) { return FromBits(static_cast<uint32_t>(x) << 16); }

// Rounds to nearest even; NaN stays NaN.
uint16_t ToBF16(float x) {
  const uint32_t bits = ToBits(x);
  if (x != x) {
    return static_cast<uint16_t>((bits >> 16) | 0x40);
  }
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

float Load(const Tensor& tensor, int64_t index) {
  switch (tensor.dtype) {
    case DType::kBF16:
      return FromBF16(static_cast<const uint16_t*>(tensor.data)[index]);
    case DType::kF16:
      return static_cast<float>(static_cast<const _Float16*>(tensor.data)[index]);
    default:
      return static_cast<const float*>(tensor.data)[index];
  }
}

void Store(const Tensor& tensor, int64_t index, float x) {
  switch (tensor.dtype) {
    case DType::kBF16:
      static_cast<uint16_t*>(tensor.data)[index] = ToBF16(x);
      break;
    case DType::kF16:
      static_cast<_Float16*>(tensor.data)[index] = static_cast<_Float16>(x);
      break;
    default:
      static_cast<float*>(tensor.data)[index] = x;
  }
}

// An absent scalar is 1.
float Scalar(const Tensor& tensor, const BatchPlace& batch) {
  return tensor.data == nullptr ? 1.0f : Load(tensor, batch.Offset(tensor));
}

float Product(const GemmParams& params, const BatchPlace& batch, int64_t row, int64_t column) {
  const bool a_is_k_major = params.a_major == Major::kK;
  const bool b_is_k_major = params.b_major == Major::kK;
  const int64_t a_step = a_is_k_major ? 1 : params.a.row_stride;
  const int64_t b_step = b_is_k_major ? 1 : params.b.row_stride;
  const int64_t a = batch.Offset(params.a) + (a_is_k_major ? row * params.a.row_stride : row);
  const int64_t b = batch.Offset(params.b) + (b_is_k_major ? column * params.b.row_stride : column);
  float sum = 0.0f;
  for (int64_t k = 0; k < params.k; ++k) {
    sum += Load(params.a, a + k * a_step) * Load(params.b, b + k * b_step);
  }
  return sum;
}

void ComputeMatrix(const GemmParams& params, const BatchPlace& batch) {
  const float alpha = Scalar(params.alpha, batch);
  const float beta = Scalar(params.beta, batch);
  const int64_t c_offset = batch.Offset(params.c);
  const int64_t bias_offset = batch.Offset(params.bias);
  const int64_t d_offset = batch.Offset(params.d);
  const int64_t z_offset = batch.Offset(params.z);
  for (int64_t row = 0; row < params.m; ++row) {
    for (int64_t column = 0; column < params.n; ++column) {
      float z = alpha * Product(params, batch, row, column);
      // beta = 0 means that c is not read: NaN in c never shows.
      if (params.c.data != nullptr && beta != 0.0f) {
        z += beta * Load(params.c, c_offset + row * params.c.row_stride + column);
      }
      if (params.bias.data != nullptr) {
        z += Load(params.bias, bias_offset + column);
      }
      const int64_t z_index = z_offset + row * params.z.row_stride + column;
      float d = Finish(params, z);
      if (params.pullback) {
        d = PullBack(params.activation, Load(params.z, z_index), z);
      } else if (params.z.data != nullptr) {
        Store(params.z, z_index, z);
      }
      Store(params.d, d_offset + row * params.d.row_stride + column, d);
    }
  }
}

// Adds up what was rounded.
void SumRows(const GemmParams& params, const BatchPlace& batch) {
  const int64_t d_offset = batch.Offset(params.d);
  for (int64_t column = 0; column < params.n; ++column) {
    float sum = 0.0f;
    for (int64_t row = 0; row < params.m; ++row) {
      sum += Load(params.d, d_offset + row * params.d.row_stride + column);
    }
    Store(params.d_sum, batch.Offset(params.d_sum) + column, sum);
  }
}

// No kernel is compiled for the CPU: only what calls a library has an instance.
ffi::ErrorOr<std::unique_ptr<Call>> Instantiate(ffi::Dictionary attributes) {
  ffi::ErrorOr<std::unique_ptr<Call>> call = DecodeCall(attributes);
  if (call.has_value()) {
    (*call)->instance = FindInstance((*call)->instance_name);
  }
  return call;
}

ffi::Error Execute(const Call* call, ffi::RemainingArgs args, ffi::RemainingRets rets) {
  const ffi::ErrorOr<GemmParams> params = DecodeBuffers(*call, args, rets);
  if (params.has_error()) {
    return params.error();
  }
  const bool has_rows = params->m > 0 || params->d_sum.data != nullptr;
  if (!has_rows || params->n == 0 || params->num_matrices == 0) {
    return ffi::Error::Success();
  }
  if (call->instance != nullptr) {
    const char* error = call->instance->launch(*params, nullptr);
    return error == nullptr ? ffi::Error::Success()
                            : ffi::Error::Internal(call->instance_name + ": " + error);
  }
  // Each of them takes memory for d, so there are fewer than 2^31.
  for (int32_t matrix = 0; matrix < params->num_matrices; ++matrix) {
    const BatchPlace batch = BatchPlace::Of(*params, matrix);
    ComputeMatrix(*params, batch);
    if (params->d_sum.data != nullptr) {
      SumRows(*params, batch);
    }
  }
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(JaxgemmInstantiate, Instantiate, BindInstantiate());
XLA_FFI_DEFINE_HANDLER_SYMBOL(
    JaxgemmExecute, Execute,
    ffi::Ffi::Bind().Ctx<ffi::State<Call>>().RemainingArgs().RemainingRets());

}  // namespace jaxgemm
