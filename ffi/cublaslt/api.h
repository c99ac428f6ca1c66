// What is used of cuBLASLt, without its header: the library is looked for when it is first needed,
// so building and importing do without it. Values are those of its binary interface; api.cc
// compares them with the header where there is one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

// CUDA's stream without its headers.
struct CUstream_st;

namespace jaxgemm::cublaslt {

struct Context;
struct MatmulDesc;
struct MatrixLayout;
struct Preference;

using Status = int32_t;
inline constexpr Status kSuccess = 0;

enum DataType : int32_t {
  kR32F = 0,
  kR64F = 1,
  kR16F = 2,
  kR8I = 3,
  kR32I = 10,
  kR16BF = 14,
  kR8FE4M3 = 28,
  kR8FE5M2 = 29,
};

enum ComputeType : int32_t {
  kCompute32F = 68,
  kCompute64F = 70,
  kCompute32I = 72,
  kCompute32FFastTF32 = 77,
};

enum Operation : int32_t { kAsStored = 0, kTransposed = 1 };

enum PointerMode : int32_t { kHost = 0, kDevice = 1 };

enum MatmulAttribute : int32_t {
  kPointerMode = 2,
  kTransA = 3,
  kTransB = 4,
  kEpilogue = 7,
  kBiasPointer = 8,
  kBiasBatchStride = 10,
  kAuxPointer = 11,
  kAuxLeading = 12,
  kAuxBatchStride = 13,
  kBiasDataType = 26,
};

enum LayoutAttribute : int32_t { kBatchCount = 5, kBatchStride = 6 };

enum PreferenceAttribute : int32_t {
  kMaxWorkspaceBytes = 1,
  kReductionSchemeMask = 3,
  kMinAlignmentA = 5,
  kMinAlignmentB = 6,
  kMinAlignmentC = 7,
  kMinAlignmentD = 8,
};

// Partial sums in the compute type, added in a fixed order. The other schemes round them to d's.
inline constexpr uint32_t kReduceInComputeType = 2;

// Bits of an epilogue; kPlain stands alone.
enum Epilogue : uint32_t {
  kPlain = 1,
  kRelu = 2,
  kBias = 4,
  kSumsD = 16,
  kGelu = 32,
  kSlopeOfGelu = 64,
  // What gelu is applied to is another matrix: written with kGelu, read with kSlopeOfGelu.
  kHasInput = 128,
};

struct Algorithm {
  uint64_t data[8];
};

struct HeuristicResult {
  Algorithm algorithm;
  size_t workspace_bytes;
  Status state;
  float waves;
  int32_t reserved[4];
};

// The functions, each named as in the library after its prefix.
struct Api {
  const char* (*GetStatusName)(Status);
  Status (*Create)(Context**);
  Status (*MatmulDescCreate)(MatmulDesc**, ComputeType, DataType scale);
  Status (*MatmulDescDestroy)(MatmulDesc*);
  Status (*MatmulDescSetAttribute)(MatmulDesc*, MatmulAttribute, const void*, size_t);
  Status (*MatrixLayoutCreate)(MatrixLayout**, DataType, uint64_t rows, uint64_t columns,
                               int64_t leading);
  Status (*MatrixLayoutDestroy)(MatrixLayout*);
  Status (*MatrixLayoutSetAttribute)(MatrixLayout*, LayoutAttribute, const void*, size_t);
  Status (*MatmulPreferenceCreate)(Preference**);
  Status (*MatmulPreferenceDestroy)(Preference*);
  Status (*MatmulPreferenceSetAttribute)(Preference*, PreferenceAttribute, const void*, size_t);
  Status (*MatmulAlgoGetHeuristic)(Context*, MatmulDesc*, MatrixLayout* a, MatrixLayout* b,
                                   MatrixLayout* c, MatrixLayout* d, Preference*, int requested,
                                   HeuristicResult*, int* found);
  Status (*Matmul)(Context*, MatmulDesc*, const void* alpha, const void* a, MatrixLayout*,
                   const void* b, MatrixLayout*, const void* beta, const void* c, MatrixLayout*,
                   void* d, MatrixLayout*, const Algorithm*, void* workspace, size_t bytes,
                   CUstream_st*);
};

// Finds the functions in a file, or under the library's name. Returns null, or what went wrong.
const char* Load(const char* file);

// The functions that were found last; by the library's name if `Load` was not called. Null if there
// is no library; then `error` says why.
const Api* GetApi(std::string* error);

}  // namespace jaxgemm::cublaslt
