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
//     uint32_t LoadWordIf(uint32_t condition, const uint32_t* from, uint32_t otherwise)
//     uint16_t LoadHalf(const uint16_t* from)
//     uint32_t Keep(uint32_t word)                 the word, in another register, from here on
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
// Elements of a matrix. Tiles reach up to 127 rows beyond it, and even then an element is an int.
inline constexpr int kMaxLineElements = 1 << 23;

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

  // Begins to read the first step of a tile, whose rows or columns of the operand begin at `mn`.
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
    for (int row = 0; row < kPlaces; ++row) {
      const uint32_t line = (first + row * kLoadingWarps * row_stride) / kLineHalves;
      at_[row] = line * kLineWords + lane - first_word;
    }
    Read(memory, [&](int row, int line) -> uint32_t& { return lines_[row][line]; });
    if constexpr (kIsKMajor) {
      Advance(kLineWords);
      Read(memory, [&](int row, int line) -> uint32_t& { return lines_[row][line + kKept]; });
    }
  }

  // Begins to read the step after one that has been stored, in its registers.
  template <class Memory>
  JAXGEMM_HOST_DEVICE void ReadOver(const Memory& memory) {
    Advance(kIsKMajor ? kLineWords : StepWords());
    if constexpr (kIsKMajor) {
      JAXGEMM_UNROLL
      for (auto& line : lines_) {
        line[0] = memory.Keep(line[1]);
      }
    }
    Read(memory, [&](int row, int line) -> uint32_t& { return lines_[row][line + kKept]; });
  }

  // Begins to read the step after one that is still to be stored. Once that is done, TakeAhead
  // waits.
  template <class Memory>
  JAXGEMM_HOST_DEVICE void ReadAhead(const Memory& memory) {
    Advance(kIsKMajor ? kLineWords : StepWords());
    Read(memory, [&](int row, int line) -> uint32_t& { return ahead_[row][line]; });
  }
  JAXGEMM_HOST_DEVICE void TakeAhead() {
    JAXGEMM_UNROLL
    for (int row = 0; row < kRows; ++row) {
      if constexpr (kIsKMajor) {
        lines_[row][0] = lines_[row][1];
      }
      JAXGEMM_UNROLL
      for (int line = 0; line < kReadLines; ++line) {
        lines_[row][line + kKept] = ahead_[row][line];
      }
    }
  }

  // Stores the step to the tile at `tile`, swizzled. With kCuts only the first `depth` elements of
  // a row along k belong to the matrix: the others become zeros.
  template <bool kCuts, class Memory>
  JAXGEMM_HOST_DEVICE void Store(const Memory& memory, uint32_t tile, int depth) const {
    if (splits_) {
      StoreRows<true, kCuts && kIsKMajor>(memory, tile, depth);
    } else {
      StoreRows<false, kCuts && kIsKMajor>(memory, tile, depth);
    }
  }

 private:
  static constexpr int kParts = kIsKMajor ? 1 : kTileMn / kLineHalves;
  static constexpr int kRows = (kIsKMajor ? kTileMn : kLineHalves) / kLoadingWarps;
  // Lines of a row that a step needs, how many of them the step before had, and what it reads.
  static constexpr int kLines = kParts + 1;
  static constexpr int kKept = kIsKMajor ? 1 : 0;
  static constexpr int kReadLines = kLines - kKept;
  // Rows of a warp after which rows begin at the same places of their lines again.
  static constexpr int kPlaces = 8;

  static_assert(kTileMn % kLineHalves == 0, "a row of Major::kMN is a number of whole lines long");
  static_assert(kLoadingWarps * kPlaces == kLineHalves, "64 rows are whole lines long");

  // Finds out where words of the rows belong, of which the first begins at element `first`.
  JAXGEMM_HOST_DEVICE void SetPlaces(uint32_t first) {
    upper_of_first_ = 0;
    lower_of_first_ = 0;
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
      upper_of_first_ |= (lane_ >= first_lane ? 1 : 0) << row;
      lower_of_first_ |= (lane_ > first_lane ? 1 : 0) << row;
    }
  }

  JAXGEMM_HOST_DEVICE void Advance(int num_words) {
    JAXGEMM_UNROLL
    for (int& at : at_) {
      at += num_words;
    }
  }

  // Reads kReadLines lines of each row to where `to(row, line)` is.
  template <class Memory, class To>
  JAXGEMM_HOST_DEVICE void Read(const Memory& memory, const To& to) {
    // The same for all lanes.
    const int lowest = at_[0] - lane_;
    const int end = WordAt(kRows * kReadLines - 1) - lane_ + kLineWords;
    if (lowest >= 0 && end <= matrix_.num_words) {
      const uint32_t upper_of_first = memory.Keep(upper_of_first_);
      const uint32_t lower_of_second = ~memory.Keep(lower_of_first_);
      JAXGEMM_UNROLL
      for (int i = 0; i < kRows * kReadLines; ++i) {
        const int row = i / kReadLines;
        const int line = i % kReadLines;
        const uint32_t* from = matrix_.words + RowAt(row) + line * kLineWords;
        uint32_t& word = to(row, line);
        // What of the first and the last line is not of the row would cost bandwidth of L2.
        if (!kIsKMajor && line == 0) {
          word = memory.LoadWordIf(Bit(upper_of_first, row), from, word);
        } else if (!kIsKMajor && line == kReadLines - 1) {
          word = memory.LoadWordIf(Bit(lower_of_second, row), from, word);
        } else {
          word = memory.LoadWord(from);
        }
      }
      return;
    }
    bool has_single = false;
    JAXGEMM_UNROLL
    for (int i = 0; i < kRows * kReadLines; ++i) {
      const int word = WordAt(i);
      const bool is_inside = word >= 0 && word < matrix_.num_words;
      to(i / kReadLines, i % kReadLines) = memory.LoadWordIf(is_inside, matrix_.words + word, 0);
      has_single |= LineHasSingle(word - lane_);
    }
    // The same for all lanes: whether one of them has to wait for what it has just asked for.
    if (has_single) {
      JAXGEMM_UNROLL
      for (int i = 0; i < kRows * kReadLines; ++i) {
        ReadSingle(memory, WordAt(i), &to(i / kReadLines, i % kReadLines));
      }
    }
  }

  // Whether a single element is in the line that begins with a word.
  JAXGEMM_HOST_DEVICE bool LineHasSingle(int word) const {
    const uint32_t before = matrix_.single_before - word;
    const uint32_t after = matrix_.single_after - word;
    return (before < kLineWords) | (after < kLineWords);
  }

  // From a row to the one 64 rows further on.
  JAXGEMM_HOST_DEVICE int StepWords() const { return kLineHalves / 2 * row_stride_; }

  // This lane's word of the first line of a row that is read next.
  JAXGEMM_HOST_DEVICE int RowAt(int row) const {
    return at_[row % kPlaces] + row / kPlaces * StepWords();
  }
  // The words and lines that a lane reads, one after another.
  JAXGEMM_HOST_DEVICE int WordAt(int i) const {
    return RowAt(i / kReadLines) + i % kReadLines * kLineWords;
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

  // kSplits: whether rows begin in the middle of a word.
  template <bool kSplits, bool kCuts, class Memory>
  JAXGEMM_HOST_DEVICE void StoreRows(const Memory& memory, uint32_t tile, int depth) const {
    const uint32_t upper_of_first = memory.Keep(upper_of_first_);
    const uint32_t lower_of_first = memory.Keep(lower_of_first_);
    JAXGEMM_UNROLL
    for (int row = 0; row < kRows; ++row) {
      const int upper = upper_[row % kPlaces];
      const int lower = lower_[row % kPlaces];
      JAXGEMM_UNROLL
      for (int part = 0; part < kParts; ++part) {
        const uint32_t to = tile + (part * kLineHalves + row * kLoadingWarps) * kLineBytes;
        const uint32_t* lines = lines_[row] + part;
        uint32_t word = Bit(upper_of_first, row) ? lines[0] : lines[1];
        if constexpr (kSplits) {
          uint32_t high = word >> 16;
          uint32_t low = Bit(lower_of_first, row) ? lines[0] : lines[1];
          if constexpr (kCuts) {
            high = ElementOf(memory, upper) < depth ? high : 0;
            low = ElementOf(memory, lower) < depth ? low : 0;
          }
          memory.StoreHalf(to + upper, high);
          memory.StoreHalf(to + lower, low);
        } else {
          if constexpr (kCuts) {
            const int left = depth - ElementOf(memory, upper);
            word = left >= 2 ? word : left == 1 ? word & 0xFFFF : 0;
          }
          memory.StoreWord(to + upper, word);
        }
      }
    }
  }

  // Not 0 if the bit of a row is set.
  static JAXGEMM_HOST_DEVICE uint32_t Bit(uint32_t bits, int row) {
    return bits & 1u << row % kPlaces;
  }

  // Which element of its row is at a place in a tile. For the last step only: known from the first
  // on, elements would take registers.
  template <class Memory>
  JAXGEMM_HOST_DEVICE int ElementOf(const Memory& memory, int place) const {
    return (static_cast<int>(memory.Keep(place)) % kLineBytes ^ first_row_ * 16) / 2;
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
  uint32_t upper_of_first_;
  uint32_t lower_of_first_;
  // Of the first 64 rows, this lane's word of the line that is read next.
  int at_[kPlaces];
  uint32_t lines_[kRows][kLines] = {};
  uint32_t ahead_[kRows][kReadLines] = {};
};

}  // namespace jaxgemm
