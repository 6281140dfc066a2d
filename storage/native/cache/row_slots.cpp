#include "cache/row_slots.h"

#include <sys/mman.h>

#include <algorithm>
#include <new>

namespace emberline {
namespace {

constexpr std::size_t kChunkBytes = std::size_t{64} << 20;
constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr std::size_t kReclaimAt = 256;  // retired slots that are worth a look at the readers

}  // namespace

RowSlots::RowSlots(std::size_t row_bytes, std::uint32_t most, Grace& grace)
    : row_bytes_(row_bytes), shift_(6), most_(most), grace_(grace) {
  while ((row_bytes_ << (shift_ + 1)) <= kChunkBytes) ++shift_;
  mask_ = (std::uint32_t{1} << shift_) - 1;
  // The directory has room for all slots that there can ever be: untouched pages of it cost nothing.
  directory_ = Pages(((std::uint64_t{UINT32_MAX} >> shift_) + 1) * sizeof(std::atomic<char*>));
}

std::uint32_t RowSlots::take() {
  if (free_.empty() && old_.size() >= kReclaimAt) reclaim();
  if (free_.empty() && used_ < most_) {
    const std::uint32_t slot = used_ + 1;
    if ((slot >> shift_) >= chunks_.size()) {
      chunks_.emplace_back((std::size_t{mask_} + 1) * row_bytes_);
      reinterpret_cast<std::atomic<char*>*>(directory_.data())[slot >> shift_].store(chunks_.back().data(),
                                                                                     std::memory_order_relaxed);
    }
    used_ = slot;
    return slot;
  }
  while (free_.empty()) {
    if (old_.empty()) throw std::bad_alloc();  // more rows than the cache's own bound: our bug
    grace_.wait(old_.front().first);
    reclaim();
  }
  const std::uint32_t slot = free_.back();
  free_.pop_back();
  return slot;
}

void RowSlots::put_back(std::uint32_t slot) {
  if (slot <= most_) {
    free_.push_back(slot);
  } else {
    --above_;
  }
}

void RowSlots::retire(std::uint32_t slot) { old_.emplace_back(grace_.group(), slot); }

void RowSlots::reclaim() {
  grace_.poll();
  while (!old_.empty() && grace_.passed(old_.front().first)) {
    put_back(old_.front().second);
    old_.pop_front();
  }
}

void RowSlots::drain() {
  if (old_.empty()) return;
  grace_.wait(old_.back().first);
  reclaim();
}

void RowSlots::set_most(std::uint32_t most) {
  most_ = most;
  above_ = used_ > most ? used_ - most : 0;
  const std::size_t free_above = std::erase_if(free_, [&](std::uint32_t slot) { return slot > most; });
  above_ -= static_cast<std::uint32_t>(free_above);
  free_.shrink_to_fit();
}

void RowSlots::cut() {
  used_ = std::min(used_, most_);
  for (std::size_t c = 0; c < chunks_.size(); ++c) {
    const std::uint64_t first = std::uint64_t{c} << shift_;
    if (first + mask_ <= used_) continue;
    const std::size_t kept = first > used_ ? 0 : (used_ - first + 1) * row_bytes_;
    const std::size_t from = (kept + kHugePage - 1) / kHugePage * kHugePage;
    // The addresses stay ours and read as zeros; the memory goes. A slot that is taken again gets fresh pages.
    if (from < chunks_[c].bytes()) madvise(chunks_[c].data() + from, chunks_[c].bytes() - from, MADV_DONTNEED);
  }
}

std::size_t RowSlots::bytes() const {
  return (std::size_t{used_} + 1) * row_bytes_ + free_.capacity() * sizeof(std::uint32_t) +
         old_.size() * sizeof(old_[0]);
}

}  // namespace emberline
