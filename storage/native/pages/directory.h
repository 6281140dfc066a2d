// Finds the page that may hold an id: a search over the first ids of all pages, many ids at a time.
//
// The sorted array is the lowest level of a tree; each level above holds every sixteenth id of the one below. A step is
// one or two cache lines, the upper levels stay in the cache, and the ids of a batch go down side by side so that their
// misses overlap. Unlike interpolation it does not care how the ids are distributed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace emberline::pages {

class Directory {
 public:
  static constexpr std::uint64_t kNoPage = ~std::uint64_t{0};

  Directory() = default;
  // firsts: strictly ascending
  explicit Directory(std::vector<std::int64_t> firsts);

  // Finds for each id the page whose first id is the last that is not above it; kNoPage before the first page.
  void find(const std::int64_t* ids, std::size_t n, std::uint64_t* pages) const;

  std::size_t pages() const { return levels_.empty() ? 0 : levels_[0].size(); }
  std::int64_t first_of(std::size_t page) const { return levels_[0][page]; }
  std::size_t memory_bytes() const;

 private:
  static constexpr std::size_t kFan = 16;

  std::vector<std::vector<std::int64_t>> levels_;  // the pages' first ids, then coarser and coarser
};

}  // namespace emberline::pages
