// Which tile of d a CTA computes, in a one-dimensional grid over matrices, rows and columns.
#pragma once

#include "abi/params.h"
#include "parts/batch.h"
#include "parts/launch.cuh"

namespace jaxgemm {

struct Tile {
  // The matrix, and the first row and column of d.
  BatchPlace batch;
  int row;
  int column;
};

template <int kTileM, int kTileN>
__device__ Tile TileOfCta(const GemmParams& params) {
  // Unsigned: blockIdx is, and division by a signed number takes longer.
  const unsigned tiles_m = (static_cast<unsigned>(params.m) + kTileM - 1) / kTileM;
  const unsigned tiles_n = (static_cast<unsigned>(params.n) + kTileN - 1) / kTileN;
  const unsigned column = blockIdx.x % tiles_n;
  const unsigned rest = blockIdx.x / tiles_n;
  const int matrix = static_cast<int>(rest / tiles_m);
  return {BatchPlace::Of(params, matrix), static_cast<int>(rest % tiles_m) * kTileM,
          static_cast<int>(column) * kTileN};
}

template <int kTileM, int kTileN>
int64_t NumTiles(const GemmParams& params) {
  return CeilDiv(params.m, kTileM) * CeilDiv(params.n, kTileN) * params.num_matrices;
}

}  // namespace jaxgemm
