// The handler of every CUDA kernel: it finds the instance once, then only checks and launches.
#include <memory>
#include <string>
#include <utility>

#include "abi/call.h"

namespace jaxgemm {
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
  return call;
}

// Runs while a CUDA graph may be captured: no waiting, no allocation, no reading of device memory.
ffi::Error Execute(CUstream_st* stream, const Call* call, ffi::RemainingArgs args,
                   ffi::RemainingRets rets) {
  const ffi::ErrorOr<GemmParams> params = DecodeBuffers(*call, args, rets);
  if (params.has_error()) {
    return params.error();
  }
  if (params->m == 0 || params->n == 0 || params->num_matrices == 0) {
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
XLA_FFI_DEFINE_HANDLER_SYMBOL(JaxgemmExecute, Execute,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::PlatformStream<CUstream_st*>>()
                                  .Ctx<ffi::State<Call>>()
                                  .RemainingArgs()
                                  .RemainingRets(),
                              {ffi::Traits::kCmdBufferCompatible});

}  // namespace jaxgemm
