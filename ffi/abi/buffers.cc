#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "abi/call.h"
#include "abi/dtype.h"
#include "abi/roles.h"

namespace jaxgemm {

namespace ffi = xla::ffi;

namespace {

// A dimension's meaning, as in jaxgemm/spec.py; batch axes come last.
enum Label : int { kM, kN, kK, kWorkspaceBytes, kBatch };
constexpr int kNumLabels = kBatch + kMaxBatchAxes;

std::string LabelName(int label) {
  constexpr std::array<const char*, kBatch> names = {"m", "n", "k", "workspace_bytes"};
  return label < kBatch ? names[label] : "b" + std::to_string(label - kBatch);
}

// The labels of a buffer's dimensions.
struct Labels {
  std::array<int, kMaxBatchAxes + 2> label;
  int rank = 0;
  // Which dimension is that of the rows of a matrix; -1 where there is none.
  int row = -1;

  void Add(int value) { label[rank++] = value; }
  void AddAxes(const Call& call, Role role, bool inside) {
    for (size_t axis = 0; axis < call.batch.size(); ++axis) {
      if ((call.batch[axis] & Bit(role)) != 0 && ((call.inside[axis] & Bit(role)) != 0) == inside) {
        Add(kBatch + static_cast<int>(axis));
      }
    }
  }
};

Labels LabelsOf(const Call& call, Role role) {
  Labels labels;
  // As an output z is laid out as d is.
  const Role owner = role == Role::kZ && !call.pullback ? Role::kD : role;
  labels.AddAxes(call, owner, false);
  if (role == Role::kWorkspace) {
    labels.Add(kWorkspaceBytes);
  } else if (role == Role::kBias || role == Role::kDSum) {
    labels.Add(kN);
  } else if ((kMatrices & Bit(owner)) != 0) {
    const bool is_operand = role == Role::kA || role == Role::kB;
    const Major major = role == Role::kA ? call.a_major : call.b_major;
    const int own = role == Role::kA ? kM : kN;
    labels.row = labels.rank;
    labels.Add(!is_operand ? kM : major == Major::kK ? own : kK);
    labels.AddAxes(call, owner, true);
    labels.Add(!is_operand ? kN : major == Major::kK ? kK : own);
  }
  return labels;
}

// The dtypes that a buffer may have: one of these.
std::vector<DType> AllowedDTypes(const Call& call, Role role) {
  if (role == Role::kWorkspace) {
    return {DType::kU8};
  }
  if (call.instance != nullptr && !call.instance->dtype.has_value()) {
    return {DType::kF64, DType::kF32, DType::kBF16,   DType::kF16,
            DType::kS8,  DType::kS32, DType::kF8E4M3, DType::kF8E5M2};
  }
  if (role == Role::kAlpha || role == Role::kBeta) {
    return {DType::kF32};
  }
  if ((role == Role::kA || role == Role::kB) && call.instance != nullptr) {
    return {*call.instance->dtype};
  }
  return {DType::kF32, DType::kBF16, DType::kF16};
}

// Reads buffers one by one and collects sizes: the first buffer with a label settles its size.
class BufferReader {
 public:
  explicit BufferReader(const Call& call) : call_(call) { sizes_.fill(-1); }

  ffi::Error Read(Role role, const ffi::AnyBuffer& buffer) {
    const std::optional<DType> dtype = FromXla(buffer.element_type());
    const std::vector<DType> allowed = AllowedDTypes(call_, role);
    if (std::find(allowed.begin(), allowed.end(), dtype) == allowed.end()) {
      return Fault(role, "got dtype ", buffer.element_type(), ", expected ", Names(allowed));
    }
    const auto dims = buffer.dimensions();
    const Labels labels = LabelsOf(call_, role);
    if (static_cast<int>(dims.size()) != labels.rank) {
      return Fault(role, "got ", dims.size(), " dimensions, expected ", labels.rank);
    }
    for (int i = 0; i < labels.rank; ++i) {
      const int label = labels.label[i];
      if (dims[i] > std::numeric_limits<int32_t>::max() && label != kWorkspaceBytes) {
        return Fault(role, "dimension ", i, ": got ", dims[i], ", expected less than 2^31");
      }
      if (sizes_[label] < 0) {
        sizes_[label] = dims[i];
        settled_by_[label] = role;
      }
      if (sizes_[label] != dims[i]) {
        return Fault(role, "dimension ", i, ": got ", dims[i], ", expected ", LabelName(label),
                     " = ", sizes_[label], " of ", Name(settled_by_[label]));
      }
    }
    tensors_[static_cast<int>(role)] = Strided(labels, buffer, *dtype);
    return ffi::Error::Success();
  }

  GemmParams Params() const {
    GemmParams params = {};
    params.m = static_cast<int32_t>(sizes_[kM]);
    params.n = static_cast<int32_t>(sizes_[kN]);
    params.k = static_cast<int32_t>(sizes_[kK]);
    params.num_matrices = 1;
    params.num_batch_axes = static_cast<int32_t>(call_.batch.size());
    for (int axis = 0; axis < params.num_batch_axes; ++axis) {
      params.batch_sizes[axis] = static_cast<int32_t>(sizes_[kBatch + axis]);
      params.num_matrices *= params.batch_sizes[axis];
    }
    params.a_major = call_.a_major;
    params.b_major = call_.b_major;
    params.activation = call_.activation;
    params.clamp_low = call_.clamp[0];
    params.clamp_high = call_.clamp[1];
    params.pullback = call_.pullback;
    params.a = Get(Role::kA);
    params.b = Get(Role::kB);
    params.c = Get(Role::kC);
    params.bias = Get(Role::kBias);
    params.alpha = Get(Role::kAlpha);
    params.beta = Get(Role::kBeta);
    params.d = Get(Role::kD);
    params.z = Get(Role::kZ);
    params.d_sum = Get(Role::kDSum);
    params.workspace = Get(Role::kWorkspace).data;
    params.workspace_bytes = std::max<int64_t>(0, sizes_[kWorkspaceBytes]);
    params.num_knobs = static_cast<int32_t>(call_.knobs.size());
    std::copy(call_.knobs.begin(), call_.knobs.end(), params.knobs);
    return params;
  }

 private:
  template <typename... Parts>
  static ffi::Error Fault(Role role, const Parts&... parts) {
    return InvalidArgument(Name(role), ": ", parts...);
  }

  // Strides of a buffer that is contiguous as a whole.
  static Tensor Strided(const Labels& labels, const ffi::AnyBuffer& buffer, DType dtype) {
    const auto dims = buffer.dimensions();
    Tensor tensor = {};
    tensor.data = buffer.untyped_data();
    tensor.dtype = dtype;
    int64_t stride = 1;
    for (int i = labels.rank - 1; i >= 0; --i) {
      if (i == labels.row) {
        tensor.row_stride = stride;
      } else if (labels.label[i] >= kBatch) {
        tensor.batch_strides[labels.label[i] - kBatch] = stride;
      }
      stride *= dims[i];
    }
    return tensor;
  }

  const Tensor& Get(Role role) const { return tensors_[static_cast<int>(role)]; }

  const Call& call_;
  std::array<int64_t, kNumLabels> sizes_;
  std::array<Role, kNumLabels> settled_by_ = {};
  std::array<Tensor, kNumRoles> tensors_ = {};
};

}  // namespace

ffi::ErrorOr<GemmParams> DecodeBuffers(const Call& call, ffi::RemainingArgs args,
                                       ffi::RemainingRets rets) {
  if (args.size() != call.operands.size() || rets.size() != call.outputs.size()) {
    return Invalid("got ", args.size(), " operands and ", rets.size(), " outputs, expected ",
                   call.operands.size(), " and ", call.outputs.size());
  }
  BufferReader reader(call);
  for (size_t i = 0; i < call.operands.size(); ++i) {
    const auto buffer = args.get<ffi::AnyBuffer>(i);
    ffi::Error error = buffer.has_error() ? buffer.error() : reader.Read(call.operands[i], *buffer);
    if (error.failure()) {
      return ffi::Unexpected(std::move(error));
    }
  }
  for (size_t i = 0; i < call.outputs.size(); ++i) {
    const auto buffer = rets.get<ffi::AnyBuffer>(i);
    ffi::Error error = buffer.has_error() ? buffer.error() : reader.Read(call.outputs[i], **buffer);
    if (error.failure()) {
      return ffi::Unexpected(std::move(error));
    }
  }
  return reader.Params();
}

}  // namespace jaxgemm
