// Slots of a GPU's slab: which are free, how many holders the others have, and when one that was given up may be
// reused.
//
// A slot that a published word named is retired when its last holder drops it. It then waits until the set with that
// change is complete, for lookups may hold it until then. Slots without a holder stand in one ring, four bytes each:
// first those that are free, then those of the set under way, then those of the set that is being collected. So which
// slots come next is known ahead, and a set's become free by a change of two counts.
#pragma once

#include <cstdint>

#include "table/pages.h"

namespace emberline {

class GpuSlots {
 public:
  // Slots from 1 to `most`.
  explicit GpuSlots(std::uint32_t most)
      : most_(most), ring_(std::size_t{most} * sizeof(std::uint32_t)), holders_(std::size_t{most} + 1) {}

  std::uint32_t most() const { return most_; }
  std::uint32_t used() const { return used_; }  // no slot above was ever taken
  std::uint32_t held() const { return held_; }
  std::uint32_t free() const { return free_ + (most_ - used_); }
  std::size_t bytes() const { return ring_.bytes() + holders_.bytes(); }

  // Takes a free slot, with one holder. There must be a free one.
  std::uint32_t take() {
    const std::uint32_t slot = upcoming(0);
    hold(slot);
    pass(1);
    return slot;
  }
  // Returns the free slot that is `number`th to be taken. Thread-safe.
  std::uint32_t upcoming(std::uint32_t number) const {
    return number < free_ ? ring(number) : used_ + 1 + (number - free_);
  }
  // Takes the next `count` slots, with one holder each: `hold` sets the holder of one of them and is thread-safe.
  void hold(std::uint32_t slot) { holders(slot) = 1; }
  void pass(std::uint32_t count) {
    const std::uint32_t from_ring = count < free_ ? count : free_;
    first_ = place(from_ring);
    free_ -= from_ring;
    used_ += count - from_ring;
    held_ += count;
  }
  void prefetch(std::uint32_t slot) const {
    if (slot <= most_) __builtin_prefetch(holders_.data() + slot, 1, 3);
  }
  void share(std::uint32_t slot) { ++holders(slot); }
  // Drops one holder. Returns whether it was the last; then the slot is to be put back or retired.
  bool drop(std::uint32_t slot) {
    if (--holders(slot) != 0) return false;
    --held_;
    return true;
  }
  void put_back(std::uint32_t slot) {  // no lookup has seen it
    first_ = first_ == 0 ? most_ - 1 : first_ - 1;
    ++free_;
    ring(0) = slot;
  }
  void retire(std::uint32_t slot) { ring(free_ + taken_ + retired_++) = slot; }
  // The set is taken; it is complete.
  void take_set() {
    taken_ = retired_;
    retired_ = 0;
  }
  void complete_set() {
    free_ += taken_;
    taken_ = 0;
  }

  std::uint32_t holders_of(std::uint32_t slot) const {
    return reinterpret_cast<const std::uint8_t*>(holders_.data())[slot];
  }
  template <class Visit>
  void each_unheld(Visit visit) const {  // visit(slot)
    for (std::uint32_t number = 0; number < free_ + taken_ + retired_; ++number) visit(ring(number));
  }

 private:
  std::uint32_t place(std::uint32_t number) const {
    const std::uint64_t at = std::uint64_t{first_} + number;
    return static_cast<std::uint32_t>(at < most_ ? at : at - most_);
  }
  std::uint32_t& ring(std::uint32_t number) const {
    return reinterpret_cast<std::uint32_t*>(ring_.data())[place(number)];
  }
  std::uint8_t& holders(std::uint32_t slot) { return reinterpret_cast<std::uint8_t*>(holders_.data())[slot]; }

  std::uint32_t most_, used_ = 0, held_ = 0;
  std::uint32_t first_ = 0, free_ = 0, taken_ = 0, retired_ = 0;
  Pages ring_, holders_;
};

}  // namespace emberline
