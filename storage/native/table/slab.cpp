#include "table/slab.h"

#include <algorithm>

namespace emberline {
namespace {

// Large enough that the directory of a table of many GiB stays in the first-level cache; untouched pages cost nothing.
constexpr std::size_t kChunkBytes = std::size_t{64} << 20;
constexpr int kMinShift = 6;

}  // namespace

Slab::Slab(std::size_t row_bytes, std::uint64_t most_slots)
    : view_{nullptr, kMinShift, 0, row_bytes}, most_slots_(std::min<std::uint64_t>(most_slots, UINT32_MAX)) {
  int& shift = view_.shift;
  while ((row_bytes << (shift + 1)) <= kChunkBytes && (std::uint64_t{1} << shift) <= most_slots_) ++shift;
  view_.mask = (std::uint32_t{1} << shift) - 1;
  scores_at_ = row_bytes << shift;
  directory_ = Pages(((most_slots_ >> shift) + 1) * sizeof(Chunk));
  view_.chunks = reinterpret_cast<Chunk*>(directory_.data());
}

std::uint32_t Slab::extend() {
  if (used_ >= most_slots_) return 0;
  const std::uint32_t slot = used_ + 1;
  if ((slot >> view_.shift) >= chunks_.size()) {
    chunks_.emplace_back(scores_at_ + view_.mask + 1);
    reinterpret_cast<Chunk*>(directory_.data())[slot >> view_.shift].store(chunks_.back().data(),
                                                                           std::memory_order_relaxed);
  }
  used_ = slot;
  return slot;
}

}  // namespace emberline
