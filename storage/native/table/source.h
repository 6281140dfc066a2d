// A source of rows for a lookup: a table that DRAM holds whole, or a table's share of a cache.
//
// A source gives addresses of encoded rows, found by a pipeline that keeps many misses in flight: it mixes ids and
// prefetches index buckets, matches the buckets that have come, and prefetches their rows, one block after the other.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "rows/codec.h"

namespace emberline {

// The addresses of the rows of n ids, as it advances. Lives within a ReaderSection: they hold until the section ends.
class RowPipeline {
 public:
  static constexpr std::size_t kBlock = 32;  // bound of one match_block

  // Advances the pipeline: on return the addresses of ids [0, upto) are written, null for an absent id, and the rows of
  // the next block are on their way.
  void advance(std::size_t upto) {
    const std::size_t target = std::min(count_, upto + ahead_);
    while (matched_ < target) match_block();
  }

 protected:
  // rows: (n) addresses, written block by block.
  // ahead: ids whose rows are fetched before those that are asked for.
  RowPipeline(const std::int64_t* ids, std::size_t n, const char** rows, std::size_t ahead = kBlock)
      : ids_(ids), count_(n), rows_(rows), ahead_(ahead) {}
  ~RowPipeline() = default;

  // Writes rows_[matched_, end) for the next kBlock ids, or as many as are left, and sets matched_ to that end.
  virtual void match_block() = 0;

  const std::int64_t* ids_;
  std::size_t count_;
  const char** rows_;
  std::size_t ahead_;
  std::size_t matched_ = 0;
};

// Memory for one pipeline of any source, on the caller's stack.
class PipelineSpace {
 public:
  void* memory() { return memory_; }
  static constexpr std::size_t kBytes = 2048;

 private:
  alignas(64) std::byte memory_[kBytes];
};

class RowSource {
 public:
  virtual ~RowSource() = default;

  virtual RowFormat format() const = 0;
  // Builds a pipeline in `space`, which it needs no more than (a static_assert beside each). Within a ReaderSection.
  virtual RowPipeline& start(PipelineSpace& space, const std::int64_t* ids, std::size_t n, const char** rows) const = 0;
};

// Fetches every 64 bytes of a row into the second-level cache. The first level has too few fill buffers: into it halves
// the rate.
inline void prefetch_row(const char* row, std::size_t bytes) {
  const auto address = reinterpret_cast<std::uintptr_t>(row);
  const char* end = row + bytes;
  for (const char* bucket = row - address % 64; bucket < end; bucket += 64) __builtin_prefetch(bucket, 0, 2);
}

}  // namespace emberline
