// The activations of jaxgemm/epilogue.py, on float32. NaN passes through all of them.
#pragma once

#include <cmath>

#include "abi/params.h"
#include "parts/host_device.h"

namespace jaxgemm {

JAXGEMM_HOST_DEVICE float Sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

// Written so that a comparison with NaN keeps it.
JAXGEMM_HOST_DEVICE float Relu(float x) { return x < 0.0f ? 0.0f : x; }

// The tanh form, by (1 + tanh(u)) / 2 = sigmoid(2 u).
JAXGEMM_HOST_DEVICE float Gelu(float x) {
  constexpr float kTwoSqrtTwoOverPi = 1.5957691216057308f;
  return x * Sigmoid(kTwoSqrtTwoOverPi * (x + 0.044715f * x * x * x));
}

// erfc and not 1 + erf, which cancels for negative x.
JAXGEMM_HOST_DEVICE float GeluExact(float x) {
  constexpr float kSqrtHalf = 0.7071067811865476f;
  return 0.5f * x * erfcf(-kSqrtHalf * x);
}

JAXGEMM_HOST_DEVICE float Activate(Activation activation, float x) {
  switch (activation) {
    case Activation::kNone:
      return x;
    case Activation::kRelu:
      return Relu(x);
    case Activation::kGelu:
      return Gelu(x);
    case Activation::kGeluExact:
      return GeluExact(x);
    case Activation::kSilu:
      return x * Sigmoid(x);
    case Activation::kSigmoid:
      return Sigmoid(x);
    case Activation::kTanh:
      return tanhf(x);
    case Activation::kRelu2:
      return Relu(x) * Relu(x);
  }
  return x;
}

}  // namespace jaxgemm
