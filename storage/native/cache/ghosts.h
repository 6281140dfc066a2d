// Use counts of ids that are not in the cache: a set-associative table of 16-bit cells, {fingerprint 9, stretch 2,
// count 5}.
//
// A count-min sketch would not do: the rows that matter lie near the boundary of the cache, and telling them apart
// takes counts of five to ten uses each over a long time, beside many ids that come once. In the two bytes a row that
// there are, shared counters drown in those; a cell belongs to one id, and an id seen once takes a cell from the least
// used of its set only by chance (random admission: R. Ben Basat et al., 2017). A stranger is taken for an id of its
// set in three cases of a hundred. The stretch of lookups in which an id was last asked for is 1, 2 or 3 in turn;
// `settle` takes out those that are over, once in each stretch, so none is taken for a later one. Used under the
// writer's mutex.
#pragma once

#include <algorithm>
#include <cstdint>

#include "bucket.cuh"
#include "table/pages.h"

namespace emberline {

class Ghosts {
 public:
  static constexpr std::uint32_t kWays = 16;  // half a cache line
  static constexpr std::uint32_t kMostCount = 31;  // in the policy's units

  explicit Ghosts(std::uint64_t cells)
      : sets_(std::max<std::uint64_t>(1, cells / kWays)), pages_(sets_ * kWays * sizeof(std::uint16_t)) {}

  std::size_t bytes() const { return pages_.bytes(); }
  std::uint64_t cells() const { return sets_ * kWays; }
  void prefetch(std::uint64_t mixed) const { __builtin_prefetch(set(key(mixed)), 1, 2); }

  struct Asked {
    std::uint32_t units;  // the count now
    bool again;  // asked for before in this stretch
  };
  // Counts `units`. An id that is not known counts as `units`, kept or not.
  Asked add(std::uint64_t mixed, std::uint32_t units, std::uint32_t stretch, std::uint32_t random) {
    std::uint16_t* cell = find(mixed);
    if (cell == nullptr) {
      put(mixed, units, mark(stretch), random);
      return {units, false};
    }
    const std::uint32_t now = std::min(count(*cell) + units, kMostCount);
    const bool again = (*cell >> 5 & 3u) == mark(stretch);
    *cell = pack(*cell >> 7, mark(stretch), now);
    return {now, again};
  }

  std::uint32_t count_of(std::uint64_t mixed) const {
    const std::uint16_t* cell = find(mixed);
    return cell == nullptr ? 0 : count(*cell);
  }

  // Takes an id out: it has a place in the cache now.
  void forget(std::uint64_t mixed) {
    if (std::uint16_t* cell = find(mixed); cell != nullptr) *cell = 0;
  }

  // Takes in the count of a row that leaves the cache. It was not asked for now.
  void remember(std::uint64_t mixed, std::uint32_t units, std::uint32_t random) {
    if (units == 0) return;
    if (std::uint16_t* cell = find(mixed); cell != nullptr) {
      *cell = pack(*cell >> 7, 0, std::max(count(*cell), std::min(units, kMostCount)));
      return;
    }
    put(mixed, units, 0, random);
  }

  // Takes out of one cell the stretch that is over.
  void settle(std::uint64_t cell, std::uint32_t stretch) {
    std::uint16_t& held = data()[cell];
    if ((held >> 5 & 3u) != mark(stretch)) held &= static_cast<std::uint16_t>(~(3u << 5));
  }
  // Ages one cell: keep(count) gives the new one.
  template <class Keep>
  void age(std::uint64_t cell, Keep keep) {
    std::uint16_t& held = data()[cell];
    const std::uint32_t before = count(held);
    if (before != 0) held = pack(held >> 7, held >> 5, keep(before));
  }

 private:
  // Another mixing than the index's, so that ids that crowd a bucket there are spread here.
  static std::uint64_t key(std::uint64_t mixed) { return mix(mixed ^ 0xD6E8FEB86659FD93ull); }
  static std::uint32_t mark(std::uint32_t stretch) { return stretch % 3 + 1; }
  static std::uint32_t fingerprint(std::uint64_t key) { return static_cast<std::uint32_t>(key & 511); }
  static std::uint32_t count(std::uint16_t cell) { return cell & 31u; }
  static std::uint16_t pack(std::uint32_t fingerprint, std::uint32_t mark, std::uint32_t count) {
    return count == 0 ? std::uint16_t{0} : static_cast<std::uint16_t>(fingerprint << 7 | (mark & 3u) << 5 | count);
  }
  std::uint16_t* data() const { return reinterpret_cast<std::uint16_t*>(pages_.data()); }
  std::uint16_t* set(std::uint64_t key) const { return data() + multiply_high(key, sets_) * kWays; }
  std::uint16_t* find(std::uint64_t mixed) const {
    const std::uint64_t mine = key(mixed);
    std::uint16_t* cells = set(mine);
    for (std::uint32_t i = 0; i < kWays; ++i) {
      if (count(cells[i]) != 0 && (cells[i] >> 7) == static_cast<int>(fingerprint(mine))) return cells + i;
    }
    return nullptr;
  }

  // Takes the least used cell of the set. A lesser count takes that of a greater one with a chance of its share in
  // their sum.
  void put(std::uint64_t mixed, std::uint32_t units, std::uint32_t mark, std::uint32_t random) {
    units = std::min(units, kMostCount);
    std::uint16_t* cells = set(key(mixed));
    std::uint16_t* least = nullptr;
    for (std::uint32_t i = 0; i < kWays; ++i) {
      std::uint16_t* cell = cells + ((random + i) & (kWays - 1));
      if (least == nullptr || count(*cell) < count(*least)) least = cell;
    }
    const std::uint32_t held = count(*least);
    if (units <= held && static_cast<std::uint64_t>(random >> 4) * (held + units) >= std::uint64_t{units} << 28) return;
    *least = pack(fingerprint(key(mixed)), mark, units);
  }

  std::uint64_t sets_;
  Pages pages_;
};

}  // namespace emberline
