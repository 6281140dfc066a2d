// Finds rows with many misses in flight: mixes and prefetches the lines of a block, matches the block before, prefetches its
// rows into the second-level cache. The first level has too few fill buffers: prefetching into it halves the rate.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "table/table.h"

namespace emberline {

// Lives within a ReaderSection: the addresses that it gives hold until the section ends.
class RowPipeline {
 public:
  static constexpr std::size_t kBlock = 32;

  // rows: (n) addresses, written as the pipeline advances; null for an absent id. slots: (n) likewise, or null.
  RowPipeline(const Table& table, const std::int64_t* ids, std::size_t n, const float** rows,
              std::uint32_t* slots = nullptr)
      : table_(table),
        lines_(*table.lines_.load(std::memory_order_acquire)),
        ids_(ids),
        count_(n),
        rows_(rows),
        slots_out_(slots),
        row_bytes_(table.dim_ * sizeof(float)) {
    prefetch_lines();
  }

  // On return the rows of ids [0, upto) are known, and those of the next block are on their way.
  void advance(std::size_t upto) {
    const std::size_t target = std::min(count_, upto + kBlock);
    while (matched_ < target) match_block();
  }

 private:
  void prefetch_lines();
  void match_block();
  void touch(std::size_t start, std::size_t end);
  void prefetch_row(const float* row) const {
    const char* bytes = reinterpret_cast<const char*>(row);
    for (std::size_t at = 0; at < row_bytes_; at += 64) __builtin_prefetch(bytes + at, 0, 2);
  }

  const Table& table_;
  const LineArray& lines_;
  const std::int64_t* ids_;
  std::size_t count_;
  const float** rows_;
  std::uint32_t* slots_out_;
  std::size_t row_bytes_;
  std::size_t mixed_end_ = 0;
  std::size_t matched_ = 0;
  std::uint64_t mixed_[2][kBlock];
  std::uint32_t slots_[kBlock];
};

}  // namespace emberline
