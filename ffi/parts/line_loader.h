// Tiles of an operand whose rows begin anywhere, loaded by threads as TMA loads those of others.
//
// A row of a tile, 64 elements of 16 bits, lies in two lines of 128 bytes. L1 serves a line a
// cycle, however little of it is asked for. So a warp reads whole lines, a word of two elements a
// lane, and no line twice. Each lane then stores its word where it belongs in the row of the tile,
// or where rows begin in the middle of a word, each of its two elements.
//
//     major   a row of the matrix   lines of it that a step reads
//     kK      is along k            the next one; the one before is still in registers
//     kMN     is along m or n       one for each 64 elements of the tile, and one more
//
// Cycles of L1 for a row of a tile: one for each line that is read, one to store it, and one more
// where it begins in the middle of a word. A step is 64 elements or rows further on, so in all
// steps of a tile a row begins at the same place of its line.
//
// Plain C++, so that a test can watch every access. `Memory` is what accesses:
//
//     uint32_t LoadWord(const uint32_t* from)
//     uint32_t LoadWordIf(bool condition, const uint32_t* from)   or zero
//     uint16_t LoadHalf(const uint16_t* from)
//     uint32_t Keep(uint32_t word)                 the word, in a register of its own
//     void StoreWord(uint32_t to, uint32_t word)   an address in the memory of tiles
//     void StoreHalf(uint32_t to, uint32_t half)   the lower half
#pragma once

#include <cstdint>

#include "abi/params.h"
#include "parts/host_device.h"

namespace jaxgemm {

inline constexpr int kLineBytes = 128;
inline constexpr int kLineWords = kLineBytes / 4;
inline constexpr int kLineHalves = kLineBytes / 2;
// Warps that share the rows of a tile: as many as have different places in the swizzle.
inline constexpr int kLoadingWarps = 8;
// Rows that tiles may reach beyond a matrix, and more than its elements with those of such rows.
inline constexpr int kLineRowsBeyond = 128;
inline constexpr int64_t kMaxLineElements = 1 << 30;

// A place where there is no word.
inline constexpr int kNoWord = -(1 << 30);

// A matrix of elements of 16 bits: words of two elements each, all inside it. An element before the
// first word, or after the last, is single.
struct LineMatrix {
  const uint32_t* words;
  int num_words;
  // Its first element, counted from the line that it is in.
  int first;
  // Where words would be that a single element is half of.
  int single_before;
  int single_after;

  static JAXGEMM_HOST_DEVICE LineMatrix Of(const void* data, int num_elements) {
    const uint64_t address = reinterpret_cast<uint64_t>(data);
    const int first = static_cast<int>(address % kLineBytes) / 2;
    const int end = first + num_elements;
    const int num_words = end / 2 - (first + 1) / 2;
    const uint64_t first_word = (address + 2) / 4 * 4;
    return {reinterpret_cast<const uint32_t*>(first_word), num_words, first,
            first % 2 != 0 ? -1 : kNoWord, end % 2 != 0 ? num_words : kNoWord};
  }
};

// One lane's part of the tiles of an operand, step by step. A warp has every eighth row, so its
// rows have the same place in the swizzle, and all of them begin in the middle of a word or none
// does.
template <Major kMajor, int kTileMn>
class LineLoader {
 public:
  static constexpr bool kIsKMajor = kMajor == Major::kK;

  // Turns to the first step of a tile, whose rows or columns of the operand begin at `mn`.
  template <class Memory>
  JAXGEMM_HOST_DEVICE void Begin(const Memory& memory, const LineMatrix& matrix, int row_stride,
                                 int mn, int warp, int lane) {
    matrix_ = matrix;
    row_stride_ = row_stride;
    lane_ = lane;
    // Warps w and w + 4 run in the same quarter of an SM. Where strides are odd, one of them has
    // rows that begin in the middle of a word, which take longer.
    first_row_ = warp ^ warp / 4;
    const uint32_t first =
        matrix.first + (kIsKMajor ? (mn + first_row_) * row_stride : first_row_ * row_stride + mn);
    splits_ = first % 2 != 0;
    SetPlaces(first);
    const uint32_t first_word = (matrix.first + 1) / 2;
    JAXGEMM_UNROLL
    for (int row = 0; row < kRows; ++row) {
      const uint32_t line = (first + row * kLoadingWarps * row_stride) / kLineHalves;
      at_[row] = line * kLineWords + lane - first_word;
    }
    if constexpr (kIsKMajor) {
      Read<0>(memory);
      JAXGEMM_UNROLL
      for (int& at : at_) {
        at += kLineWords;
      }
    }
  }

  // Turns to the step after one that has been stored.
  template <class Memory>
  JAXGEMM_HOST_DEVICE void Next(const Memory& memory) {
    JAXGEMM_UNROLL
    for (int row = 0; row < kRows; ++row) {
      at_[row] += kIsKMajor ? kLineWords : kLineHalves / 2 * row_stride_;
      if constexpr (kIsKMajor) {
        lines_[row][0] = memory.Keep(lines_[row][1]);
      }
    }
  }

  // Begins to read the step.
  template <class Memory>
  JAXGEMM_HOST_DEVICE void Read(const Memory& memory) {
    Read<kIsKMajor ? 1 : 0>(memory);
  }

  // Stores the step to the tile at `tile`, swizzled. Of a row along k, only the first `depth`
  // elements belong to the matrix: the others become zeros.
  template <class Memory>
  JAXGEMM_HOST_DEVICE void Store(const Memory& memory, uint32_t tile, int depth) const {
    const bool cuts = kIsKMajor && depth < kLineHalves;
    if (!splits_) {
      if (cuts) {
        StoreRows<false, true>(memory, tile, depth);
      } else {
        StoreRows<false, false>(memory, tile, depth);
      }
    } else {
      if (cuts) {
        StoreRows<true, true>(memory, tile, depth);
      } else {
        StoreRows<true, false>(memory, tile, depth);
      }
    }
  }

 private:
  static constexpr int kParts = kIsKMajor ? 1 : kTileMn / kLineHalves;
  static constexpr int kRows = (kIsKMajor ? kTileMn : kLineHalves) / kLoadingWarps;
  // Lines of a row in registers, and how many of them a step reads.
  static constexpr int kLines = kParts + 1;
  static constexpr int kReadLines = kIsKMajor ? 1 : kLines;
  // Rows of a warp after which rows begin at the same places of their lines again.
  static constexpr int kPlaces = 8;

  static_assert(kTileMn % kLineHalves == 0, "a row of Major::kMN is a number of whole lines long");
  static_assert(kLoadingWarps * kPlaces == kLineHalves, "64 rows are whole lines long");

  // Finds out where words of the rows belong, of which the first begins at element `first`.
  JAXGEMM_HOST_DEVICE void SetPlaces(uint32_t first) {
    upper_from_first_ = 0;
    lower_from_first_ = 0;
    JAXGEMM_UNROLL
    for (int row = 0; row < kPlaces; ++row) {
      const int start = (first + row * kLoadingWarps * row_stride_) % kLineHalves;
      // The lane whose word of the first line begins the row, or whose upper half does.
      const int first_lane = start / 2;
      const int upper = 4 * (lane_ - first_lane) & (kLineBytes - 1);
      const int lower = (upper - 2) & (kLineBytes - 1);
      const int swizzle = first_row_ * 16;
      upper_[row] = (upper ^ swizzle) + first_row_ * kLineBytes;
      lower_[row] = (lower ^ swizzle) + first_row_ * kLineBytes;
      upper_from_first_ |= (lane_ >= first_lane ? 1 : 0) << row;
      lower_from_first_ |= (lane_ > first_lane ? 1 : 0) << row;
    }
  }

  // Reads the lines that follow one another from line kFirst on; of rows along k, one line.
  template <int kFirst, class Memory>
  JAXGEMM_HOST_DEVICE void Read(const Memory& memory) {
    // The same for all lanes.
    const int lowest = at_[0] - lane_;
    const int end = at_[kRows - 1] - lane_ + kReadLines * kLineWords;
    if (lowest >= 0 && end <= matrix_.num_words) {
      JAXGEMM_UNROLL
      for (int i = 0; i < kRows * kReadLines; ++i) {
        LineAt<kFirst>(i) = memory.LoadWord(matrix_.words + WordAt(i));
      }
      return;
    }
    bool has_single = false;
    JAXGEMM_UNROLL
    for (int i = 0; i < kRows * kReadLines; ++i) {
      const int word = WordAt(i);
      const bool is_inside = word >= 0 && word < matrix_.num_words;
      LineAt<kFirst>(i) = memory.LoadWordIf(is_inside, matrix_.words + word);
      has_single |= LineHasSingle(word - lane_);
    }
    // The same for all lanes: whether one of them has to wait for what it has just asked for.
    if (has_single) {
      JAXGEMM_UNROLL
      for (int i = 0; i < kRows * kReadLines; ++i) {
        ReadSingle(memory, WordAt(i), &LineAt<kFirst>(i));
      }
    }
  }

  // Whether a single element is in the line that begins with a word.
  JAXGEMM_HOST_DEVICE bool LineHasSingle(int word) const {
    const uint32_t before = matrix_.single_before - word;
    const uint32_t after = matrix_.single_after - word;
    return (before < kLineWords) | (after < kLineWords);
  }

  // The words and lines that a lane reads, one after another.
  JAXGEMM_HOST_DEVICE int WordAt(int i) const {
    return at_[i / kReadLines] + i % kReadLines * kLineWords;
  }
  template <int kFirst>
  JAXGEMM_HOST_DEVICE uint32_t& LineAt(int i) {
    return lines_[i / kReadLines][kFirst + i % kReadLines];
  }

  // Reads a single element, if it is all of a word that belongs to the matrix.
  template <class Memory>
  JAXGEMM_HOST_DEVICE void ReadSingle(const Memory& memory, int word, uint32_t* value) const {
    const uint16_t* halves = reinterpret_cast<const uint16_t*>(matrix_.words);
    if (word == matrix_.single_before) {
      *value = static_cast<uint32_t>(memory.LoadHalf(halves - 1)) << 16;
    }
    if (word == matrix_.single_after) {
      *value = memory.LoadHalf(halves + 2 * static_cast<int64_t>(word));
    }
  }

  // kSplits: whether rows begin in the middle of a word. kCuts: whether depth is less than a line.
  template <bool kSplits, bool kCuts, class Memory>
  JAXGEMM_HOST_DEVICE void StoreRows(const Memory& memory, uint32_t tile, int depth) const {
    JAXGEMM_UNROLL
    for (int row = 0; row < kRows; ++row) {
      const int upper = upper_[row % kPlaces];
      const int lower = lower_[row % kPlaces];
      const bool upper_from_first = upper_from_first_ >> row % kPlaces & 1;
      const bool lower_from_first = lower_from_first_ >> row % kPlaces & 1;
      // Elements of the row that belong to the matrix, from this lane's on.
      const int left = depth - ElementOf(upper);
      JAXGEMM_UNROLL
      for (int part = 0; part < kParts; ++part) {
        const uint32_t to = tile + (part * kLineHalves + row * kLoadingWarps) * kLineBytes;
        const uint32_t* lines = lines_[row] + part;
        uint32_t word = upper_from_first ? lines[0] : lines[1];
        if constexpr (kSplits) {
          uint32_t high = word >> 16;
          uint32_t low = lower_from_first ? lines[0] : lines[1];
          if constexpr (kCuts) {
            high = left > 0 ? high : 0;
            low = ElementOf(lower) < depth ? low : 0;
          }
          memory.StoreHalf(to + upper, high);
          memory.StoreHalf(to + lower, low);
        } else {
          if constexpr (kCuts) {
            word = left >= 2 ? word : left == 1 ? word & 0xFFFF : 0;
          }
          memory.StoreWord(to + upper, word);
        }
      }
    }
  }

  // Which element of its row is at a place in a tile.
  JAXGEMM_HOST_DEVICE int ElementOf(int place) const {
    return (place % kLineBytes ^ first_row_ * 16) / 2;
  }

  LineMatrix matrix_;
  int row_stride_;
  int lane_;
  int first_row_;
  bool splits_;
  // Where this lane's words belong in a tile, or their upper and lower halves, and of which line of
  // the two in which a row lies they are: bit by bit, for each place in a line.
  int upper_[kPlaces];
  int lower_[kPlaces];
  uint32_t upper_from_first_;
  uint32_t lower_from_first_;
  // Of each row, this lane's word of the line that is read next.
  int at_[kRows];
  uint32_t lines_[kRows][kLines];
};

}  // namespace jaxgemm
