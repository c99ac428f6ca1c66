// The handler of every CUDA kernel: it finds the instance once, then only checks and launches.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "abi/call.h"
#include "handlers/platform.h"

namespace jaxgemm {

int CurrentDevice() {
  int device = 0;
  cudaGetDevice(&device);
  return device;
}

AllowedToAllocate::AllowedToAllocate() {
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  cudaThreadExchangeStreamCaptureMode(&mode);
  previous_mode_ = mode;
}

AllowedToAllocate::~AllowedToAllocate() {
  auto mode = static_cast<cudaStreamCaptureMode>(previous_mode_);
  cudaThreadExchangeStreamCaptureMode(&mode);
}

namespace {

namespace ffi = xla::ffi;

ffi::ErrorOr<std::unique_ptr<Call>> Instantiate(ffi::Dictionary attributes) {
  ffi::ErrorOr<std::unique_ptr<Call>> call = DecodeCall(attributes);
  if (call.has_error()) {
    return call;
  }
  (*call)->instance = FindInstance((*call)->instance_name);
  if ((*call)->instance == nullptr) {
    return ffi::Unexpected(ffi::Error::InvalidArgument(
        "instance: got '" + (*call)->instance_name +
        "', expected one that this library was built with: see instances.json"));
  }
  const std::vector<Role>& outputs = (*call)->outputs;
  const bool has_sum = std::count(outputs.begin(), outputs.end(), Role::kDSum) > 0;
  if ((*call)->instance->dtype.has_value() && ((*call)->pullback || has_sum)) {
    return ffi::Unexpected(ffi::Error::InvalidArgument(
        "operands and outputs: got z as an operand, or d_sum, which only a library computes"));
  }
  return call;
}

// Runs before every execution, and before a graph is captured.
ffi::Error Initialize(const Call* call, ffi::RemainingArgs, ffi::RemainingRets) {
  const char* error = call->instance->start == nullptr ? nullptr : call->instance->start();
  return error == nullptr ? ffi::Error::Success()
                          : ffi::Error::Internal(call->instance_name + ": " + error);
}

// Runs while a CUDA graph may be captured: no waiting, no allocation, no reading of device memory.
ffi::Error Execute(CUstream_st* stream, const Call* call, ffi::RemainingArgs args,
                   ffi::RemainingRets rets) {
  const ffi::ErrorOr<GemmParams> params = DecodeBuffers(*call, args, rets);
  if (params.has_error()) {
    return params.error();
  }
  const bool has_rows = params->m > 0 || params->d_sum.data != nullptr;
  if (!has_rows || params->n == 0 || params->num_matrices == 0) {
    return ffi::Error::Success();
  }
  const char* error = call->instance->launch(*params, stream);
  if (error != nullptr) {
    return ffi::Error::Internal(call->instance_name + ": " + error);
  }
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(JaxgemmInstantiate, Instantiate, BindInstantiate());
XLA_FFI_DEFINE_HANDLER_SYMBOL(
    JaxgemmInitialize, Initialize,
    ffi::Ffi::BindInitialize().Ctx<ffi::State<Call>>().RemainingArgs().RemainingRets());
XLA_FFI_DEFINE_HANDLER_SYMBOL(JaxgemmExecute, Execute,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::PlatformStream<CUstream_st*>>()
                                  .Ctx<ffi::State<Call>>()
                                  .RemainingArgs()
                                  .RemainingRets(),
                              {ffi::Traits::kCmdBufferCompatible});

}  // namespace jaxgemm
