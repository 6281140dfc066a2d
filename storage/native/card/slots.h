// Which slots of a card's slab are free, who holds the others, and when one that was given up may be used again.
//
// A slot that a published word named is retired when its last holder lets it go. It then waits until the set of changes
// that tells of it is complete, for lookups may hold it so long. One link of four bytes a slot makes the lists; a slot
// that is in use has there the number of its row in staging, until its set is taken.
#pragma once

#include <cstdint>

#include "table/pages.h"

namespace emberline {

class CardSlots {
 public:
  // Slots from 1 to `most`.
  explicit CardSlots(std::uint32_t most)
      : most_(most),
        links_((std::size_t{most} + 1) * sizeof(std::uint32_t)),
        holders_(std::size_t{most} + 1) {}

  std::uint32_t most() const { return most_; }
  std::uint32_t used() const { return used_; }  // no slot above was ever taken
  std::uint32_t held() const { return held_; }
  std::uint32_t free() const { return free_.count + (most_ - used_); }
  std::size_t bytes() const { return links_.bytes() + holders_.bytes(); }

  // One holder. There is a free one.
  std::uint32_t take() {
    std::uint32_t slot = free_.first;
    if (slot != 0) {
      free_.first = link(slot);
      if (--free_.count == 0) free_.last = 0;
    } else {
      slot = ++used_;
    }
    holders(slot) = 1;
    ++held_;
    return slot;
  }
  void share(std::uint32_t slot) { ++holders(slot); }
  // Whether nobody holds it now; then it is to be put back or retired.
  bool drop(std::uint32_t slot) {
    if (--holders(slot) != 0) return false;
    --held_;
    return true;
  }
  void put_back(std::uint32_t slot) { add(free_, slot); }  // no lookup has seen it
  void retire(std::uint32_t slot) { add(retired_, slot); }
  // The set is taken; it is complete.
  void take_set() {
    taken_ = retired_;
    retired_ = {};
  }
  void complete_set() {
    if (taken_.count == 0) return;
    link(taken_.last) = free_.first;
    if (free_.count == 0) free_.last = taken_.last;
    free_.first = taken_.first;
    free_.count += taken_.count;
    taken_ = {};
  }

  std::uint32_t& staged(std::uint32_t slot) { return link(slot); }
  std::uint32_t staged_number(std::uint32_t slot) const { return link(slot); }
  std::uint32_t holders_of(std::uint32_t slot) const {
    return reinterpret_cast<const std::uint8_t*>(holders_.data())[slot];
  }
  template <class Visit>
  void each_unheld(Visit visit) const {  // visit(slot)
    for (const List* list : {&free_, &retired_, &taken_}) {
      std::uint32_t slot = list->first;
      for (std::uint32_t i = 0; i < list->count; ++i, slot = link(slot)) visit(slot);
    }
  }

 private:
  struct List {
    std::uint32_t first = 0, last = 0, count = 0;
  };

  std::uint32_t& link(std::uint32_t slot) const { return reinterpret_cast<std::uint32_t*>(links_.data())[slot]; }
  std::uint8_t& holders(std::uint32_t slot) { return reinterpret_cast<std::uint8_t*>(holders_.data())[slot]; }
  void add(List& list, std::uint32_t slot) {
    link(slot) = list.first;
    list.first = slot;
    if (list.count++ == 0) list.last = slot;
  }

  std::uint32_t most_, used_ = 0, held_ = 0;
  List free_, retired_, taken_;
  Pages links_, holders_;
};

}  // namespace emberline
