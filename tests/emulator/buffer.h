// Memory for an operand, which shows whatever is accessed around it.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "machine.h"

// Memory of which all around it is NaN, and cannot be accessed beyond that.
class Buffer {
 public:
  Buffer() = default;
  Buffer(const Buffer&) = delete;
  ~Buffer() {
    if (pages_ != nullptr) {
      munmap(pages_, num_bytes_);
    }
  }

  // `start` is where it begins after a page, or the alignment of where it begins before one.
  void Make(size_t bytes, bool at_end, size_t start) {
    size_ = bytes;
    num_bytes_ = (bytes + start + kPage - 1) / kPage * kPage + 2 * kPage;
    pages_ = static_cast<char*>(
        mmap(nullptr, num_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    std::fill_n(reinterpret_cast<uint16_t*>(pages_), num_bytes_ / 2, emulator::kNan);
    data_ = at_end ? pages_ + num_bytes_ - kPage - (bytes + start - 1) / start * start
                   : pages_ + kPage + start;
  }

  // From here on, what is around it must not change, nor what is in it if it is read only.
  void Protect() {
    mprotect(pages_, kPage, PROT_NONE);
    mprotect(pages_ + num_bytes_ - kPage, kPage, PROT_NONE);
    before_.assign(pages_ + kPage, pages_ + num_bytes_ - kPage);
  }
  bool HasChanged(bool read_only) const {
    const char* after = pages_ + kPage;
    const size_t begin = read_only ? before_.size() : data_ - after;
    const size_t end = read_only ? before_.size() : begin + size_;
    return std::memcmp(after, before_.data(), begin) != 0 ||
           std::memcmp(after + end, before_.data() + end, before_.size() - end) != 0;
  }

  char* data() const { return data_; }

 private:
  static constexpr size_t kPage = 4096;
  char* pages_ = nullptr;
  size_t num_bytes_ = 0;
  size_t size_ = 0;
  char* data_ = nullptr;
  std::vector<char> before_;
};
