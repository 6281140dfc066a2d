#include "table/pages.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <new>

namespace emberline {

namespace {
constexpr size_t kHugePage = size_t{2} << 20;

size_t round_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }
}  // namespace

Pages::Pages(size_t bytes) : reserved_(round_up(std::max<size_t>(bytes, 1), 4096)) {
  // Arrays of several huge pages start on one, else the kernel cannot use them.
  const size_t slack = reserved_ >= kHugePage ? kHugePage : 0;
  void* mapped = mmap(nullptr, reserved_ + slack, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) throw std::bad_alloc();
  const uintptr_t start = reinterpret_cast<uintptr_t>(mapped);
  const uintptr_t aligned = slack ? round_up(start, kHugePage) : start;
  if (aligned > start) munmap(mapped, aligned - start);
  const size_t tail = slack - (aligned - start);
  if (tail) munmap(reinterpret_cast<void*>(aligned + reserved_), tail);
  base_ = reinterpret_cast<std::byte*>(aligned);
}

Pages::~Pages() { munmap(base_, reserved_); }

void Pages::commit(size_t bytes) {
  if (bytes <= committed_) return;
  if (bytes > reserved_) throw std::bad_alloc();
  const size_t unit = bytes >= kHugePage ? kHugePage : 4096;
  const size_t target = std::min(round_up(bytes, unit), reserved_);
  if (mprotect(base_ + committed_, target - committed_, PROT_READ | PROT_WRITE) != 0) throw std::bad_alloc();
  if (target >= kHugePage) madvise(base_, target, MADV_HUGEPAGE);  // a wish: plain pages serve as well, only slower
  committed_ = target;
}

}  // namespace emberline
