// Rung 5, cuda.warptiled: float32 without Tensor Cores, as fast as FMAs are issued.
//
// Bottlenecks before: each step waited for its own loads, and lanes side by side read b from the
// same banks. Here
//
//     copies are asynchronous (cp.async): kStages - 1 tiles are on their way while one is
//       multiplied, and they cost neither registers nor waiting
//     shared memory is read 16 bytes at a time: each warp owns a tile of d, and its 8 x 4 lanes are
//       arranged so that the lanes of a half-warp read at most 128 different bytes
//     fragments are double-buffered in registers: those of step k + 1 load while step k multiplies,
//       across tiles too, so there is one barrier a tile and nothing waits behind it
//     d goes through shared memory on its way out, so that global stores are whole rows
//
//     shared memory:  (R + C) / 4 loads for R · C FMAs of a thread: 4 for 64, or 6 for 128
//     global memory:  itemsize · m · n · k · (1/kTileM + 1/kTileN), as on rung 4
//
// Limit now: FMA issue. Per 16 steps of k a thread of 8 x 8 issues 1024 FMAs, 64 loads from shared
// memory and about 30 other instructions. What is left needs other arithmetic units: rung 6 goes to
// Tensor Cores, which float32 at full accuracy cannot use.
//
// The thread layout follows CUTLASS's SIMT kernels:
// https://github.com/NVIDIA/cutlass/blob/main/include/cutlass/gemm/warp/mma_simt.h
#pragma once

#include "parts/elements.cuh"
#include "parts/epilogue.cuh"
#include "parts/operand.cuh"
#include "parts/tiles.cuh"
#include "ptx/copy_async.cuh"
#include "ptx/shared_address.cuh"

namespace jaxgemm {

// How a tile of an operand gets to shared memory, where outer (m or n) is contiguous.
enum class CopyMode {
  // Stored with k contiguous: element by element, transposed on the way.
  kTranspose,
  // Stored with outer contiguous, rows of 16-byte multiples: four elements at a time.
  kVector,
  // Stored with outer contiguous, any size.
  kElement,
};

// Copies the tiles of one operand, one after the other along k, into a ring of stages. Outside the
// matrix along outer it reads the last rows again, which only reaches elements of d that are not
// stored; past the end of k it writes zeros.
template <CopyMode kMode, int kOuter, int kTileK, int kNumThreads>
class TileCopy {
 public:
  // Padded so that a transposed copy writes different banks.
  static constexpr int kRow = kOuter + (kMode == CopyMode::kTranspose ? 4 : 0);
  static constexpr int kTileElements = kTileK * kRow;

  // `smem` is the tile [kTileK][kRow] of stage 0.
  __device__ TileCopy(const Operand<float>& operand, int outer, const float* smem)
      : next_(operand.At(0, 0) + (kIsTransposed ? KIndex() : 0)),
        stride_(kIsTransposed ? operand.outer_stride() : operand.k_stride()),
        k_left_(operand.k_size() - KIndex()),
        first_(outer + OuterIndex()),
        last_(operand.outer_size() - kWidth),
        address_(SharedAddress(smem + KIndex() * kRow + OuterIndex())) {}

  // Starts copying the next tile, `offset` bytes after stage 0.
  __device__ void Start(int offset) {
    // All threads take the same way: KIndex() is less than kKThreads.
    if (k_left_ + KIndex() >= kTileK) {
      Copy<false>(address_ + offset);
    } else {
      Copy<true>(address_ + offset);
    }
    next_ += kIsTransposed ? kTileK : static_cast<int64_t>(kTileK) * stride_;
    k_left_ -= kTileK;
  }

 private:
  static constexpr bool kIsTransposed = kMode == CopyMode::kTranspose;
  static constexpr int kWidth = kMode == CopyMode::kVector ? 4 : 1;
  // Neighbouring threads read along the contiguous dimension: whole sectors where that is k.
  static constexpr int kVectors = kOuter / kWidth;
  static constexpr int kKThreads = kIsTransposed            ? 8
                                   : kNumThreads > kVectors ? kNumThreads / kVectors
                                                            : 1;
  static constexpr int kOuterThreads = kNumThreads / kKThreads;
  static constexpr int kOuterSteps = kVectors / kOuterThreads;
  static constexpr int kKSteps = kTileK / kKThreads;
  static_assert(kOuterSteps * kOuterThreads == kVectors, "threads must cover the tile");
  static_assert(kKSteps * kKThreads == kTileK, "threads must cover the tile");

  static __device__ int OuterIndex() {
    return kIsTransposed ? threadIdx.x / kKThreads : threadIdx.x % kOuterThreads * kWidth;
  }

  static __device__ int KIndex() {
    return kIsTransposed ? threadIdx.x % kKThreads : threadIdx.x / kOuterThreads;
  }

  template <bool kIsLast>
  __device__ void Copy(uint32_t address) const {
#pragma unroll
    for (int i = 0; i < kOuterSteps; ++i) {
      const int outer = min(first_ + i * kOuterThreads * kWidth, last_);
#pragma unroll
      for (int j = 0; j < kKSteps; ++j) {
        const bool valid = !kIsLast || j * kKThreads < k_left_;
        // Nothing is read through it where it is not valid.
        const float* gmem =
            kIsTransposed
                ? next_ + static_cast<int64_t>(outer) * stride_ + j * kKThreads
                : next_ + static_cast<int64_t>(KIndex() + j * kKThreads) * stride_ + outer;
        constexpr int kElementBytes = sizeof(float);
        const int step = (j * kKThreads * kRow + i * kOuterThreads * kWidth) * kElementBytes;
        CopyAsync<kWidth * kElementBytes>(address + step, gmem, valid);
      }
    }
  }

  // Where the next tile begins; with this thread's place along k if that is contiguous.
  const float* next_;
  const int stride_;
  // How far this thread's first element along k is from the end.
  int k_left_;
  const int first_;
  const int last_;
  const uint32_t address_;
};

// A CTA tile of kWarpsM x kWarpsN warps; each thread has kBlockM x kBlockN elements of d, as pieces
// of 4 x 4 that lie 32 rows and 16 columns apart.
template <int kWarpsM, int kWarpsN, int kBlockM, int kBlockN, int kDepth, int kNumStages>
struct Warptiled {
  static constexpr int kLanesM = 8;
  static constexpr int kLanesN = 4;
  static constexpr int kPiecesM = kBlockM / 4;
  static constexpr int kPiecesN = kBlockN / 4;
  static constexpr int kWarpTileM = kLanesM * kBlockM;
  static constexpr int kWarpTileN = kLanesN * kBlockN;
  static constexpr int kTileM = kWarpsM * kWarpTileM;
  static constexpr int kTileN = kWarpsN * kWarpTileN;
  static constexpr int kTileK = kDepth;
  static constexpr int kStages = kNumStages;
  static constexpr int kNumThreads = 32 * kWarpsM * kWarpsN;
  // As many CTAs an SM as leave registers for accumulators, fragments and addresses: 168 a thread
  // for 8 x 8 elements, 255 for 8 x 16.
  static constexpr int kMinCtas = (kBlockM * kBlockN > 64 ? 256 : 384) / kNumThreads;
  static_assert(kStages >= 2, "one tile is multiplied while another one is copied");

  static const char* Launch(const GemmParams& params, cudaStream_t stream);

 private:
  template <CopyMode kModeA>
  static const char* LaunchForA(const GemmParams& params, cudaStream_t stream);
  template <CopyMode kModeA, CopyMode kModeB>
  static const char* LaunchForBoth(const GemmParams& params, cudaStream_t stream);
};

// The body, with the copies that suit the operands.
template <typename Shape, CopyMode kModeA, CopyMode kModeB>
class WarptiledBody {
 public:
  using CopyA = TileCopy<kModeA, Shape::kTileM, Shape::kTileK, Shape::kNumThreads>;
  using CopyB = TileCopy<kModeB, Shape::kTileN, Shape::kTileK, Shape::kNumThreads>;
  static constexpr int kStageElements = CopyA::kTileElements + CopyB::kTileElements;
  // Rows of d that go out together: one piece of every thread along m.
  static constexpr int kSlabM = Shape::kTileM / Shape::kPiecesM;
  static constexpr int kSlabRow = Shape::kTileN + 4;
  static constexpr int kRingBytes = Shape::kStages * kStageElements * sizeof(float);
  static constexpr int kSlabBytes = kSlabM * kSlabRow * sizeof(float);
  static constexpr int kSmemBytes = kRingBytes > kSlabBytes ? kRingBytes : kSlabBytes;

  __device__ WarptiledBody(const GemmParams& params, float* smem)
      : params_(params), smem_(smem), tile_(TileOfCta<Shape::kTileM, Shape::kTileN>(params)) {
    const int lane = threadIdx.x % 32;
    const int warp = threadIdx.x / 32;
    // Bits of the lane, low to high: n, m, m, m, n. Neighbours read the same part of a, and lanes
    // two apart the same part of b: then a load of 16 bytes a lane takes two passes, not four.
    lane_m_ = lane / 2 % 8;
    lane_n_ = lane % 2 + lane / 16 * 2;
    warp_m_ = warp % (Shape::kTileM / Shape::kWarpTileM);
    warp_n_ = warp / (Shape::kTileM / Shape::kWarpTileM);
  }

  __device__ void Run() {
    Multiply();
    Store();
  }

 private:
  struct Fragments {
    float a[Shape::kPiecesM][4];
    float b[Shape::kPiecesN][4];
  };

  __device__ float* a_smem(int stage) const { return smem_ + stage * kStageElements; }
  __device__ float* b_smem(int stage) const { return a_smem(stage) + CopyA::kTileElements; }

  __device__ void Load(int stage, int k, Fragments& fragments) const {
    const float* a = a_smem(stage) + k * CopyA::kRow + warp_m_ * Shape::kWarpTileM + lane_m_ * 4;
    const float* b = b_smem(stage) + k * CopyB::kRow + warp_n_ * Shape::kWarpTileN + lane_n_ * 4;
#pragma unroll
    for (int i = 0; i < Shape::kPiecesM; ++i) {
      *reinterpret_cast<float4*>(fragments.a[i]) =
          *reinterpret_cast<const float4*>(a + i * 4 * Shape::kLanesM);
    }
#pragma unroll
    for (int j = 0; j < Shape::kPiecesN; ++j) {
      *reinterpret_cast<float4*>(fragments.b[j]) =
          *reinterpret_cast<const float4*>(b + j * 4 * Shape::kLanesN);
    }
  }

  __device__ void MultiplyStep(const Fragments& fragments) {
#pragma unroll
    for (int i = 0; i < Shape::kPiecesM * 4; ++i) {
#pragma unroll
      for (int j = 0; j < Shape::kPiecesN * 4; ++j) {
        // Every second row from right to left: operands stay where the FMA before had them.
        const int column = i % 2 == 0 ? j : Shape::kPiecesN * 4 - 1 - j;
        acc_[i][column] += fragments.a[i / 4][i % 4] * fragments.b[column / 4][column % 4];
      }
    }
  }

  __device__ void Multiply() {
    CopyA copy_a(Operand<float>::OfA(params_, tile_.batch), tile_.row, a_smem(0));
    CopyB copy_b(Operand<float>::OfB(params_, tile_.batch), tile_.column, b_smem(0));
    const int num_steps = (params_.k + Shape::kTileK - 1) / Shape::kTileK;
    const auto start_copies = [&](int step, int stage) {
      if (step < num_steps) {
        const int offset = stage * kStageElements * static_cast<int>(sizeof(float));
        copy_a.Start(offset);
        copy_b.Start(offset);
      }
      // Also where nothing was copied, so that the number of groups tells the step.
      CommitCopies();
    };
    for (int stage = 0; stage < Shape::kStages - 1; ++stage) {
      start_copies(stage, stage);
    }
    // The oldest tile has arrived: this thread's part by the wait, the others' by the barrier.
    WaitForCopies<Shape::kStages - 2>();
    __syncthreads();
    Fragments fragments[2];
    Load(0, 0, fragments[0]);
    int stage = 0;
    int free_stage = Shape::kStages - 1;
    for (int step = 0; step < num_steps; ++step) {
#pragma unroll
      for (int k = 0; k < Shape::kTileK; ++k) {
        if (k == Shape::kTileK - 1) {
          // All have read the last fragments of this tile: its stage is free after the barrier,
          // which also shows everybody the next tile.
          WaitForCopies<Shape::kStages - 2>();
          __syncthreads();
          free_stage = stage;
          stage = stage + 1 == Shape::kStages ? 0 : stage + 1;
        }
        Load(stage, (k + 1) % Shape::kTileK, fragments[(k + 1) % 2]);
        if (k == 0) {
          start_copies(step + Shape::kStages - 1, free_stage);
        }
        MultiplyStep(fragments[k % 2]);
      }
    }
  }

  __device__ void Store() {
    const Epilogue epilogue(params_, tile_.batch);
#pragma unroll
    for (int i = 0; i < Shape::kPiecesM; ++i) {
      // Before: the last reads of the ring, or of the slab before this one.
      __syncthreads();
      WriteSlab(i);
      __syncthreads();
      StoreSlab(i, epilogue);
    }
  }

  __device__ void WriteSlab(int i) const {
    const int row = (warp_m_ * Shape::kLanesM + lane_m_) * 4;
    const int column = warp_n_ * Shape::kWarpTileN + lane_n_ * 4;
#pragma unroll
    for (int r = 0; r < 4; ++r) {
#pragma unroll
      for (int j = 0; j < Shape::kPiecesN; ++j) {
        float* slab = smem_ + (row + r) * kSlabRow + column + j * 4 * Shape::kLanesN;
        const float* acc = &acc_[i * 4 + r][j * 4];
        *reinterpret_cast<float4*>(slab) = make_float4(acc[0], acc[1], acc[2], acc[3]);
      }
    }
  }

  __device__ void StoreSlab(int i, const Epilogue& epilogue) const {
    constexpr int kVectors = Shape::kTileN / 4;
#pragma unroll 1
    for (int index = threadIdx.x; index < kSlabM * kVectors; index += Shape::kNumThreads) {
      const int slab_row = index / kVectors;
      const int column = index % kVectors * 4;
      // Rows of the slab are those of piece i, warp by warp.
      constexpr int kRows = Shape::kLanesM * 4;
      const int row = slab_row / kRows * Shape::kWarpTileM + i * kRows + slab_row % kRows;
      epilogue.Store4(tile_.row + row, tile_.column + column,
                      *reinterpret_cast<const float4*>(smem_ + slab_row * kSlabRow + column));
    }
  }

  const GemmParams& params_;
  float* const smem_;
  const Tile tile_;
  int lane_m_;
  int lane_n_;
  int warp_m_;
  int warp_n_;
  float acc_[Shape::kPiecesM * 4][Shape::kPiecesN * 4] = {};
};

template <typename Shape, CopyMode kModeA, CopyMode kModeB>
__global__ __launch_bounds__(Shape::kNumThreads, Shape::kMinCtas) void WarptiledKernel(
    const __grid_constant__ GemmParams params) {
  auto* smem = reinterpret_cast<float*>(DynamicSharedMemory<sizeof(float4)>());
  WarptiledBody<Shape, kModeA, kModeB>(params, smem).Run();
}

// The widest copy that an operand allows.
inline CopyMode CopyModeOf(const GemmParams& params, const Tensor& tensor, Major major) {
  if (major == Major::kK) {
    return CopyMode::kTranspose;
  }
  constexpr int kBytes = 16;
  bool aligned =
      reinterpret_cast<uintptr_t>(tensor.data) % kBytes == 0 && tensor.row_stride % 4 == 0;
  for (int axis = 0; axis < params.num_batch_axes; ++axis) {
    aligned = aligned && tensor.batch_strides[axis] % 4 == 0;
  }
  return aligned ? CopyMode::kVector : CopyMode::kElement;
}

#define JAXGEMM_WARPTILED_TEMPLATE \
  template <int kWarpsM, int kWarpsN, int kBlockM, int kBlockN, int kDepth, int kNumStages>
#define JAXGEMM_WARPTILED Warptiled<kWarpsM, kWarpsN, kBlockM, kBlockN, kDepth, kNumStages>

JAXGEMM_WARPTILED_TEMPLATE
template <CopyMode kModeA, CopyMode kModeB>
const char* JAXGEMM_WARPTILED::LaunchForBoth(const GemmParams& params, cudaStream_t stream) {
  constexpr int kSmemBytes = WarptiledBody<Warptiled, kModeA, kModeB>::kSmemBytes;
  return LaunchKernel(WarptiledKernel<Warptiled, kModeA, kModeB>, params,
                      NumTiles<kTileM, kTileN>(params), kNumThreads, kSmemBytes, stream);
}

JAXGEMM_WARPTILED_TEMPLATE
template <CopyMode kModeA>
const char* JAXGEMM_WARPTILED::LaunchForA(const GemmParams& params, cudaStream_t stream) {
  switch (CopyModeOf(params, params.b, params.b_major)) {
    case CopyMode::kTranspose:
      return LaunchForBoth<kModeA, CopyMode::kTranspose>(params, stream);
    case CopyMode::kVector:
      return LaunchForBoth<kModeA, CopyMode::kVector>(params, stream);
    case CopyMode::kElement:
      return LaunchForBoth<kModeA, CopyMode::kElement>(params, stream);
  }
  return "unknown layout of b";
}

JAXGEMM_WARPTILED_TEMPLATE
const char* JAXGEMM_WARPTILED::Launch(const GemmParams& params, cudaStream_t stream) {
  switch (CopyModeOf(params, params.a, params.a_major)) {
    case CopyMode::kTranspose:
      return LaunchForA<CopyMode::kTranspose>(params, stream);
    case CopyMode::kVector:
      return LaunchForA<CopyMode::kVector>(params, stream);
    case CopyMode::kElement:
      return LaunchForA<CopyMode::kElement>(params, stream);
  }
  return "unknown layout of a";
}

#undef JAXGEMM_WARPTILED_TEMPLATE
#undef JAXGEMM_WARPTILED

}  // namespace jaxgemm
