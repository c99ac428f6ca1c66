// A cuBLASLt for machines without one: it computes what the descriptors say, on the host, element
// by element, and keeps a log of what it was asked. Column-major, as the library is.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <string>

#include "cublaslt/api.h"

namespace jaxgemm::cublaslt {

struct Context {};

struct MatmulDesc {
  ComputeType compute;
  DataType scale;
  int32_t pointer_mode = kHost, trans_a = kAsStored, trans_b = kAsStored;
  uint32_t epilogue = kPlain;
  char* bias = nullptr;
  int64_t bias_stride = 0;
  int32_t bias_type = -1;
  char* aux = nullptr;
  int64_t aux_leading = 0, aux_stride = 0;
};

struct MatrixLayout {
  DataType type;
  uint64_t rows, columns;
  int64_t leading;
  int32_t count = 1;
  int64_t stride = 0;

  int64_t At(int64_t row, int64_t column, int64_t matrix) const {
    return matrix * stride + column * leading + row;
  }
};

struct Preference {
  uint64_t workspace_bytes = 0;
  uint32_t reductions = 7;
  uint32_t alignment[4] = {256, 256, 256, 256};
};

namespace {

constexpr Status kInvalidValue = 7;
constexpr Status kFakeNotSupported = 15;

std::string& Log() {
  static std::string log;
  return log;
}

// Without NaN and infinities.
double FromF8(uint8_t bits, int mantissa_bits, int bias) {
  const int exponent = (bits & 0x7f) >> mantissa_bits;
  const double fraction = (bits & ((1 << mantissa_bits) - 1)) / double(1 << mantissa_bits);
  const double size = std::ldexp(fraction + (exponent > 0), std::max(exponent, 1) - bias);
  return bits & 0x80 ? -size : size;
}

double Load(const void* data, int32_t type, int64_t index) {
  switch (type) {
    case kR64F:
      return static_cast<const double*>(data)[index];
    case kR16F:
      return static_cast<double>(static_cast<const _Float16*>(data)[index]);
    case kR16BF: {
      const uint32_t bits = static_cast<uint32_t>(static_cast<const uint16_t*>(data)[index]) << 16;
      float x;
      std::memcpy(&x, &bits, sizeof(x));
      return x;
    }
    case kR8I:
      return static_cast<const int8_t*>(data)[index];
    case kR32I:
      return static_cast<const int32_t*>(data)[index];
    case kR8FE4M3:
      return FromF8(static_cast<const uint8_t*>(data)[index], 3, 7);
    case kR8FE5M2:
      return FromF8(static_cast<const uint8_t*>(data)[index], 2, 15);
    default:
      return static_cast<const float*>(data)[index];
  }
}

void Store(void* data, int32_t type, int64_t index, double x) {
  switch (type) {
    case kR64F:
      static_cast<double*>(data)[index] = x;
      break;
    case kR16F:
      static_cast<_Float16*>(data)[index] = static_cast<_Float16>(x);
      break;
    case kR16BF: {
      const float narrow = static_cast<float>(x);
      uint32_t bits;
      std::memcpy(&bits, &narrow, sizeof(bits));
      const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
      static_cast<uint16_t*>(data)[index] = static_cast<uint16_t>(x != x ? 0x7fc0 : rounded);
      break;
    }
    case kR32I:
      static_cast<int32_t*>(data)[index] = static_cast<int32_t>(x);
      break;
    default:
      static_cast<float*>(data)[index] = static_cast<float>(x);
  }
}

double Activate(uint32_t epilogue, double z) {
  if (epilogue & kRelu) {
    return z < 0 ? 0 : z;
  }
  if (epilogue & kGelu) {
    return 0.5 * z * (1 + std::tanh(std::sqrt(2 / std::acos(-1.0)) * (z + 0.044715 * z * z * z)));
  }
  return z;
}

double SlopeOfGelu(double z) {
  const double scale = std::sqrt(2 / std::acos(-1.0));
  const double t = std::tanh(scale * (z + 0.044715 * z * z * z));
  return 0.5 * (1 + t) + 0.5 * z * (1 - t * t) * scale * (1 + 3 * 0.044715 * z * z);
}

Status CopyTo(void* target, const void* value, size_t bytes, size_t expected) {
  if (bytes != expected) {
    return kInvalidValue;
  }
  std::memcpy(target, value, bytes);
  return kSuccess;
}

}  // namespace

extern "C" {

const char* fake_cublaslt_log() { return Log().c_str(); }

void fake_cublaslt_forget() { Log().clear(); }

const char* cublasLtGetStatusName(Status status) {
  return status == kFakeNotSupported ? "CUBLAS_STATUS_NOT_SUPPORTED"
                                     : "CUBLAS_STATUS_INVALID_VALUE";
}

Status cublasLtCreate(Context** context) {
  Log() += "create\n";
  *context = new Context;
  return kSuccess;
}

Status cublasLtMatmulDescCreate(MatmulDesc** desc, ComputeType compute, DataType scale) {
  *desc = new MatmulDesc{compute, scale};
  return kSuccess;
}

Status cublasLtMatmulDescDestroy(MatmulDesc* desc) {
  delete desc;
  return kSuccess;
}

Status cublasLtMatmulDescSetAttribute(MatmulDesc* desc, MatmulAttribute attribute,
                                      const void* value, size_t bytes) {
  switch (attribute) {
    case kPointerMode:
      return CopyTo(&desc->pointer_mode, value, bytes, 4);
    case kTransA:
      return CopyTo(&desc->trans_a, value, bytes, 4);
    case kTransB:
      return CopyTo(&desc->trans_b, value, bytes, 4);
    case kEpilogue:
      return CopyTo(&desc->epilogue, value, bytes, 4);
    case kBiasPointer:
      return CopyTo(&desc->bias, value, bytes, 8);
    case kBiasBatchStride:
      return CopyTo(&desc->bias_stride, value, bytes, 8);
    case kAuxPointer:
      return CopyTo(&desc->aux, value, bytes, 8);
    case kAuxLeading:
      return CopyTo(&desc->aux_leading, value, bytes, 8);
    case kAuxBatchStride:
      return CopyTo(&desc->aux_stride, value, bytes, 8);
    case kBiasDataType:
      return CopyTo(&desc->bias_type, value, bytes, 4);
  }
  return kInvalidValue;
}

Status cublasLtMatrixLayoutCreate(MatrixLayout** layout, DataType type, uint64_t rows,
                                  uint64_t columns, int64_t leading) {
  *layout = new MatrixLayout{type, rows, columns, leading};
  return leading < static_cast<int64_t>(rows) ? kInvalidValue : kSuccess;
}

Status cublasLtMatrixLayoutDestroy(MatrixLayout* layout) {
  delete layout;
  return kSuccess;
}

Status cublasLtMatrixLayoutSetAttribute(MatrixLayout* layout, LayoutAttribute attribute,
                                        const void* value, size_t bytes) {
  return attribute == kBatchCount ? CopyTo(&layout->count, value, bytes, 4)
                                  : CopyTo(&layout->stride, value, bytes, 8);
}

Status cublasLtMatmulPreferenceCreate(Preference** preference) {
  *preference = new Preference;
  return kSuccess;
}

Status cublasLtMatmulPreferenceDestroy(Preference* preference) {
  delete preference;
  return kSuccess;
}

Status cublasLtMatmulPreferenceSetAttribute(Preference* preference, PreferenceAttribute attribute,
                                            const void* value, size_t bytes) {
  switch (attribute) {
    case kMaxWorkspaceBytes:
      return CopyTo(&preference->workspace_bytes, value, bytes, 8);
    case kReductionSchemeMask:
      return CopyTo(&preference->reductions, value, bytes, 4);
    default:
      return CopyTo(&preference->alignment[attribute - kMinAlignmentA], value, bytes, 4);
  }
}

// Three algorithms, of which the second is not for this device; none for d of 13 columns.
Status cublasLtMatmulAlgoGetHeuristic(Context*, MatmulDesc* desc, MatrixLayout*, MatrixLayout*,
                                      MatrixLayout*, MatrixLayout* d, Preference* preference,
                                      int requested, HeuristicResult* results, int* found) {
  char line[200];
  const uint32_t* aligned = preference->alignment;
  std::snprintf(line, sizeof(line),
                "heuristics workspace=%lu reductions=%u epilogue=%u transposed=%d%d "
                "aligned=%u,%u,%u,%u\n",
                static_cast<unsigned long>(preference->workspace_bytes), preference->reductions,
                desc->epilogue, desc->trans_a, desc->trans_b, aligned[0], aligned[1], aligned[2],
                aligned[3]);
  Log() += line;
  if (d->rows == 13) {
    return kFakeNotSupported;
  }
  if ((desc->epilogue & (kBias | kSumsD)) && desc->bias == nullptr) {
    return kInvalidValue;
  }
  *found = 3;
  if (requested < *found) {
    return kInvalidValue;
  }
  for (int i = 0; i < *found; ++i) {
    results[i] = {};
    results[i].algorithm.data[0] = 100 + i;
    results[i].state = i == 1 ? kFakeNotSupported : kSuccess;
  }
  return kSuccess;
}

Status cublasLtMatmul(Context* context, MatmulDesc* desc, const void* alpha, const void* a,
                      MatrixLayout* a_layout, const void* b, MatrixLayout* b_layout,
                      const void* beta, const void* c, MatrixLayout* c_layout, void* d,
                      MatrixLayout* d_layout, const Algorithm* algorithm, void* workspace,
                      size_t workspace_bytes, CUstream_st*) {
  const double scale = Load(alpha, desc->scale, 0), c_scale = Load(beta, desc->scale, 0);
  const bool a_is_transposed = desc->trans_a == kTransposed;
  const bool b_is_transposed = desc->trans_b == kTransposed;
  const int64_t m = d_layout->rows, n = d_layout->columns;
  const int64_t k = a_is_transposed ? a_layout->rows : a_layout->columns;
  if (context == nullptr || k != int64_t(b_is_transposed ? b_layout->columns : b_layout->rows) ||
      m != int64_t(a_is_transposed ? a_layout->columns : a_layout->rows) ||
      n != int64_t(b_is_transposed ? b_layout->rows : b_layout->columns)) {
    return kInvalidValue;
  }
  char line[200];
  std::snprintf(line, sizeof(line),
                "matmul algorithm=%lu compute=%d pointers=%s batch=%d workspace=%lu in_place=%d\n",
                static_cast<unsigned long>(algorithm->data[0]), desc->compute,
                desc->pointer_mode == kDevice ? "device" : "host", d_layout->count,
                static_cast<unsigned long>(workspace == nullptr ? 0 : workspace_bytes), c == d);
  Log() += line;
  // It is the library's, to write what it likes.
  if (workspace != nullptr) {
    std::memset(workspace, 0xff, workspace_bytes);
  }
  const int32_t bias_type = desc->bias_type < 0 ? d_layout->type : desc->bias_type;
  for (int64_t matrix = 0; matrix < d_layout->count; ++matrix) {
    for (int64_t j = 0; j < n; ++j) {
      for (int64_t i = 0; i < m; ++i) {
        double z = 0;
        for (int64_t p = 0; p < k; ++p) {
          const int64_t at_a =
              a_is_transposed ? a_layout->At(p, i, matrix) : a_layout->At(i, p, matrix);
          const int64_t at_b =
              b_is_transposed ? b_layout->At(j, p, matrix) : b_layout->At(p, j, matrix);
          z += Load(a, a_layout->type, at_a) * Load(b, b_layout->type, at_b);
        }
        z *= scale;
        if (c_scale != 0) {
          z += c_scale * Load(c, c_layout->type, c_layout->At(i, j, matrix));
        }
        if (desc->epilogue & kBias) {
          z += Load(desc->bias, bias_type, matrix * desc->bias_stride + i);
        }
        const int64_t at = matrix * desc->aux_stride + j * desc->aux_leading + i;
        if (desc->epilogue & kSlopeOfGelu) {
          z *= SlopeOfGelu(Load(desc->aux, d_layout->type, at));
        } else if (desc->epilogue & kHasInput) {
          Store(desc->aux, d_layout->type, at, z);
        }
        Store(d, d_layout->type, d_layout->At(i, j, matrix), Activate(desc->epilogue, z));
      }
    }
    for (int64_t i = 0; i < m && (desc->epilogue & kSumsD); ++i) {
      double sum = 0;
      for (int64_t j = 0; j < n; ++j) {
        sum += Load(d, d_layout->type, d_layout->At(i, j, matrix));
      }
      Store(desc->bias, bias_type, matrix * desc->bias_stride + i, sum);
    }
  }
  return kSuccess;
}

}  // extern "C"

}  // namespace jaxgemm::cublaslt
