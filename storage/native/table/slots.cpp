#include "table/slots.h"

#include "table/table.h"

namespace emberline {
namespace {

constexpr std::size_t kReclaimAt = 1024;  // old slots that are worth a look at the readers

}  // namespace

std::uint32_t RecycledSlots::take() {
  if (free_.empty() && old_count_ >= kReclaimAt) reclaim();
  if (free_.empty()) {
    const std::uint32_t slot = slab_.extend();
    if (slot == 0) throw CapacityExceeded("an overlay holds fewer than 2^32 rows");
    return slot;
  }
  const std::uint32_t slot = free_.back();
  free_.pop_back();
  return slot;
}

void RecycledSlots::retire(std::uint32_t slot) {
  if (old_.empty() || old_.back().first != grace_.group())
    old_.emplace_back(grace_.group(), std::vector<std::uint32_t>());
  old_.back().second.push_back(slot);
  ++old_count_;
}

void RecycledSlots::reclaim() {
  grace_.poll();
  while (!old_.empty() && grace_.passed(old_.front().first)) {
    const std::vector<std::uint32_t>& slots = old_.front().second;
    free_.insert(free_.end(), slots.begin(), slots.end());
    old_count_ -= slots.size();
    old_.pop_front();
  }
}

std::size_t RecycledSlots::bytes() const {
  return slab_.bytes() + (free_.capacity() + old_count_) * sizeof(std::uint32_t);
}

}  // namespace emberline
