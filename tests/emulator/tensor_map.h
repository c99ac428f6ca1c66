// What a CUtensorMap holds here, whose own contents only the driver knows.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace emulator {

struct TensorMap {
  uint64_t mark;
  char* data;
  // Innermost first.
  int64_t sizes[3];
  // Bytes between rows and between matrices.
  int64_t strides[2];
  int box[3];
  int item_bytes;
};
static_assert(sizeof(TensorMap) <= sizeof(CUtensorMap), "a map is kept where CUDA keeps its own");

// The map; fails and returns null if it has not been made.
const TensorMap* ReadMap(const CUtensorMap* map);

}  // namespace emulator
