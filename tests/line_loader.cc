// Runs parts/line_loader.h on the host, lane by lane, and watches what it accesses.
#include "parts/line_loader.h"

#include <algorithm>
#include <cstring>
#include <vector>

using namespace jaxgemm;

namespace {

constexpr int kLanes = 32;

struct WatchedMemory {
  const char* begin;
  const char* end;
  uint64_t lane;
  char* tiles;
  // Accesses outside of the matrix, and accesses of lanes that their warp needs another cycle for.
  int* outside;
  int* slow;
  // Of each store of the warp, the banks that lanes before this one wrote to; of this lane, how
  // many.
  std::vector<uint32_t>* banks;
  size_t* num_stores;

  void TakeBank(uint32_t to) const {
    banks->resize(std::max(banks->size(), *num_stores + 1));
    uint32_t& taken = banks->at((*num_stores)++);
    const uint32_t bank = 1u << to / 4 % kLanes;
    *slow += (taken & bank) != 0;
    taken |= bank;
  }
  bool Reads(const void* from, int num_bytes) const {
    const char* at = static_cast<const char*>(from);
    const bool inside = at >= begin && at + num_bytes <= end;
    *outside += !inside;
    return inside;
  }
  uint32_t LoadWord(const uint32_t* from) const {
    // Lane i reads word i of a line, which is the same for all.
    *slow += reinterpret_cast<uint64_t>(from) / 4 % kLanes != lane;
    return Reads(from, 4) ? *from : 0;
  }
  uint32_t LoadWordIf(uint32_t condition, const uint32_t* from, uint32_t otherwise) const {
    return condition != 0 ? LoadWord(from) : otherwise;
  }
  uint16_t LoadHalf(const uint16_t* from) const { return Reads(from, 2) ? *from : 0; }
  uint32_t Keep(uint32_t word) const { return word; }
  void StoreWord(uint32_t to, uint32_t word) const {
    TakeBank(to);
    std::memcpy(tiles + to, &word, 4);
  }
  void StoreHalf(uint32_t to, uint32_t half) const {
    TakeBank(to);
    std::memcpy(tiles + to, &half, 2);
  }
};

template <Major kMajor, int kTileMn>
void LoadTiles(const void* data, int rows, int columns, int mn, char* tiles, int* counts) {
  const int depth = kMajor == Major::kK ? columns : rows;
  constexpr int kTileBytes = kTileMn * kLineBytes;
  const int num_steps = (depth + kLineHalves - 1) / kLineHalves;
  const char* begin = static_cast<const char*>(data);
  const int num_elements = rows * columns;
  const LineMatrix matrix = LineMatrix::Of(data, num_elements);
  for (int warp = 0; warp < kLoadingWarps; ++warp) {
    std::vector<uint32_t> banks;
    for (int lane = 0; lane < kLanes; ++lane) {
      size_t num_stores = 0;
      const WatchedMemory memory = {begin,
                                    begin + 2 * num_elements,
                                    static_cast<uint64_t>(lane),
                                    tiles,
                                    &counts[0],
                                    &counts[1],
                                    &banks,
                                    &num_stores};
      LineLoader<kMajor, kTileMn> loader;
      loader.Begin(memory, matrix, columns, mn, warp, lane);
      for (int step = 0; step < num_steps - 1; ++step) {
        // Both ways of going on to the next step, in turns.
        if (step % 2 == 0) {
          loader.ReadAhead(memory);
        }
        loader.template Store<false>(memory, step * kTileBytes, kLineHalves);
        if (step % 2 == 0) {
          loader.TakeAhead();
        } else {
          loader.ReadOver(memory);
        }
      }
      const int last = num_steps - 1;
      loader.template Store<true>(memory, last * kTileBytes, depth - last * kLineHalves);
    }
  }
}

}  // namespace

// Fills the tiles of all steps. counts: accesses outside of the matrix, and slow ones.
extern "C" void LoadTiles(int is_k_major, int tile_mn, const void* data, int rows, int columns,
                          int mn, char* tiles, int* counts) {
  const auto load = is_k_major
                        ? (tile_mn == 64 ? LoadTiles<Major::kK, 64> : LoadTiles<Major::kK, 128>)
                    : tile_mn == 64 ? LoadTiles<Major::kMN, 64>
                                    : LoadTiles<Major::kMN, 128>;
  load(data, rows, columns, mn, tiles, counts);
}
