// Finds which ids of a lookup differ.
#pragma once

#include <cstdint>

#include "table/id_map.h"
#include "training/training_table.h"

namespace emberline {

class DistinctIds {
 public:
  // found: gets each id once and how often it came. One at a time in a thread.
  explicit DistinctIds(FoundRows& found) : found_(found), places_(scratch()) {
    found.ids.clear();
    found.counts.clear();
  }

  // Returns the place of an id in found.ids.
  std::uint32_t add(std::int64_t id, std::uint32_t count = 1) {
    std::uint32_t& place = places_[id];
    if (place == 0) {
      found_.ids.push_back(id);
      found_.counts.push_back(0);
      place = static_cast<std::uint32_t>(found_.ids.size());
    }
    found_.counts[place - 1] += count;
    return place - 1;
  }

  // Of an id that was added.
  std::uint32_t place(std::int64_t id) const { return *places_.find(id) - 1; }

 private:
  static IdMap& scratch() {
    thread_local IdMap places;
    places.clear();
    return places;
  }

  FoundRows& found_;
  IdMap& places_;
};

}  // namespace emberline
