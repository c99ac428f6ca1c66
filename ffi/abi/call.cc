#include "abi/call.h"

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <sstream>
#include <string_view>
#include <utility>

#include "abi/dtype.h"

namespace jaxgemm {

namespace ffi = xla::ffi;

ffi::TypeId Call::id = {};
const ffi::TypeInfo Call::info = ffi::MakeTypeInfo<Call>();

namespace {

constexpr std::array<std::string_view, kNumRoles> kRoleNames = {
    "a", "b", "c", "bias", "alpha", "beta", "d", "z", "workspace"};
constexpr std::array<std::string_view, 8> kActivationNames = {
    "", "relu", "gelu", "gelu_exact", "silu", "sigmoid", "tanh", "relu2"};

std::string_view Name(Role role) { return kRoleNames[static_cast<int>(role)]; }
constexpr uint32_t Bit(Role role) { return 1u << static_cast<int>(role); }

template <typename... Parts>
ffi::Error InvalidArgument(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  return ffi::Error::InvalidArgument(text.str());
}

template <typename... Parts>
ffi::Unexpected<ffi::Error> Invalid(const Parts&... parts) {
  return ffi::Unexpected(InvalidArgument(parts...));
}

std::vector<std::string_view> Split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (!text.empty()) {
    const size_t end = std::min(text.find(separator), text.size());
    parts.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return parts;
}

ffi::ErrorOr<Role> ParseRole(std::string_view attribute, std::string_view name) {
  const auto* found = std::find(kRoleNames.begin(), kRoleNames.end(), name);
  if (found == kRoleNames.end()) {
    return Invalid(attribute, ": got '", name, "', expected names of operands and outputs");
  }
  return static_cast<Role>(found - kRoleNames.begin());
}

ffi::ErrorOr<std::vector<Role>> ParseRoles(std::string_view attribute, std::string_view text) {
  std::vector<Role> roles;
  for (const std::string_view name : Split(text, ' ')) {
    const ffi::ErrorOr<Role> role = ParseRole(attribute, name);
    if (role.has_error()) {
      return ffi::Unexpected(role.error());
    }
    roles.push_back(*role);
  }
  return roles;
}

// For each axis, which roles are named.
ffi::ErrorOr<std::vector<uint32_t>> ParseAxes(std::string_view attribute, std::string_view text) {
  std::vector<uint32_t> axes;
  for (const std::string_view axis : Split(text, ';')) {
    const ffi::ErrorOr<std::vector<Role>> roles = ParseRoles(attribute, axis);
    if (roles.has_error()) {
      return ffi::Unexpected(roles.error());
    }
    uint32_t mask = 0;
    for (const Role role : *roles) {
      mask |= Bit(role);
    }
    axes.push_back(mask);
  }
  if (axes.size() > kMaxBatchAxes) {
    return Invalid(attribute, ": got ", axes.size(), " axes, expected at most ", kMaxBatchAxes);
  }
  return axes;
}

ffi::ErrorOr<Major> ParseMajor(std::string_view attribute, std::string_view text) {
  if (text != "k" && text != "mn") {
    return Invalid(attribute, ": got '", text, "', expected 'k' or 'mn'");
  }
  return text == "k" ? Major::kK : Major::kMN;
}

ffi::ErrorOr<Activation> ParseActivation(std::string_view text) {
  const auto* found = std::find(kActivationNames.begin(), kActivationNames.end(), text);
  if (found == kActivationNames.end()) {
    return Invalid("activation: got '", text, "', expected a name that abi/call.cc lists");
  }
  return static_cast<Activation>(found - kActivationNames.begin());
}

// A dimension's meaning, as in jaxgemm/spec.py; batch axes come last.
enum Label : int { kM, kN, kK, kWorkspaceBytes, kBatch };
constexpr int kNumLabels = kBatch + kMaxBatchAxes;

std::string LabelName(int label) {
  constexpr std::array<const char*, kBatch> names = {"m", "n", "k", "workspace_bytes"};
  return label < kBatch ? names[label] : "b" + std::to_string(label - kBatch);
}

constexpr uint32_t kMatrices = Bit(Role::kA) | Bit(Role::kB) | Bit(Role::kC) | Bit(Role::kD);

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
  // z is laid out as d is.
  const Role owner = role == Role::kZ ? Role::kD : role;
  labels.AddAxes(call, owner, false);
  if (role == Role::kWorkspace) {
    labels.Add(kWorkspaceBytes);
  } else if (role == Role::kBias) {
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
    params.a = Get(Role::kA);
    params.b = Get(Role::kB);
    params.c = Get(Role::kC);
    params.bias = Get(Role::kBias);
    params.alpha = Get(Role::kAlpha);
    params.beta = Get(Role::kBeta);
    params.d = Get(Role::kD);
    params.z = Get(Role::kZ);
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

// Which operands and outputs must, and may, have each batch axis, and which may have it inside.
ffi::Error CheckAxes(const Call& call) {
  for (size_t axis = 0; axis < call.batch.size(); ++axis) {
    if ((call.batch[axis] & Bit(Role::kD)) == 0) {
      return InvalidArgument("batch: got axis ", axis, " without d, expected d among its names");
    }
    if ((call.inside[axis] & ~(call.batch[axis] & kMatrices)) != 0) {
      return InvalidArgument("inside: got axis ", axis,
                             ", expected names of matrices that have it");
    }
  }
  return ffi::Error::Success();
}

// Which operands and outputs a call must, and may, have.
ffi::Error CheckRoles(const Call& call) {
  uint32_t seen = 0;
  const auto add = [&](const std::vector<Role>& roles, bool outputs) {
    return std::all_of(roles.begin(), roles.end(), [&](Role role) {
      const bool fits = (role >= Role::kD) == outputs && (seen & Bit(role)) == 0;
      seen |= Bit(role);
      return fits;
    });
  };
  const bool fits = add(call.operands, false) && add(call.outputs, true);
  const uint32_t needed = Bit(Role::kA) | Bit(Role::kB) | Bit(Role::kD);
  if (!fits || (seen & needed) != needed) {
    return InvalidArgument(
        "operands and outputs: expected a and b, d, and each other name at most once");
  }
  return ffi::Error::Success();
}

}  // namespace

ffi::ErrorOr<std::unique_ptr<Call>> DecodeCall(ffi::Dictionary attributes) {
  const ffi::ErrorOr<int32_t> version = attributes.get<int32_t>("abi_version");
  if (version.has_error() || *version != kAbiVersion) {
    return Invalid("abi_version: got ", version.has_error() ? -1 : *version, ", expected ",
                   kAbiVersion, ": the library and the Python package are of different versions");
  }
  std::array<std::string_view, 8> texts;
  constexpr std::array<const char*, 8> names = {"instance", "operands", "outputs",    "batch",
                                                "a_major",  "b_major",  "activation", "inside"};
  for (size_t i = 0; i < names.size(); ++i) {
    const ffi::ErrorOr<std::string_view> text = attributes.get<std::string_view>(names[i]);
    if (text.has_error()) {
      return Invalid(names[i], ": expected text: ", text.error().message());
    }
    texts[i] = *text;
  }
  const ffi::ErrorOr<ffi::Span<const int32_t>> knobs =
      attributes.get<ffi::Span<const int32_t>>("knobs");
  if (knobs.has_error() || knobs->size() > kMaxKnobs) {
    return Invalid("knobs: expected at most ", kMaxKnobs, " values of int32");
  }
  const ffi::ErrorOr<ffi::Span<const float>> clamp =
      attributes.get<ffi::Span<const float>>("clamp");
  // Written so that NaN is refused.
  if (clamp.has_error() || clamp->size() != 2 || !((*clamp)[0] <= (*clamp)[1])) {
    return Invalid("clamp: expected two values of float32, the lower one first");
  }
  auto operands = ParseRoles("operands", texts[1]);
  auto outputs = ParseRoles("outputs", texts[2]);
  auto batch = ParseAxes("batch", texts[3]);
  auto a_major = ParseMajor("a_major", texts[4]);
  auto b_major = ParseMajor("b_major", texts[5]);
  auto activation = ParseActivation(texts[6]);
  auto inside = ParseAxes("inside", texts[7]);
  std::optional<ffi::Error> error;
  const auto note = [&](const auto& value) {
    if (!error.has_value() && value.has_error()) {
      error = value.error();
    }
  };
  note(operands), note(outputs), note(batch), note(a_major), note(b_major), note(activation);
  note(inside);
  if (error.has_value()) {
    return ffi::Unexpected(*error);
  }
  auto call = std::make_unique<Call>();
  call->instance_name = texts[0];
  call->operands = *operands;
  call->outputs = *outputs;
  call->batch = *batch;
  if (inside->size() > batch->size()) {
    return Invalid("inside: got ", inside->size(), " axes, expected at most ", batch->size());
  }
  // An axis of which nothing is said is inside of none.
  call->inside = *inside;
  call->inside.resize(call->batch.size());
  call->a_major = *a_major;
  call->b_major = *b_major;
  call->activation = *activation;
  std::copy(clamp->begin(), clamp->end(), call->clamp.begin());
  call->knobs.assign(knobs->begin(), knobs->end());
  ffi::Error fault = CheckRoles(*call);
  fault = fault.failure() ? fault : CheckAxes(*call);
  if (fault.failure()) {
    return ffi::Unexpected(std::move(fault));
  }
  return call;
}

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
