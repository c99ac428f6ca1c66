// The activations and the clamp of jaxgemm/epilogue.py, on float32. NaN passes through all of them.
//
// On a device they are written with ex2 and rcp, one instruction each, good to two units in the
// last place: expf and a division take two dozen. erfc is the polynomial whose constants and error
// bound stand in jaxgemm/epilogue.py.
#pragma once

#include <cmath>

#include "abi/params.h"
#include "parts/host_device.h"

namespace jaxgemm {

inline constexpr float kLog2E = 1.4426950408889634f;

JAXGEMM_HOST_DEVICE float Exp2(float x) {
#if defined(__CUDA_ARCH__)
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return exp2f(x);
#endif
}

JAXGEMM_HOST_DEVICE float Inverse(float x) {
#if defined(__CUDA_ARCH__)
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return 1.0f / x;
#endif
}

JAXGEMM_HOST_DEVICE float Sigmoid(float x) { return Inverse(1.0f + Exp2(-kLog2E * x)); }

// Written so that a comparison with NaN keeps it.
JAXGEMM_HOST_DEVICE float Relu(float x) { return x < 0.0f ? 0.0f : x; }

// The tanh form, by (1 + tanh(u)) / 2 = sigmoid(2 u).
JAXGEMM_HOST_DEVICE float Gelu(float x) {
  constexpr float kLinear = -2.0f * kLog2E * 0.7978845608028654f;
  constexpr float kCubic = 0.044715f * kLinear;
  return x * Inverse(1.0f + Exp2(x * (kLinear + kCubic * (x * x))));
}

// x · Φ(x), where Φ(-|x|) = erfc(|x| / √2) / 2 is computed without cancellation.
JAXGEMM_HOST_DEVICE float GeluExact(float x) {
  constexpr float kScale = 0.4375f * 0.7071067811865476f;
  const float t = Inverse(1.0f + kScale * fabsf(x));
  float q = 0.0717199370265007f;
  q = q * t - 0.2854117751121521f;
  q = q * t + 0.31673380732536316f;
  q = q * t - 0.03459201008081436f;
  q = q * t + 0.22249305248260498f;
  q = q * t + 0.21456390619277954f;
  q = q * t + 0.24769562482833862f;
  q = q * t + 0.24679751694202423f;
  const float lower = 0.5f * t * q * Exp2(x * x * (-0.5f * kLog2E));
  return x < 0.0f ? x * lower : x * (1.0f - lower);
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

// Between the bounds, which may be infinite. A comparison with NaN keeps it.
JAXGEMM_HOST_DEVICE float Clamp(const GemmParams& params, float x) {
  return x < params.clamp_low ? params.clamp_low : x > params.clamp_high ? params.clamp_high : x;
}

// What ends a GEMM.
JAXGEMM_HOST_DEVICE float Finish(const GemmParams& params, float z) {
  return Clamp(params, Activate(params.activation, z));
}

JAXGEMM_HOST_DEVICE bool HasClamp(const GemmParams& params) {
  return params.clamp_low > -INFINITY || params.clamp_high < INFINITY;
}

// cotangent · act'(x). Where relu is flat the result is 0, whatever the cotangent.
JAXGEMM_HOST_DEVICE float PullBack(Activation activation, float x, float cotangent) {
  switch (activation) {
    case Activation::kNone:
      return cotangent;
    case Activation::kRelu:
      return x > 0.0f ? cotangent : 0.0f;
    case Activation::kGelu: {
      const float s = Sigmoid(2.0f * 0.7978845608028654f * (x + 0.044715f * x * x * x));
      const float inner = 2.0f * 0.7978845608028654f * (1.0f + 3.0f * 0.044715f * x * x);
      return cotangent * (s + x * s * (1.0f - s) * inner);
    }
    case Activation::kGeluExact: {
      const float density = 0.3989422804014327f * Exp2(x * x * (-0.5f * kLog2E));
      return cotangent * (0.5f * erfcf(-0.7071067811865476f * x) + x * density);
    }
    case Activation::kSilu: {
      const float s = Sigmoid(x);
      return cotangent * (s + x * s * (1.0f - s));
    }
    case Activation::kSigmoid: {
      const float s = Sigmoid(x);
      return cotangent * (s * (1.0f - s));
    }
    case Activation::kTanh: {
      const float t = tanhf(x);
      return cotangent * (1.0f - t * t);
    }
    case Activation::kRelu2:
      return x > 0.0f ? 2.0f * x * cotangent : 0.0f;
  }
  return cotangent;
}

}  // namespace jaxgemm
