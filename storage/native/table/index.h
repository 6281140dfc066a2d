// The index of one table: id -> row slot, in lines of five (cuda/line.cuh).
//
// Readers take no lock. One writer at a time (the table's mutex) changes the lines in these ways only:
//   publish   store another slot for an id that is present                    readers see the old row or the new one
//   vacate    store kEmptySlot                                                readers see the row or nothing
//   fill      id, then slot, into a position that is empty AND that no reader of an earlier owner's epoch can still be looking at
//   displace  fill a position of the other candidate line, raise that line's version, vacate here
// A reader loads id, slot (acquire), id again: the second load catches a position that changed its owner in between, and because a
// position is not refilled before its readers left, it cannot change twice. A reader that finds nothing in either line looks at the
// version of the first again: an id displaced from the second line into the first, behind its back, has raised it.
#pragma once

#include <cstdint>
#include <unordered_map>

#include "line.cuh"
#include "table/epoch.h"
#include "table/pages.h"

namespace emberline {

class Index {
 public:
  explicit Index(uint64_t lines);

  uint64_t lines() const { return count_; }
  Candidates candidates(int64_t id) const { return candidate_lines(id, count_); }
  void prefetch(const Candidates& at) const { __builtin_prefetch(&lines_[at.first]); }

  // Readers: the slot of `id`, or kEmptySlot. The caller holds a guard.
  uint32_t find(int64_t id, const Candidates& at) const;

  // The writer's verbs.
  uint32_t exchange(int64_t id, uint32_t slot);  // returns the old slot; kEmptySlot (and no change) when the id is absent
  bool fill(int64_t id, uint32_t slot);          // the id must be absent; false: no room within one displacement
  uint32_t vacate(int64_t id);                   // returns the slot it had, or kEmptySlot

  // Copies every entry into this index, which no reader sees yet. False when it does not fit.
  bool absorb(const Index& other);

  const Line& line(uint64_t number) const { return lines_[number]; }
  size_t bytes() const { return pages_.committed_bytes(); }

 private:
  int position_of(const Line& line, int64_t id) const;
  int empty_position(uint64_t number);
  bool displace_from(uint64_t number);
  void write(uint64_t number, int way, int64_t id, uint32_t slot);

  uint64_t count_;
  Pages pages_;
  Line* lines_;
  bool published_ = true;  // false while absorb() fills it: nobody reads, so nobody is waited for
  std::unordered_map<uint64_t, uint64_t> vacated_;  // position -> stamp, until it may change its owner
};

}  // namespace emberline
