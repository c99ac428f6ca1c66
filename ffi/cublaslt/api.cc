#include "cublaslt/api.h"

#include <dlfcn.h>

#include <mutex>
#include <optional>
#include <string>

#if __has_include(<cublasLt.h>)
#include <cublasLt.h>
#endif

namespace jaxgemm::cublaslt {
namespace {

// Finds a copy that the process has already, whatever its folder; else where the loader looks.
constexpr const char* kLibraryName = "libcublasLt.so.13";

struct Loaded {
  std::mutex mutex;
  std::optional<Api> api;
  std::string error;
};

// Never destroyed: handlers may run while the process ends.
Loaded& GetLoaded() {
  static Loaded& loaded = *new Loaded;
  return loaded;
}

template <typename Function>
bool Find(void* library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
  return *function != nullptr;
}

std::optional<Api> FindAll(void* library) {
  Api api = {};
#define JAXGEMM_FIND(name) Find(library, "cublasLt" #name, &api.name)
  const bool found =
      JAXGEMM_FIND(GetStatusName) && JAXGEMM_FIND(Create) && JAXGEMM_FIND(MatmulDescCreate) &&
      JAXGEMM_FIND(MatmulDescDestroy) && JAXGEMM_FIND(MatmulDescSetAttribute) &&
      JAXGEMM_FIND(MatrixLayoutCreate) && JAXGEMM_FIND(MatrixLayoutDestroy) &&
      JAXGEMM_FIND(MatrixLayoutSetAttribute) && JAXGEMM_FIND(MatmulPreferenceCreate) &&
      JAXGEMM_FIND(MatmulPreferenceDestroy) && JAXGEMM_FIND(MatmulPreferenceSetAttribute) &&
      JAXGEMM_FIND(MatmulAlgoGetHeuristic) && JAXGEMM_FIND(Matmul);
#undef JAXGEMM_FIND
  return found ? std::optional(api) : std::nullopt;
}

void LoadLocked(Loaded& loaded, const char* file) {
  void* library = dlopen(file, RTLD_LAZY | RTLD_LOCAL);
  if (library == nullptr) {
    loaded.error = std::string("cuBLASLt cannot be loaded: ") + dlerror();
    return;
  }
  const std::optional<Api> api = FindAll(library);
  loaded.error = api.has_value() ? "" : std::string(file) + " lacks a function of cuBLASLt 13";
  if (api.has_value()) {
    loaded.api = api;
  }
}

}  // namespace

const char* Load(const char* file) {
  Loaded& loaded = GetLoaded();
  const std::lock_guard lock(loaded.mutex);
  LoadLocked(loaded, file);
  return loaded.error.empty() ? nullptr : loaded.error.c_str();
}

const Api* GetApi(std::string* error) {
  Loaded& loaded = GetLoaded();
  const std::lock_guard lock(loaded.mutex);
  if (!loaded.api.has_value()) {
    LoadLocked(loaded, kLibraryName);
  }
  if (loaded.api.has_value()) {
    return &*loaded.api;
  }
  *error = loaded.error;
  return nullptr;
}

#if __has_include(<cublasLt.h>)

#define JAXGEMM_IS(ours, theirs) \
  static_assert(static_cast<int64_t>(ours) == static_cast<int64_t>(theirs), #theirs)

JAXGEMM_IS(kSuccess, CUBLAS_STATUS_SUCCESS);
JAXGEMM_IS(kR32F, CUDA_R_32F);
JAXGEMM_IS(kR64F, CUDA_R_64F);
JAXGEMM_IS(kR16F, CUDA_R_16F);
JAXGEMM_IS(kR8I, CUDA_R_8I);
JAXGEMM_IS(kR32I, CUDA_R_32I);
JAXGEMM_IS(kR16BF, CUDA_R_16BF);
JAXGEMM_IS(kR8FE4M3, CUDA_R_8F_E4M3);
JAXGEMM_IS(kR8FE5M2, CUDA_R_8F_E5M2);
JAXGEMM_IS(kCompute32F, CUBLAS_COMPUTE_32F);
JAXGEMM_IS(kCompute64F, CUBLAS_COMPUTE_64F);
JAXGEMM_IS(kCompute32I, CUBLAS_COMPUTE_32I);
JAXGEMM_IS(kCompute32FFastTF32, CUBLAS_COMPUTE_32F_FAST_TF32);
JAXGEMM_IS(kAsStored, CUBLAS_OP_N);
JAXGEMM_IS(kTransposed, CUBLAS_OP_T);
JAXGEMM_IS(kHost, CUBLASLT_POINTER_MODE_HOST);
JAXGEMM_IS(kDevice, CUBLASLT_POINTER_MODE_DEVICE);
JAXGEMM_IS(kPointerMode, CUBLASLT_MATMUL_DESC_POINTER_MODE);
JAXGEMM_IS(kTransA, CUBLASLT_MATMUL_DESC_TRANSA);
JAXGEMM_IS(kTransB, CUBLASLT_MATMUL_DESC_TRANSB);
JAXGEMM_IS(kEpilogue, CUBLASLT_MATMUL_DESC_EPILOGUE);
JAXGEMM_IS(kBiasPointer, CUBLASLT_MATMUL_DESC_BIAS_POINTER);
JAXGEMM_IS(kBiasBatchStride, CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE);
JAXGEMM_IS(kAuxPointer, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER);
JAXGEMM_IS(kAuxLeading, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD);
JAXGEMM_IS(kAuxBatchStride, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_BATCH_STRIDE);
JAXGEMM_IS(kBiasDataType, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE);
JAXGEMM_IS(kBatchCount, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT);
JAXGEMM_IS(kBatchStride, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET);
JAXGEMM_IS(kMaxWorkspaceBytes, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES);
JAXGEMM_IS(kReductionSchemeMask, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK);
JAXGEMM_IS(kMinAlignmentA, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES);
JAXGEMM_IS(kMinAlignmentB, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES);
JAXGEMM_IS(kMinAlignmentC, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES);
JAXGEMM_IS(kMinAlignmentD, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES);
JAXGEMM_IS(kReduceInComputeType, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
JAXGEMM_IS(kPlain, CUBLASLT_EPILOGUE_DEFAULT);
JAXGEMM_IS(kRelu, CUBLASLT_EPILOGUE_RELU);
JAXGEMM_IS(kBias, CUBLASLT_EPILOGUE_BIAS);
JAXGEMM_IS(kRelu | kBias, CUBLASLT_EPILOGUE_RELU_BIAS);
JAXGEMM_IS(kGelu, CUBLASLT_EPILOGUE_GELU);
JAXGEMM_IS(kGelu | kBias, CUBLASLT_EPILOGUE_GELU_BIAS);
JAXGEMM_IS(kGelu | kHasInput, CUBLASLT_EPILOGUE_GELU_AUX);
JAXGEMM_IS(kGelu | kHasInput | kBias, CUBLASLT_EPILOGUE_GELU_AUX_BIAS);
JAXGEMM_IS(kSlopeOfGelu | kHasInput, CUBLASLT_EPILOGUE_DGELU);
JAXGEMM_IS(kSlopeOfGelu | kHasInput | kSumsD, CUBLASLT_EPILOGUE_DGELU_BGRAD);
JAXGEMM_IS(sizeof(Algorithm), sizeof(cublasLtMatmulAlgo_t));
JAXGEMM_IS(sizeof(HeuristicResult), sizeof(cublasLtMatmulHeuristicResult_t));
JAXGEMM_IS(offsetof(HeuristicResult, state), offsetof(cublasLtMatmulHeuristicResult_t, state));
JAXGEMM_IS(offsetof(HeuristicResult, workspace_bytes),
           offsetof(cublasLtMatmulHeuristicResult_t, workspaceSize));
#undef JAXGEMM_IS

#endif

}  // namespace jaxgemm::cublaslt
