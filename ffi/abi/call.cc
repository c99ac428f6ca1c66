#include "abi/call.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <utility>

#include "abi/roles.h"

namespace jaxgemm {

namespace ffi = xla::ffi;

ffi::TypeId Call::id = {};
const ffi::TypeInfo Call::info = ffi::MakeTypeInfo<Call>();

namespace {

constexpr std::array<std::string_view, 8> kActivationNames = {
    "", "relu", "gelu", "gelu_exact", "silu", "sigmoid", "tanh", "relu2"};

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

constexpr std::array<const char*, 8> kTextNames = {"instance", "operands", "outputs",    "batch",
                                                   "a_major",  "b_major",  "activation", "inside"};

// The attributes that are text, in the order of their names.
ffi::ErrorOr<std::array<std::string_view, kTextNames.size()>> ReadTexts(
    const ffi::Dictionary& attributes) {
  std::array<std::string_view, kTextNames.size()> texts;
  for (size_t i = 0; i < texts.size(); ++i) {
    const ffi::ErrorOr<std::string_view> text = attributes.get<std::string_view>(kTextNames[i]);
    if (text.has_error()) {
      return Invalid(kTextNames[i], ": expected text: ", text.error().message());
    }
    texts[i] = *text;
  }
  return texts;
}

// The first error among values that were parsed.
template <typename... Values>
std::optional<ffi::Error> FirstError(const Values&... values) {
  std::optional<ffi::Error> first;
  const auto note = [&](const auto& value) {
    if (!first.has_value() && value.has_error()) {
      first = value.error();
    }
  };
  (note(values), ...);
  return first;
}

// Which operands and outputs a call must, and may, have.
ffi::Error CheckRoles(const Call& call) {
  uint32_t seen = 0;
  const auto add = [&](const std::vector<Role>& roles, bool outputs) {
    return std::all_of(roles.begin(), roles.end(), [&](Role role) {
      const bool may_be_here = (role >= Role::kD) == outputs || role == Role::kZ;
      const bool fits = may_be_here && (seen & Bit(role)) == 0;
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
  const auto has_sum = [](uint32_t axis) { return (axis & Bit(Role::kDSum)) != 0; };
  if ((seen & Bit(Role::kDSum)) != 0 &&
      !std::all_of(call.batch.begin(), call.batch.end(), has_sum)) {
    return InvalidArgument("batch: expected d_sum, as d, among the names of every axis");
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
  const auto texts = ReadTexts(attributes);
  if (texts.has_error()) {
    return ffi::Unexpected(texts.error());
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
  auto operands = ParseRoles("operands", (*texts)[1]);
  auto outputs = ParseRoles("outputs", (*texts)[2]);
  auto batch = ParseAxes("batch", (*texts)[3]);
  auto a_major = ParseMajor("a_major", (*texts)[4]);
  auto b_major = ParseMajor("b_major", (*texts)[5]);
  auto activation = ParseActivation((*texts)[6]);
  auto inside = ParseAxes("inside", (*texts)[7]);
  const std::optional<ffi::Error> error =
      FirstError(operands, outputs, batch, a_major, b_major, activation, inside);
  if (error.has_value()) {
    return ffi::Unexpected(*error);
  }
  auto call = std::make_unique<Call>();
  call->instance_name = (*texts)[0];
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
  call->pullback = std::count(operands->begin(), operands->end(), Role::kZ) > 0;
  call->knobs.assign(knobs->begin(), knobs->end());
  ffi::Error fault = CheckRoles(*call);
  fault = fault.failure() ? fault : CheckAxes(*call);
  if (fault.failure()) {
    return ffi::Unexpected(std::move(fault));
  }
  return call;
}

}  // namespace jaxgemm
