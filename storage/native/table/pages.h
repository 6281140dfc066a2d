// Large zeroed arrays that grow in place: address space is reserved once, pages are committed as the array grows, on 2 MB pages
// where the kernel has them. The base address never changes, so readers need no indirection and no lock.
#pragma once

#include <cstddef>

namespace emberline {

class Pages {
 public:
  // Reserves `bytes` of address space and commits none of it. Throws std::bad_alloc when the address space is not to be had.
  explicit Pages(size_t bytes);
  ~Pages();
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;

  // Makes the first `bytes` usable. Throws std::bad_alloc.
  void commit(size_t bytes);

  std::byte* data() const { return base_; }
  size_t committed_bytes() const { return committed_; }
  size_t reserved_bytes() const { return reserved_; }

 private:
  std::byte* base_ = nullptr;
  size_t reserved_ = 0;
  size_t committed_ = 0;
};

}  // namespace emberline
