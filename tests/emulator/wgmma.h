// Products of warpgroups, from descriptors of operands in shared memory.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "machine.h"

namespace emulator {

inline constexpr int kNumWarps = kWarpgroupSize / kWarpSize;

enum class Element { kBF16, kF16, kTF32 };

// One wgmma.mma_async with a and b in shared memory, 64 x depth and depth x n.
struct ProductShape {
  Element element;
  int n;
  // Whether m or n, not k, is contiguous.
  bool a_is_mn_major;
  bool b_is_mn_major;
};

// The 64 x n accumulators of a warpgroup, which are in registers of its threads unless products are
// under way.
struct Accumulators {
  int n;
  std::vector<float> values;
  float* registers[kWarpgroupSize] = {};
  // Whether the thread has given its registers to the Tensor Cores, and for which product last.
  bool is_in_flight[kWarpgroupSize] = {};
  int64_t last_product[kWarpgroupSize] = {};
};

struct Product {
  ProductShape shape;
  uint64_t a;
  uint64_t b;
  // Where each thread has a, if a is in registers.
  std::vector<const uint32_t*> a_registers;
  bool adds;
  Accumulators* to;
  // Of each warp, those that have issued it.
  int num_threads[kNumWarps] = {};
};

struct Warpgroup {
  // Those that have been issued, but are not done by all warps: `first_product` and those after it.
  std::deque<Product> products;
  int64_t first_product = 0;
  // Warps need not wait for one another.
  int64_t num_done[kNumWarps] = {};
  std::deque<Accumulators> accumulators;
  // Of each thread: products, groups by the number of products before their end, fences.
  int64_t num_issued[kWarpgroupSize] = {};
  std::vector<int64_t> group_ends[kWarpgroupSize];
  bool is_fenced[kWarpgroupSize] = {};
};

// `a_registers` are four of a thread, or null if `a` is a descriptor.
void Multiply(const ProductShape& shape, float* acc, uint64_t a, const uint32_t* a_registers,
              uint64_t b, bool adds);
void FenceProducts();
void CommitProducts();
void WaitForProducts(int pending);

}  // namespace emulator
