#include "cublaslt/product.h"

#include <algorithm>
#include <cmath>
#include <optional>

namespace jaxgemm::cublaslt {
namespace {

struct TypeRow {
  DType dtype;
  DataType type;
  int64_t bytes;
};

constexpr std::array<TypeRow, 8> kTypes = {{
    {DType::kF32, kR32F, 4},
    {DType::kBF16, kR16BF, 2},
    {DType::kF16, kR16F, 2},
    {DType::kF64, kR64F, 8},
    {DType::kS8, kR8I, 1},
    {DType::kS32, kR32I, 4},
    {DType::kF8E4M3, kR8FE4M3, 1},
    {DType::kF8E5M2, kR8FE5M2, 1},
}};

const TypeRow& RowOf(DType dtype) {
  return *std::find_if(kTypes.begin(), kTypes.end(),
                       [dtype](const TypeRow& row) { return row.dtype == dtype; });
}

// An epilogue without bias; the library's forms with a bias have one bit more.
struct EpilogueRow {
  Activation activation;
  bool has_z;
  uint32_t epilogue;
};

constexpr std::array<EpilogueRow, 4> kEpilogues = {{
    {Activation::kNone, false, kPlain},
    {Activation::kRelu, false, kRelu},
    {Activation::kGelu, false, kGelu},
    {Activation::kGelu, true, kGelu | kHasInput},
}};

std::optional<uint32_t> FindEpilogue(const GemmParams& params) {
  const bool has_bias = params.bias.data != nullptr, has_sum = params.d_sum.data != nullptr;
  if (params.pullback) {
    const bool has_form = params.activation == Activation::kGelu && !has_bias;
    const uint32_t epilogue = kSlopeOfGelu | kHasInput | (has_sum ? kSumsD : 0);
    return has_form ? std::optional(epilogue) : std::nullopt;
  }
  for (const EpilogueRow& row : kEpilogues) {
    const bool has_z = params.z.data != nullptr;
    if (row.activation == params.activation && row.has_z == has_z && !has_sum) {
      const uint32_t with_bias = row.epilogue == kPlain ? kBias : row.epilogue | kBias;
      return has_bias ? with_bias : row.epilogue;
    }
  }
  return std::nullopt;
}

ComputeType ComputeTypeOf(const GemmParams& params) {
  switch (params.a.dtype) {
    case DType::kF64:
      return kCompute64F;
    case DType::kS8:
      return kCompute32I;
    case DType::kF32:
      return params.knobs[1] != 0 ? kCompute32F : kCompute32FFastTF32;
    default:
      return kCompute32F;
  }
}

DataType ScaleTypeOf(ComputeType compute) {
  return compute == kCompute64F ? kR64F : compute == kCompute32I ? kR32I : kR32F;
}

// Of the addresses of all launches; and of all matrices, where these lie between the rows of one
// another: only otherwise they are as aligned as rows are.
int64_t AlignmentOf(const GemmParams& params, const Batch& batch, const Tensor& tensor) {
  int64_t bits = static_cast<int64_t>(reinterpret_cast<uintptr_t>(tensor.data)) | kMaxAlignment;
  for (int axis = 0; axis < params.num_batch_axes; ++axis) {
    const bool is_inside = tensor.batch_strides[axis] < tensor.row_stride;
    if ((axis != batch.strided_axis || is_inside) && params.batch_sizes[axis] > 1) {
      bits |= tensor.batch_strides[axis] * ItemBytes(tensor.dtype);
    }
  }
  return bits & -bits;
}

// `rows` and `columns` as the library sees them: our columns and rows as stored.
Matrix MatrixOf(const GemmParams& params, const Batch& batch, const Tensor& tensor, int64_t rows,
                int64_t columns) {
  if (tensor.data == nullptr) {
    return Matrix{-1, 0, 0, 0, 0, kMaxAlignment};
  }
  Matrix matrix = {};
  matrix.type = RowOf(tensor.dtype).type;
  matrix.rows = rows;
  matrix.columns = columns;
  matrix.leading = std::max(rows, tensor.row_stride);
  matrix.batch_stride = batch.strided_axis < 0 ? 0 : tensor.batch_strides[batch.strided_axis];
  matrix.alignment = AlignmentOf(params, batch, tensor);
  return matrix;
}

}  // namespace

Batch DivideBatch(const GemmParams& params) {
  Batch batch = {-1, 1};
  for (int axis = 0; axis < params.num_batch_axes; ++axis) {
    // The library reads one alpha and one beta a launch.
    const bool shared =
        params.alpha.batch_strides[axis] == 0 && params.beta.batch_strides[axis] == 0;
    const bool largest =
        batch.strided_axis < 0 || params.batch_sizes[axis] > params.batch_sizes[batch.strided_axis];
    if (shared && largest) {
      batch.strided_axis = axis;
    }
  }
  const int64_t strided = batch.strided_axis < 0 ? 1 : params.batch_sizes[batch.strided_axis];
  batch.num_launches = params.num_matrices / strided;
  return batch;
}

int64_t LaunchOffset(const GemmParams& params, const Batch& batch, const Tensor& tensor,
                     int64_t launch) {
  int64_t elements = 0;
  for (int axis = params.num_batch_axes - 1; axis >= 0; --axis) {
    if (axis != batch.strided_axis) {
      elements += launch % params.batch_sizes[axis] * tensor.batch_strides[axis];
      launch /= params.batch_sizes[axis];
    }
  }
  return elements * ItemBytes(tensor.dtype);
}

int64_t ItemBytes(DType dtype) { return RowOf(dtype).bytes; }

std::string Describe(const GemmParams& params, const Batch& batch, int device, Product* product) {
  if (params.num_knobs != 2) {
    return "knobs: expected the index of an algorithm, and whether float32 is multiplied as it is";
  }
  if ((params.alpha.data == nullptr) != (params.beta.data == nullptr)) {
    return "alpha and beta: expected both or neither";
  }
  if (std::isfinite(params.clamp_low) || std::isfinite(params.clamp_high)) {
    return "clamp: the library has no such epilogue";
  }
  const std::optional<uint32_t> epilogue = FindEpilogue(params);
  if (!epilogue.has_value()) {
    return "the library has no epilogue with this activation and these outputs";
  }
  const bool b_is_k_major = params.b_major == Major::kK, a_is_k_major = params.a_major == Major::kK;
  *product = {};
  product->device = device;
  product->compute_type = ComputeTypeOf(params);
  product->scale_type = ScaleTypeOf(ComputeTypeOf(params));
  product->pointer_mode = params.alpha.data == nullptr ? kHost : kDevice;
  product->epilogue = *epilogue;
  product->first_operation = b_is_k_major ? kTransposed : kAsStored;
  product->second_operation = a_is_k_major ? kAsStored : kTransposed;
  product->batch_count = batch.strided_axis < 0 ? 1 : params.batch_sizes[batch.strided_axis];
  product->workspace_bytes = params.workspace_bytes;
  product->first = MatrixOf(params, batch, params.b, b_is_k_major ? params.k : params.n,
                            b_is_k_major ? params.n : params.k);
  product->second = MatrixOf(params, batch, params.a, a_is_k_major ? params.k : params.m,
                             a_is_k_major ? params.m : params.k);
  product->d = MatrixOf(params, batch, params.d, params.n, params.m);
  product->c =
      params.c.data == nullptr ? product->d : MatrixOf(params, batch, params.c, params.n, params.m);
  product->bias = MatrixOf(params, batch, BiasOrSum(params), params.n, 1);
  product->z = MatrixOf(params, batch, params.z, params.n, params.m);
  return "";
}

}  // namespace jaxgemm::cublaslt
