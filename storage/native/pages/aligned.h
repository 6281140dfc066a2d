// Memory that a disk can be read into directly.
#pragma once

#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#include "pages/format.h"

namespace emberline::pages {

class AlignedBytes {
 public:
  AlignedBytes() = default;
  explicit AlignedBytes(std::size_t bytes) : bytes_(bytes) {
    void* memory = nullptr;
    if (::posix_memalign(&memory, kSector, bytes) != 0) throw std::bad_alloc();
    data_ = static_cast<char*>(memory);
  }
  ~AlignedBytes() { std::free(data_); }
  AlignedBytes(AlignedBytes&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  AlignedBytes& operator=(AlignedBytes&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }

  char* data() const { return data_; }
  std::size_t size() const { return bytes_; }

 private:
  char* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace emberline::pages
