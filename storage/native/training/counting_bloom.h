// Counts how often ids were seen in a bounded amount of memory: a counting Bloom filter. A count is never too small,
// and for a small share of the ids, which the caller chooses, too large.
//
// An id has `probes` counters within one block of 512, each as narrow as the largest count allows; only the smallest of
// them rise (conservative update). A block is a run of `bits` cache lines, so that a filter can be restored with wider
// or narrower counters: their places stay. An id's block follows from its bucket (training/owners.h), so each rank of a
// training has blocks of its own, the counts are those of one process, and any number of ranks goes on. Sources: Fan et
// al., "Summary cache", 2000 (counting filters); Estan, Varghese, "New directions in traffic measurement and
// accounting", 2002 (conservative update); Putze, Sanders, Singler, "Cache-, hash- and space-efficient Bloom filters",
// 2007 (blocks).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "table/pages.h"

namespace emberline {

struct BloomOptions {
  // Distinct ids that are seen; 0: there is no filter.
  std::uint64_t expected_ids = 0;
  // The share of ids that have a count although they were never seen, after expected_ids distinct ids.
  double false_rate = 0.01;
  // The rank whose ids are counted, of so many.
  std::uint32_t rank = 0, ranks = 1;
};

// How many counters there are, and how many an id has.
struct BloomShape {
  std::uint64_t blocks = 0;
  std::uint32_t probes = 0;
};

class CountingBloom {
 public:
  static constexpr std::uint32_t kBlock = 512;  // counters
  static constexpr std::uint32_t kMostProbes = 14;
  static constexpr std::size_t kPageBytes = 512;
  static constexpr std::uint32_t kMostCount = 255;

  // The smallest filter that keeps the rate, with as many blocks for each bucket. Throws std::invalid_argument for a
  // rate below 0.0001 or above 0.5.
  static BloomShape shape_of(const BloomOptions& options);
  // The share of unseen ids that have a count after so many distinct ids.
  static double false_rate(const BloomShape& shape, double ids);

  // most: the largest count that is counted exactly, 1 to 255. seed: equal seeds give equal filters. Throws
  // std::invalid_argument, or std::bad_alloc when the address space does not hold it; pages are taken when they are
  // first written.
  CountingBloom(const BloomOptions& options, std::uint32_t most, std::uint64_t seed);

  const BloomShape& shape() const { return shape_; }
  std::uint32_t bits() const { return bits_; }
  // The largest count that the counters hold: `most` rounded up to their width.
  std::uint32_t most() const { return (1u << bits_) - 1; }

  void prefetch(std::int64_t id) const;
  std::uint32_t count(std::int64_t id) const;
  // Adds occurrences and returns the count, which may exceed most(). stamp: of the change, above 0.
  std::uint32_t add(std::int64_t id, std::uint32_t occurrences, std::uint32_t stamp);
  // Makes the count at least this one.
  void raise(std::int64_t id, std::uint32_t count, std::uint32_t stamp);

  // Distinct ids that were seen, estimated from the counters that are not 0.
  double ids() const;

  // Pages, ascending, that changed after a stamp.
  std::vector<std::uint32_t> pages_since(std::uint32_t stamp) const;
  std::uint64_t pages() const { return pages_; }
  const std::uint8_t* page(std::uint64_t page) const { return counters() + page * kPageBytes; }
  // Takes in pages of a filter of this shape: its own blocks, where each count is the larger one of both. bits: the
  // width of its counters; counts above most() become most(). Throws std::invalid_argument for a page that is not
  // there.
  void restore(const std::uint32_t* pages, std::size_t n, const std::uint8_t* content, std::uint32_t bits,
               std::uint32_t stamp);

  // Bytes that are in memory after enough ids.
  std::size_t bytes() const { return (end_page_ - first_page_) * (kPageBytes + sizeof(std::uint32_t)); }

 private:
  struct Places;

  Places places(std::int64_t id) const;
  std::uint8_t* counters() const { return reinterpret_cast<std::uint8_t*>(data_.data()); }
  std::uint32_t* stamps() const { return reinterpret_cast<std::uint32_t*>(stamps_.data()); }
  std::uint32_t get(std::uint64_t counter) const;
  void set(std::uint64_t counter, std::uint32_t value, std::uint32_t stamp);
  std::uint32_t smallest(const Places& at) const;
  void raise(const Places& at, std::uint32_t count, std::uint32_t stamp);

  BloomShape shape_;
  std::uint32_t bits_;
  std::uint64_t key_;
  std::uint64_t pages_;
  // The blocks of its rank, and the pages where they lie. The others are never written, and so take no memory.
  std::uint64_t first_block_, end_block_, first_page_, end_page_;
  std::uint64_t filled_ = 0;  // counters that are not 0
  Pages data_;
  Pages stamps_;  // by page, of its last change
};

}  // namespace emberline
