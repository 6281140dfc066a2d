// Zeroed memory straight from the kernel, on 2 MB pages where that pays. Untouched pages cost nothing.
#pragma once

#include <cstddef>

namespace emberline {

class Pages {
 public:
  static constexpr std::size_t kHugePage = std::size_t{2} << 20;

  Pages() = default;
  explicit Pages(std::size_t bytes);  // throws std::bad_alloc
  ~Pages();
  Pages(Pages&& other) noexcept;
  Pages& operator=(Pages&& other) noexcept;

  char* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

 private:
  char* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace emberline
