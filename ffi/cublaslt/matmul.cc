#include "cublaslt/matmul.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "cublaslt/product.h"
#include "handlers/platform.h"

namespace jaxgemm::cublaslt {
namespace {

// How many algorithms are asked for. The list may depend on it, so it is the same always.
constexpr int kNumAlgorithms = 8;

static_assert(std::has_unique_object_representations_v<Product>,
              "products are compared as bytes, so they must have no padding");

struct AsBytes {
  bool operator()(const Product& one, const Product& other) const {
    return std::memcmp(&one, &other, sizeof(Product)) < 0;
  }
};

// What was found out about devices and products; lives as long as the process.
struct Known {
  std::mutex mutex;
  std::map<int, Context*> contexts;
  std::map<Product, std::vector<Algorithm>, AsBytes> algorithms;
};

Known& GetKnown() {
  static Known& known = *new Known;
  return known;
}

// Calls the library until a call fails, and remembers why.
class Caller {
 public:
  explicit Caller(const Api& api) : api_(api) {}

  bool ok() const { return error_.empty(); }
  const std::string& error() const { return error_; }

  template <typename Function, typename... Args>
  void Call(const char* name, Function Api::* function, Args... args) {
    if (ok()) {
      const Status status = (api_.*function)(args...);
      if (status != kSuccess) {
        error_ = std::string(name) + " of cuBLASLt: " + api_.GetStatusName(status);
      }
    }
  }

  // Sets attributes of descriptions, layouts and preferences.
  template <typename Function, typename Object, typename Attribute, typename Value>
  void Set(Function Api::* function, Object* object, Attribute attribute, Value value) {
    Call("SetAttribute", function, object, attribute, static_cast<const void*>(&value),
         sizeof(value));
  }

 private:
  const Api& api_;
  std::string error_;
};

// The library's objects for a product, on the host. They are made for every launch, so that nothing
// is shared between threads: 0.15 us with cuBLASLt 13.10 on an AMD EPYC, 2026-11-30.
class Objects {
 public:
  Objects(const Api& api, Caller& caller, const Product& product)
      : api_(api), caller_(caller), product_(product) {
    MakeDescription();
    first = MakeLayout(product.first);
    second = MakeLayout(product.second);
    c = MakeLayout(product.c);
    d = MakeLayout(product.d);
  }

  ~Objects() {
    for (MatrixLayout* layout : {first, second, c, d}) {
      if (layout != nullptr) {
        api_.MatrixLayoutDestroy(layout);
      }
    }
    if (description != nullptr) {
      api_.MatmulDescDestroy(description);
    }
  }

  Objects(const Objects&) = delete;
  Objects& operator=(const Objects&) = delete;

  // The heuristics read no memory, but take the alignment of these from their addresses.
  void Point(const void* bias, void* z) {
    if (product_.bias.type >= 0) {
      SetDescription(kBiasPointer, bias);
    }
    if (product_.z.type >= 0) {
      SetDescription(kAuxPointer, z);
    }
  }

  MatmulDesc* description = nullptr;
  MatrixLayout* first = nullptr;
  MatrixLayout* second = nullptr;
  MatrixLayout* c = nullptr;
  MatrixLayout* d = nullptr;

 private:
  template <typename Value>
  void SetDescription(MatmulAttribute attribute, Value value) {
    caller_.Set(&Api::MatmulDescSetAttribute, description, attribute, value);
  }

  void MakeDescription() {
    caller_.Call("MatmulDescCreate", &Api::MatmulDescCreate, &description,
                 static_cast<ComputeType>(product_.compute_type),
                 static_cast<DataType>(product_.scale_type));
    SetDescription(kPointerMode, static_cast<int32_t>(product_.pointer_mode));
    SetDescription(kTransA, static_cast<int32_t>(product_.first_operation));
    SetDescription(kTransB, static_cast<int32_t>(product_.second_operation));
    SetDescription(kEpilogue, static_cast<uint32_t>(product_.epilogue));
    if (product_.bias.type >= 0) {
      SetDescription(kBiasBatchStride, product_.bias.batch_stride);
      if (product_.bias.type != product_.d.type) {
        SetDescription(kBiasDataType, static_cast<int32_t>(product_.bias.type));
      }
    }
    if (product_.z.type >= 0) {
      SetDescription(kAuxLeading, product_.z.leading);
      SetDescription(kAuxBatchStride, product_.z.batch_stride);
    }
  }

  MatrixLayout* MakeLayout(const Matrix& matrix) {
    MatrixLayout* layout = nullptr;
    caller_.Call("MatrixLayoutCreate", &Api::MatrixLayoutCreate, &layout,
                 static_cast<DataType>(matrix.type), static_cast<uint64_t>(matrix.rows),
                 static_cast<uint64_t>(matrix.columns), matrix.leading);
    if (product_.batch_count > 1) {
      const auto set = &Api::MatrixLayoutSetAttribute;
      caller_.Set(set, layout, kBatchCount, static_cast<int32_t>(product_.batch_count));
      caller_.Set(set, layout, kBatchStride, matrix.batch_stride);
    }
    return layout;
  }

  const Api& api_;
  Caller& caller_;
  const Product& product_;
};

std::vector<Algorithm> AskForAlgorithms(const Api& api, Caller& caller, Context* context,
                                        const Product& product, Objects& objects) {
  objects.Point(reinterpret_cast<const void*>(product.bias.alignment),
                reinterpret_cast<void*>(product.z.alignment));
  Preference* preference = nullptr;
  caller.Call("MatmulPreferenceCreate", &Api::MatmulPreferenceCreate, &preference);
  const auto set = [&](PreferenceAttribute attribute, auto value) {
    caller.Set(&Api::MatmulPreferenceSetAttribute, preference, attribute, value);
  };
  set(kMaxWorkspaceBytes, static_cast<uint64_t>(product.workspace_bytes));
  set(kReductionSchemeMask, kReduceInComputeType);
  set(kMinAlignmentA, static_cast<uint32_t>(product.first.alignment));
  set(kMinAlignmentB, static_cast<uint32_t>(product.second.alignment));
  set(kMinAlignmentC, static_cast<uint32_t>(product.c.alignment));
  set(kMinAlignmentD, static_cast<uint32_t>(product.d.alignment));
  HeuristicResult results[kNumAlgorithms] = {};
  int found = 0;
  caller.Call("MatmulAlgoGetHeuristic", &Api::MatmulAlgoGetHeuristic, context, objects.description,
              objects.first, objects.second, objects.c, objects.d, preference, kNumAlgorithms,
              static_cast<HeuristicResult*>(results), &found);
  if (preference != nullptr) {
    api.MatmulPreferenceDestroy(preference);
  }
  std::vector<Algorithm> algorithms;
  for (int i = 0; i < found; ++i) {
    if (results[i].state == kSuccess) {
      algorithms.push_back(results[i].algorithm);
    }
  }
  return algorithms;
}

Context* GetContext(Caller& caller, Known& known, int device) {
  Context*& context = known.contexts[device];
  if (context == nullptr) {
    caller.Call("Create", &Api::Create, &context);
  }
  return context;
}

// The context and the algorithm of an index, both found once.
std::string Choose(const Api& api, Caller& caller, const Product& product, int index,
                   Objects& objects, Context** context, Algorithm* algorithm) {
  Known& known = GetKnown();
  const std::lock_guard lock(known.mutex);
  *context = GetContext(caller, known, static_cast<int>(product.device));
  auto found = known.algorithms.find(product);
  if (caller.ok() && found == known.algorithms.end()) {
    const auto algorithms = AskForAlgorithms(api, caller, *context, product, objects);
    if (caller.ok()) {
      found = known.algorithms.emplace(product, algorithms).first;
    }
  }
  if (!caller.ok()) {
    return caller.error();
  }
  const std::vector<Algorithm>& algorithms = found->second;
  if (algorithms.empty()) {
    return "the heuristics of cuBLASLt give no algorithm";
  }
  *algorithm = algorithms[std::clamp<int>(index, 0, static_cast<int>(algorithms.size()) - 1)];
  return "";
}

// alpha and beta on the host, in each type that scales.
struct HostScalars {
  explicit HostScalars(bool reads_c)
      : f32{1, reads_c ? 1.f : 0.f}, f64{1, reads_c ? 1. : 0.}, s32{1, reads_c ? 1 : 0} {}

  const void* Get(int64_t type, int which) const {
    return type == kR64F   ? static_cast<const void*>(f64 + which)
           : type == kR32I ? static_cast<const void*>(s32 + which)
                           : f32 + which;
  }

  float f32[2];
  double f64[2];
  int32_t s32[2];
};

void Multiply(const GemmParams& params, const Batch& batch, const Product& product, Caller& caller,
              Objects& objects, Context* context, const Algorithm& algorithm, CUstream_st* stream) {
  const HostScalars host(params.c.data != nullptr);
  for (int64_t launch = 0; launch < batch.num_launches; ++launch) {
    const auto at = [&](const Tensor& tensor) -> void* {
      return tensor.data == nullptr
                 ? nullptr
                 : static_cast<char*>(tensor.data) + LaunchOffset(params, batch, tensor, launch);
    };
    const bool on_device = product.pointer_mode == kDevice;
    const void* alpha = on_device ? at(params.alpha) : host.Get(product.scale_type, 0);
    const void* beta = on_device ? at(params.beta) : host.Get(product.scale_type, 1);
    const void* c = params.c.data == nullptr ? at(params.d) : at(params.c);
    objects.Point(at(BiasOrSum(params)), at(params.z));
    caller.Call("Matmul", &Api::Matmul, context, objects.description, alpha,
                static_cast<const void*>(at(params.b)), objects.first,
                static_cast<const void*>(at(params.a)), objects.second, beta, c, objects.c,
                at(params.d), objects.d, &algorithm, params.workspace,
                static_cast<size_t>(params.workspace_bytes), stream);
  }
}

std::string Run(const GemmParams& params, CUstream_st* stream) {
  std::string error;
  const Api* api = GetApi(&error);
  if (api == nullptr) {
    return error;
  }
  const AllowedToAllocate allowed;
  const Batch batch = DivideBatch(params);
  Product product;
  error = Describe(params, batch, CurrentDevice(), &product);
  if (!error.empty()) {
    return error;
  }
  Caller caller(*api);
  Objects objects(*api, caller, product);
  Context* context = nullptr;
  Algorithm algorithm = {};
  error = Choose(*api, caller, product, params.knobs[0], objects, &context, &algorithm);
  if (!error.empty()) {
    return error;
  }
  Multiply(params, batch, product, caller, objects, context, algorithm, stream);
  return caller.error();
}

// Keeps a text alive for the caller, who takes null for success.
const char* Kept(std::string text) {
  thread_local std::string kept;
  kept = std::move(text);
  return kept.empty() ? nullptr : kept.c_str();
}

}  // namespace

const char* Launch(const GemmParams& params, CUstream_st* stream) {
  return Kept(Run(params, stream));
}

const char* Start() {
  std::string error;
  const Api* api = GetApi(&error);
  if (api == nullptr) {
    return Kept(error);
  }
  Caller caller(*api);
  Known& known = GetKnown();
  const std::lock_guard lock(known.mutex);
  GetContext(caller, known, CurrentDevice());
  return Kept(caller.error());
}

}  // namespace jaxgemm::cublaslt
