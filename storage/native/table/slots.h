// Slots of a slab that go round: taken and filled, published, retired, and taken again when no reader can hold them
// (epoch.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "table/epoch.h"
#include "table/slab.h"

namespace emberline {

// Used under the writer's mutex, row() aside.
class RecycledSlots {
 public:
  // grace: that of the writer, which outlives this.
  RecycledSlots(std::size_t row_bytes, Grace& grace) : slab_(row_bytes, UINT32_MAX), grace_(grace) {}

  char* row(std::uint32_t slot) const { return slab_.row(slot); }
  // A slot of its own, never 0. Throws CapacityExceeded.
  std::uint32_t take();
  // Frees a slot that no reader has seen.
  void put_back(std::uint32_t slot) { free_.push_back(slot); }
  // Frees a slot that readers may hold; called after the store that took it away from new ones.
  void retire(std::uint32_t slot);
  void reclaim();

  std::uint32_t used() const { return slab_.used(); }
  std::size_t bytes() const;
  template <class Visit>
  void each_unused(Visit visit) const {  // visit(slot)
    for (const std::uint32_t slot : free_) visit(slot);
    for (const auto& group : old_) {
      for (const std::uint32_t slot : group.second) visit(slot);
    }
  }

 private:
  Slab slab_;
  Grace& grace_;
  std::vector<std::uint32_t> free_;
  std::deque<std::pair<std::uint64_t, std::vector<std::uint32_t>>> old_;  // grace group, its slots
  std::size_t old_count_ = 0;
};

}  // namespace emberline
