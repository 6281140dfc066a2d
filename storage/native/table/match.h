// The inner loop of a lookup over a Table's buckets, once for each instruction set: where ids stand, and their rows on
// the way.
//
// For each id of a block it prefetches the bucket of a later id, compares its own bucket's ids, and prefetches the row.
// An id that is not found in its first bucket at the first look is left to the caller: it may stand in its second, be
// on the move, or be absent.
#pragma once

#include <cstddef>
#include <cstdint>

#include "rows/isa.h"
#include "table/buckets.h"
#include "table/slab.h"

namespace emberline {

struct MatchTask {
  // A power of two; positions of ids go round in it.
  static constexpr std::size_t kRing = 128;

  const Bucket* buckets;
  std::uint64_t bucket_count;
  SlabView slab;
  std::size_t row_bytes;
  const std::int64_t* ids;  // (count)
  std::size_t count;
  std::size_t bucket_ahead;  // ids between the one that is matched and the one whose bucket is prefetched; below kRing
  const char** rows;  // (count) written: addresses; null for the late
  std::uint32_t* slots;  // (kRing) written, by position
  std::uint32_t* bucket_ring;  // (kRing) numbers of the buckets of ids [start, start + bucket_ahead), by position
};

// Matches ids [start, end), end - start <= 32. late: the positions that the caller has to search, ascending. Returns
// how many.
using MatchBlock = std::size_t (*)(const MatchTask& task, std::size_t start, std::size_t end, std::uint32_t* late);

MatchBlock match_block_of(Isa isa);

}  // namespace emberline
