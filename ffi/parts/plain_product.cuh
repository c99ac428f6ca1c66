// Whether there is nothing to do after the product.
#pragma once

#include "abi/params.h"
#include "parts/activation.h"
#include "parts/host_device.h"

namespace jaxgemm {

// Whether d is the product itself, in elements of the type of the operands.
JAXGEMM_HOST_DEVICE bool IsPlainProduct(const GemmParams& params, DType dtype) {
  const bool adds = params.c.data != nullptr || params.bias.data != nullptr;
  return params.d.dtype == dtype && params.z.data == nullptr && params.alpha.data == nullptr &&
         !adds && params.activation == Activation::kNone && !HasClamp(params);
}

}  // namespace jaxgemm
