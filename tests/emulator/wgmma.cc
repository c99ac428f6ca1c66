// After the PTX ISA, "Asynchronous warpgroup level matrix instructions".
#include "wgmma.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cstring>

namespace emulator {

namespace {

constexpr int kRows = 64;
constexpr int kWarpRows = kRows / kNumWarps;
constexpr int kMaxDepth = 16;
constexpr int kMaxColumns = 256;
constexpr int kChunkBytes = 16;
constexpr uint32_t kPoison = 0x7FC0DEAD;

Warpgroup& CurrentWarpgroup() { return *current->cta->warpgroups[current->index / kWarpgroupSize]; }
int ThreadOfWarpgroup() { return current->index % kWarpgroupSize; }

int ItemBytes(Element element) { return element == Element::kTF32 ? 4 : 2; }
int DepthOf(Element element) { return 32 / ItemBytes(element); }

// PTX ISA, "Register fragments and shared memory matrix layouts": which element a thread's register
// is.
int PlaceOf(int thread, int i, int n) {
  const int row = thread / 32 * 16 + thread % 32 / 4 + i / 2 % 2 * 8;
  const int column = i / 4 * 8 + thread % 4 * 2 + i % 2;
  return row * n + column;
}

float ValueOf(Element element, const char* bits) {
  switch (element) {
    case Element::kBF16: {
      __nv_bfloat16 x;
      std::memcpy(&x, bits, sizeof x);
      return __bfloat162float(x);
    }
    case Element::kF16: {
      __half x;
      std::memcpy(&x, bits, sizeof x);
      return __half2float(x);
    }
    case Element::kTF32: {
      // The 13 lowest bits do not take part.
      uint32_t word;
      std::memcpy(&word, bits, sizeof word);
      word &= ~0x1FFFu;
      float x;
      std::memcpy(&x, &word, sizeof x);
      return x;
    }
  }
  return 0.0f;
}

// PTX ISA, "Matrix descriptor".
struct Descriptor {
  uint32_t start;
  uint32_t leading;
  uint32_t stride;

  static Descriptor Of(uint64_t bits) {
    if (bits >> 62 != 1 || (bits >> 49 & 7) != 0) {
      Fail("wgmma: of descriptors only the 128-byte swizzle without base offset is modelled");
    }
    const auto field = [&](int first) {
      return static_cast<uint32_t>(bits >> first & 0x3FFF) << 4;
    };
    return {field(0), field(16), field(32)};
  }

  // PTX ISA, "Strides" and "Canonical layouts", of the 128-byte swizzle. Where a chunk of 16 bytes
  // lies: row by row, 8 rows are an atom. Rows hold k, and atoms follow one another along m or n by
  // `stride`; or rows hold 128 bytes of m or n, and atoms follow by `leading` along it, by `stride`
  // along k.
  uint32_t ChunkAt(bool is_mn_major, int row, int chunk) const {
    constexpr int kChunksOfRow = 8;
    uint32_t at = start + row / 8 * stride + row % 8 * 128;
    at += is_mn_major ? chunk / kChunksOfRow * leading + chunk % kChunksOfRow * kChunkBytes
                      : chunk * kChunkBytes;
    return at ^ (at >> 7 & 7) << 4;
  }
};

// Reads rows of a or columns of b as values[mn * kMaxDepth + k].
void ReadOperand(Cta& cta, const ProductShape& shape, uint64_t descriptor, bool is_mn_major,
                 int mn_begin, int mn_end, float* values) {
  const Descriptor from = Descriptor::Of(descriptor);
  const int item_bytes = ItemBytes(shape.element);
  const int chunk_items = kChunkBytes / item_bytes;
  const int depth = DepthOf(shape.element);
  const int chunks_begin = is_mn_major ? mn_begin / chunk_items : 0;
  const int chunks_end = (is_mn_major ? mn_end : depth) / chunk_items;
  const int rows_begin = is_mn_major ? 0 : mn_begin;
  const int rows_end = is_mn_major ? depth : mn_end;
  for (int row = rows_begin; row < rows_end; ++row) {
    for (int chunk = chunks_begin; chunk < chunks_end; ++chunk) {
      char bytes[kChunkBytes];
      ReadAsync(cta, from.ChunkAt(is_mn_major, row, chunk), bytes, kChunkBytes, "wgmma");
      for (int i = 0; i < chunk_items; ++i) {
        const int along = chunk * chunk_items + i;
        const int at = is_mn_major ? along * kMaxDepth + row : row * kMaxDepth + along;
        values[at] = ValueOf(shape.element, bytes + i * item_bytes);
      }
    }
  }
}

// PTX ISA, "Register fragments", of a 64 x 8 matrix of TF32: a thread has rows r and r + 8, columns
// q and q + 4, in the order (r, q), (r + 8, q), (r, q + 4), (r + 8, q + 4).
void ReadRegisters(const Product& product, int warp, float* values) {
  for (int lane = 0; lane < kWarpSize; ++lane) {
    const uint32_t* registers = product.a_registers[warp * kWarpSize + lane];
    for (int i = 0; i < 4; ++i) {
      const int row = warp * kWarpRows + lane / 4 + i % 2 * 8;
      values[row * kMaxDepth + lane % 4 + i / 2 * 4] =
          ValueOf(Element::kTF32, reinterpret_cast<const char*>(&registers[i]));
    }
  }
}

// The rows of a warp.
void DoProduct(Cta& cta, const Product& product, int warp) {
  const ProductShape& shape = product.shape;
  const int rows_begin = warp * kWarpRows;
  const int rows_end = rows_begin + kWarpRows;
  static float a[kRows * kMaxDepth];
  static float b[kMaxColumns * kMaxDepth];
  static float b_rows[kMaxDepth][kMaxColumns];
  if (product.a_registers.empty()) {
    ReadOperand(cta, shape, product.a, shape.a_is_mn_major, rows_begin, rows_end, a);
  } else {
    ReadRegisters(product, warp, a);
  }
  ReadOperand(cta, shape, product.b, shape.b_is_mn_major, 0, shape.n, b);
  for (int k = 0; k < DepthOf(shape.element); ++k) {
    for (int column = 0; column < shape.n; ++column) {
      b_rows[k][column] = b[column * kMaxDepth + k];
    }
  }
  for (int row = rows_begin; row < rows_end; ++row) {
    float* d = product.to->values.data() + row * shape.n;
    if (!product.adds) {
      std::fill_n(d, shape.n, 0.0f);
    }
    for (int k = 0; k < DepthOf(shape.element); ++k) {
      const float x = a[row * kMaxDepth + k];
      const float* y = b_rows[k];
      for (int column = 0; column < shape.n; ++column) {
        d[column] += x * y[column];
      }
    }
  }
}

// Whether a warp has issued a product that is not done.
bool CanDoProduct(const Warpgroup& warpgroup, int warp) {
  const size_t i = warpgroup.num_done[warp] - warpgroup.first_product;
  return i < warpgroup.products.size() && warpgroup.products[i].num_threads[warp] == kWarpSize;
}

void DoNextProduct(Cta& cta, Warpgroup& warpgroup, int warp) {
  int64_t* num_done = warpgroup.num_done;
  DoProduct(cta, warpgroup.products[num_done[warp] - warpgroup.first_product], warp);
  ++num_done[warp];
  if (*std::min_element(num_done, num_done + kNumWarps) > warpgroup.first_product) {
    warpgroup.products.pop_front();
    ++warpgroup.first_product;
  }
}

// The accumulators of a thread's registers: those that other threads have for the same product.
Accumulators* FindAccumulators(Warpgroup& warpgroup, float* registers, int n) {
  for (Accumulators& acc : warpgroup.accumulators) {
    if (acc.n == n && acc.registers[ThreadOfWarpgroup()] == registers) {
      return &acc;
    }
  }
  warpgroup.accumulators.emplace_back();
  Accumulators& acc = warpgroup.accumulators.back();
  acc.n = n;
  acc.values.assign(kRows * n, 0.0f);
  return &acc;
}

// Takes a thread's registers away, which are NaN until it waits for the products.
void TakeRegisters(Accumulators& acc, float* registers) {
  const int thread = ThreadOfWarpgroup();
  acc.registers[thread] = registers;
  acc.is_in_flight[thread] = true;
  for (int i = 0; i < acc.n / 2; ++i) {
    acc.values[PlaceOf(thread, i, acc.n)] = registers[i];
    std::memcpy(&registers[i], &kPoison, sizeof kPoison);
  }
}

void GiveRegistersBack(Accumulators& acc) {
  const int thread = ThreadOfWarpgroup();
  float* registers = acc.registers[thread];
  acc.is_in_flight[thread] = false;
  for (int i = 0; i < acc.n / 2; ++i) {
    if (std::memcmp(&registers[i], &kPoison, sizeof kPoison) != 0) {
      Fail("wgmma: an accumulator was written to while products were under way");
      return;
    }
    registers[i] = acc.values[PlaceOf(thread, i, acc.n)];
  }
}

// The product that the thread issues: the first thread to do so makes it.
Product& NextProduct(Warpgroup& warpgroup, const Product& product, float* registers) {
  int64_t& num_issued = warpgroup.num_issued[ThreadOfWarpgroup()];
  const size_t i = static_cast<size_t>(num_issued - warpgroup.first_product);
  if (i == warpgroup.products.size()) {
    warpgroup.products.push_back(product);
    warpgroup.products.back().to = FindAccumulators(warpgroup, registers, product.shape.n);
  }
  ++num_issued;
  Product& found = warpgroup.products[i];
  if (found.a != product.a || found.b != product.b || found.adds != product.adds ||
      found.shape.n != product.shape.n) {
    Fail("wgmma: threads of a warpgroup issue different products");
  }
  return found;
}

}  // namespace

// PTX ISA, "wgmma.mma_async".
void Multiply(const ProductShape& shape, float* acc, uint64_t a, const uint32_t* a_registers,
              uint64_t b, bool adds) {
  Warpgroup& warpgroup = CurrentWarpgroup();
  const int thread = ThreadOfWarpgroup();
  Product& product = NextProduct(warpgroup, {shape, a, b, {}, adds, nullptr}, acc);
  Accumulators& to = *product.to;
  // PTX ISA, "wgmma.fence": before the first product, and between other accesses to registers and
  // products.
  if ((a_registers != nullptr || !to.is_in_flight[thread]) && !warpgroup.is_fenced[thread]) {
    Fail("wgmma: no wgmma.fence after registers were accessed");
  }
  if (!to.is_in_flight[thread]) {
    TakeRegisters(to, acc);
  } else if (to.registers[thread] != acc) {
    Fail("wgmma: threads of a warpgroup use different accumulators");
  }
  if (a_registers != nullptr) {
    product.a_registers.resize(kWarpgroupSize);
    product.a_registers[thread] = a_registers;
  }
  to.last_product[thread] = warpgroup.num_issued[thread] - 1;
  const int warp = thread / kWarpSize;
  ++product.num_threads[warp];
  if (settings.timing == Timing::kAtOnce && CanDoProduct(warpgroup, warp)) {
    DoNextProduct(*current->cta, warpgroup, warp);
  }
}

void FenceProducts() { CurrentWarpgroup().is_fenced[ThreadOfWarpgroup()] = true; }

// PTX ISA, "wgmma.commit_group".
void CommitProducts() {
  Warpgroup& warpgroup = CurrentWarpgroup();
  const int thread = ThreadOfWarpgroup();
  warpgroup.group_ends[thread].push_back(warpgroup.num_issued[thread]);
}

// PTX ISA, "wgmma.wait_group": until then, accumulators must not be accessed.
void WaitForProducts(int pending) {
  Warpgroup& warpgroup = CurrentWarpgroup();
  const int thread = ThreadOfWarpgroup();
  const auto& ends = warpgroup.group_ends[thread];
  const int num_groups = static_cast<int>(ends.size()) - pending;
  const int64_t end = num_groups > 0 ? ends[num_groups - 1] : 0;
  MeetWarp("wgmma.wait_group");
  while (warpgroup.num_done[thread / kWarpSize] < end) {
    DoNextProduct(*current->cta, warpgroup, thread / kWarpSize);
  }
  for (Accumulators& acc : warpgroup.accumulators) {
    if (acc.is_in_flight[thread] && acc.last_product[thread] < end) {
      GiveRegistersBack(acc);
    }
  }
  warpgroup.is_fenced[thread] = false;
}

bool DoOneProduct() {
  for (const auto& cta : cluster) {
    for (const auto& warpgroup : cta->warpgroups) {
      const int first = static_cast<int>(random_bits() % kNumWarps);
      for (int i = 0; i < kNumWarps; ++i) {
        const int warp = (first + i) % kNumWarps;
        if (CanDoProduct(*warpgroup, warp)) {
          DoNextProduct(*cta, *warpgroup, warp);
          return true;
        }
      }
    }
  }
  return false;
}

void EndProducts(Cta& cta, bool check) {
  for (const auto& warpgroup : cta.warpgroups) {
    for (const Accumulators& acc : warpgroup->accumulators) {
      const bool* in_flight = acc.is_in_flight;
      if (check && std::any_of(in_flight, in_flight + kWarpgroupSize, [](bool x) { return x; })) {
        Fail("a warpgroup has ended without waiting for its products");
        return;
      }
    }
  }
}

}  // namespace emulator
