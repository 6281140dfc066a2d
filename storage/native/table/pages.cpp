#include "table/pages.h"

#include <sys/mman.h>

#include <cstdint>
#include <new>
#include <utility>

#include "table/numa.h"

namespace emberline {
namespace {

constexpr std::size_t kPage = 4096;

}  // namespace

Pages::Pages(std::size_t bytes) {
  const bool huge = bytes >= kHugePage;
  bytes = (bytes + kPage - 1) / kPage * kPage;  // the rest after the last huge page lies on small ones
  // A huge page must start at a multiple of its size: map one more, give back what sticks out.
  const std::size_t mapped = huge ? bytes + kHugePage : bytes;
  void* start = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (start == MAP_FAILED) throw std::bad_alloc();
  char* data = static_cast<char*>(start);
  if (huge) {
    const auto address = reinterpret_cast<std::uintptr_t>(start);
    const std::size_t before = (kHugePage - address % kHugePage) % kHugePage;
    if (before > 0) munmap(data, before);
    data += before;
    if (before < kHugePage) munmap(data + bytes, kHugePage - before);
    if (numa_nodes().size() > 1) spread_pages(data, bytes, numa_nodes());
    madvise(data, bytes, MADV_HUGEPAGE);  // advice: a kernel without huge pages serves small ones
  }
  data_ = data;
  bytes_ = bytes;
}

Pages::~Pages() {
  if (data_ != nullptr) munmap(data_, bytes_);
}

Pages::Pages(Pages&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

Pages& Pages::operator=(Pages&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

}  // namespace emberline
