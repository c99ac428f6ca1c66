// Copies of operands with rows that begin at multiples of 16 bytes, for TMA and for cp.async; with
// cache lines, where rows are long.
//
// TMA counts in units of 16 bytes along a row: not only must rows be a multiple of them apart, but
// the column at which a box begins must be one too, or the instruction is illegal. So no tensor map
// of any kind loads tiles of a matrix with rows of, say, 4095 elements of 16 bits. cp.async could
// only copy them with 4 bytes at a time, and not even so where rows are odd. Such an operand is
// copied to the workspace first, in one pass at the bandwidth of memory:
//
//     bytes = 2 · itemsize · rows · columns      against     flops = 2 · m · n · k
//
// For 4096³ and a copy of a this is 67 MB, about a tenth of the time of the product.
//
// A small product would wait for the end of the copies, and then for its own start, for about as
// long as it multiplies. So it is launched early (programmatic dependent launch): while the last
// copies are under way its CTAs start, make their rings and find their tiles, and wait before they
// load.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>

#include "parts/divisor.h"
#include "parts/launch.cuh"
#include "parts/shifted_unit.cuh"
#include "parts/tensor_map.cuh"
#include "ptx/cta.cuh"
#include "ptx/word.cuh"

namespace jaxgemm {

// One operand: the rows of all of its matrices, which lie one after another.
struct RealignTask {
  const uint16_t* from;
  const uint16_t* end;
  uint4* to;
  int64_t row_halves;
  // Units of a row of the copy: first those that are full, then one of `last_halves`, then zeros.
  // None where the operand needs no copy.
  Divisor units_per_row;
  uint32_t full_units_per_row;
  int last_halves;
  uint32_t num_units;
};

struct RealignTasks {
  RealignTask of_operand[2];
};

// A unit of a copy, on its way from where it begins anywhere.
struct UnitInFlight {
  // The two units of memory that it lies in; or its own halves, where these are not both part of
  // the operand: nothing outside of it is read.
  bool by_units;
  uint32_t words[8];
  int shift;
  // Halves that belong to the row.
  int count;

  __device__ __forceinline__ void Load(const RealignTask& task, uint32_t unit) {
    const uint32_t row = task.units_per_row.Quotient(unit);
    const uint32_t column = unit - row * task.units_per_row.size;
    count = column < task.full_units_per_row    ? kUnitHalves
            : column == task.full_units_per_row ? task.last_halves
                                                : 0;
    const uint16_t* from = task.from + row * task.row_halves + uint64_t{column} * kUnitHalves;
    shift = ShiftOf(from);
    const uint64_t first = reinterpret_cast<uint64_t>(from) / kUnitBytes * kUnitBytes;
    by_units = (first >= reinterpret_cast<uint64_t>(task.from)) &
               (first + 2 * kUnitBytes <= reinterpret_cast<uint64_t>(task.end));
    LoadUnitsIf(by_units, reinterpret_cast<const void*>(first), words);
    if (!by_units) {
      LoadHalves(from, task.end, words);
    }
  }

  // Waits for it.
  __device__ __forceinline__ uint4 Take() {
    const uint4 unit = by_units ? ShiftedUnit(words, shift) : JoinedHalves(words);
    return count == kUnitHalves ? unit : FirstHalves(unit, count);
  }
};

inline constexpr int kRealignThreads = 512;
// Units of a thread, all of which are under way together.
inline constexpr int kRealignUnits = 1;

static __global__ __launch_bounds__(kRealignThreads) void RealignKernel(
    const __grid_constant__ RealignTasks tasks) {
  const RealignTask& task = tasks.of_operand[blockIdx.y];
  const uint32_t first = blockIdx.x * (kRealignThreads * kRealignUnits) + threadIdx.x;
  UnitInFlight units[kRealignUnits];
#pragma unroll
  for (int i = 0; i < kRealignUnits; ++i) {
    if (first + i * kRealignThreads < task.num_units) {
      units[i].Load(task, first + i * kRealignThreads);
    }
  }
#pragma unroll
  for (int i = 0; i < kRealignUnits; ++i) {
    if (first + i * kRealignThreads < task.num_units) {
      task.to[first + i * kRealignThreads] = units[i].Take();
    }
  }
  LaunchDependents();
}

// Units of a row of a copy: whole lines of the cache, where that is hardly more. A box of TMA is a
// line wide, and would otherwise touch two for each row: 4096 x 4096 takes 33.4 us for k = 592 and
// 30.2 for 576 (H200, benchmarks/results/nvidia_h200/l2_hints.jsonl).
inline int64_t UnitsPerRow(int64_t halves) {
  constexpr int64_t kLineUnits = 8;
  constexpr int64_t kFewestLines = 8;
  const int64_t units = CeilDiv(halves, kUnitHalves);
  return units < kFewestLines * kLineUnits ? units : CeilDiv(units, kLineUnits) * kLineUnits;
}

// Rows of all matrices of an operand: it has its own batch axes only.
inline int64_t NumRows(const GemmParams& params, const Tensor& tensor, int64_t rows) {
  for (int axis = 0; axis < params.num_batch_axes; ++axis) {
    rows *= tensor.batch_strides[axis] > 0 ? params.batch_sizes[axis] : 1;
  }
  return rows;
}

// Gives an operand its place in the workspace from byte `offset`, if it needs one, and describes
// the copy. Returns the bytes that it takes; negative if it has too many elements.
inline int64_t PlanRealign(const GemmParams& params, StoredSize size, int64_t offset,
                           Tensor* tensor, RealignTask* task) {
  *task = {};
  if (IsAlignedForTma(*tensor)) {
    return 0;
  }
  const int64_t halves = ItemBytes(tensor->dtype) / 2;
  const int64_t num_rows = NumRows(params, *tensor, size.rows);
  const int64_t units_per_row = UnitsPerRow(size.columns * halves);
  if (num_rows * units_per_row > INT32_MAX) {
    return -1;
  }
  task->row_halves = size.columns * halves;
  task->from = static_cast<const uint16_t*>(tensor->data);
  task->end = task->from + num_rows * task->row_halves;
  task->to = reinterpret_cast<uint4*>(static_cast<char*>(params.workspace) + offset);
  task->units_per_row = Divisor::Of(static_cast<uint32_t>(units_per_row));
  task->full_units_per_row = static_cast<uint32_t>(task->row_halves / kUnitHalves);
  task->last_halves = static_cast<int>(task->row_halves % kUnitHalves);
  task->num_units = static_cast<uint32_t>(num_rows * units_per_row);
  tensor->data = task->to;
  // Strides are whole rows.
  const int64_t columns = units_per_row * kUnitHalves / halves;
  tensor->row_stride = tensor->row_stride / size.columns * columns;
  for (int axis = 0; axis < params.num_batch_axes; ++axis) {
    tensor->batch_strides[axis] = tensor->batch_strides[axis] / size.columns * columns;
  }
  return num_rows * units_per_row * kTmaAlignment;
}

// Enqueues the copies that a and b need and puts them in their places. Returns null, or what went
// wrong; `has_copies` says whether there are any. A kernel that follows them may be launched early:
// it starts while the last of them are under way, and waits for them before it loads.
inline const char* RealignOperands(GemmParams* params, cudaStream_t stream, bool* has_copies) {
  *has_copies = false;
  if (params->k == 0) {
    return nullptr;
  }
  RealignTasks tasks;
  const int64_t a_bytes =
      PlanRealign(*params, StoredSizeOfA(*params), 0, &params->a, &tasks.of_operand[0]);
  const int64_t b_bytes =
      PlanRealign(*params, StoredSizeOfB(*params), std::max<int64_t>(0, a_bytes), &params->b,
                  &tasks.of_operand[1]);
  if (a_bytes < 0 || b_bytes < 0) {
    return "an operand to realign has more than 2^31 units of 16 bytes";
  }
  if (a_bytes + b_bytes == 0) {
    return nullptr;
  }
  const bool is_aligned = reinterpret_cast<uint64_t>(params->workspace) % kTmaAlignment == 0;
  if (!is_aligned || a_bytes + b_bytes > params->workspace_bytes) {
    return "the workspace has no room for copies of operands with unaligned rows";
  }
  if (a_bytes == 0) {
    std::swap(tasks.of_operand[0], tasks.of_operand[1]);
  }
  const uint32_t num_units = std::max(tasks.of_operand[0].num_units, tasks.of_operand[1].num_units);
  const dim3 grid(static_cast<unsigned>(CeilDiv(num_units, kRealignThreads * kRealignUnits)),
                  a_bytes > 0 && b_bytes > 0 ? 2 : 1);
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = dim3(kRealignThreads);
  config.stream = stream;
  // As the products want it. An SM that divides its memory anew first finishes what it runs.
  cudaLaunchAttribute carveout;
  carveout.id = cudaLaunchAttributePreferredSharedMemoryCarveout;
  carveout.val.sharedMemCarveout = cudaSharedmemCarveoutMaxShared;
  config.attrs = &carveout;
  config.numAttrs = 1;
  *has_copies = true;
  const cudaError_t error = cudaLaunchKernelEx(&config, RealignKernel, tasks);
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

}  // namespace jaxgemm
