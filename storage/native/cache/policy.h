// Decides which rows a cache keeps. One policy for every tier and all tables of a tier: a frequency cache with memory
// of what is outside.
//
// The estimate. A resident row has an eight-bit logarithmic use count (bucket.cuh) in halves of a use; an id outside
// has a five-bit one in Ghosts. All counts fade by a quarter of an octave each kUsesPerRow / 4 lookups per row of
// capacity, so an estimate is an average over some kUsesPerRow lookups per row: as long as it takes to tell rows apart
// at the boundary of the cache, where one is asked for once in twenty lookups per row of capacity. Admission. An id
// outside is a candidate when it was asked for at least twice, so a scan admits nothing; it takes the place of the
// least used of the rows in kVictimBuckets buckets if that is used less, and keeps its count. The row that leaves keeps
// its count as a ghost. (TinyLFU, G. Einziger et al. 2017, with ghosts in place of its sketch and without its window.)
// Change. A long memory is slow to forget. When hits fall and, in the same stretch, ids outside come again and again in
// their place, the traffic has changed: all counts are cut down to almost nothing, ranks kept where they can be. In a
// scan hits fall too, but nothing comes again.
//
// Sampling. A reader sees the count beside the slot and reports a use only when it would step the count: always below
// 32 uses, then ever more rarely. That is no sample with a bias: it is how a logarithmic counter counts.
//
// The clock counts lookups that the cache or the ghosts knew, and whose uses readers could report, never time. Where
// the log is full, or the index moves, uses are lost, and a running clock would age rows that are used all the time
// down to nothing. An id that is asked for once and never again does not age the rest. A batch counts an id that it
// misses once, however often it has it, so what comes again is measured beside what is asked for.
//
// Used under the writer's mutex; `reported` and `stepped` are pure.
#pragma once

#include <cstdint>

#include "bucket.cuh"
#include "cache/ghosts.h"

namespace emberline {

class FrequencyPolicy {
 public:
  static constexpr std::uint32_t kUse = 2;  // one use, in the units of counts
  static constexpr std::uint32_t kUsesPerRow = 80;
  static constexpr int kVictimBuckets = 8;
  static constexpr std::uint64_t kGhostFifths = 7;  // ghost cells per row of capacity, in fifths

  explicit FrequencyPolicy(std::uint64_t capacity_rows);

  // Returns whether a reader that hit a row reports it.
  static bool reported(std::uint8_t code, std::uint32_t random) {
    const int shift = (code >> 4) - 1;
    return shift <= 1 || (random & ((1u << (shift - 1)) - 1)) == 0;
  }
  // The count after a report.
  static std::uint8_t stepped(std::uint8_t code) {
    if (code == 255) return code;
    return (code >> 4) - 1 <= 1 ? count_code(count_value(code) + kUse, 0) : static_cast<std::uint8_t>(code + 1);
  }
  // Counts of uses as versions and tiers write them, to and from the units here.
  std::uint8_t from_uses(std::uint8_t uses_code);
  static std::uint8_t to_uses(std::uint8_t code) { return count_code((count_value(code) + kUse / 2) / kUse, 0); }

  // An id outside was asked for: its count in units. uses: what is known of it beside, a code of uses.
  std::uint32_t asked(std::uint64_t mixed, std::uint8_t uses);
  // The same count, with no use more.
  std::uint32_t known(std::uint64_t mixed, std::uint8_t uses);
  bool admits(std::uint32_t candidate, std::uint8_t coldest) const {
    return candidate >= 2 * kUse && count_value(coldest) < candidate;
  }
  std::uint8_t code_of(std::uint32_t units) { return count_code(units, random()); }
  // The id has a place now; the row has none any more.
  void entered(std::uint64_t mixed) { ghosts_.forget(mixed); }
  void left(std::uint64_t mixed, std::uint8_t code) { ghosts_.remember(mixed, count_value(code), random()); }
  void prefetch(std::uint64_t mixed) const { ghosts_.prefetch(mixed); }

  // Counts lookups that were answered and reported, and the hits among them. full: whether the cache is.
  void pass(std::uint64_t lookups, std::uint64_t hits, bool full);
  // Returns how many of `buckets` the cache has to age now, at most `most`; the rest stays due.
  std::uint64_t due(std::uint64_t buckets, std::uint64_t most);
  std::uint8_t aged(std::uint8_t code);
  // A change of traffic was seen and the cut of all counts is not begun: true once for each.
  bool take_change();
  std::uint8_t cut(std::uint8_t code);

  // Until `resize` rows are evicted and moved: its effect on hits is no change of traffic.
  void begin_resize() { resizing_ = true; }
  void resize(std::uint64_t capacity_rows);
  std::uint64_t capacity_rows() const { return capacity_; }
  std::uint64_t changes() const { return changes_; }
  std::size_t bytes() const { return ghosts_.bytes(); }
  static std::uint64_t ghost_cells(std::uint64_t capacity_rows) { return capacity_rows * kGhostFifths / 5; }

 private:
  std::uint32_t random();
  std::uint32_t faded(std::uint32_t units);
  void close_stretch(bool full);
  void age_ghosts();
  void settle_ghosts();
  std::uint64_t stretch_lookups() const;

  std::uint64_t capacity_;
  Ghosts ghosts_;
  std::uint64_t random_ = 0x9E3779B97F4A7C15ull;
  std::uint64_t known_ = 0;  // ids asked for that were known as ghosts, since the last pass
  double due_rows_ = 0;
  double due_cells_ = 0;
  std::uint64_t ghost_hand_ = 0, settle_hand_ = 0;
  // The stretch of lookups that is being watched, and what is usual: hits as a share of lookups, ids that came again
  // as a share of those asked for, and by how much hits differ from the usual.
  std::uint64_t lookups_ = 0, hits_ = 0, asked_ = 0, returns_ = 0;
  double usual_hits_ = -1, usual_returns_ = -1, noise_ = 0.04;
  std::uint32_t stretch_ = 0;
  std::uint64_t quiet_ = 0;  // lookups to come in which no change is looked for
  bool change_ = false, resizing_ = false;
  std::uint64_t changes_ = 0;
};

}  // namespace emberline
