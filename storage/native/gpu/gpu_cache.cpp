// Sizes of the parts of a GPU's cache on the host.
#include "gpu/gpu_cache.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "cache/sizes.h"

namespace emberline {
namespace {

std::uint64_t checked(std::size_t row_bytes, std::uint64_t capacity_rows, std::uint32_t tables) {
  if (row_bytes < 4 || row_bytes > 65536 || row_bytes % 4 != 0) {
    throw std::invalid_argument("row_bytes: expected a multiple of 4 from 4 to 65536, got " +
                                std::to_string(row_bytes));
  }
  if (capacity_rows < 1 || capacity_rows > GpuCache::kMostRows) {
    throw std::invalid_argument("capacity_rows: expected 1 to 2^31 - 2, got " + std::to_string(capacity_rows));
  }
  if (tables < 1 || tables > GpuCache::kMostTables) {
    throw std::invalid_argument("tables: expected 1 to 65536, got " + std::to_string(tables));
  }
  return capacity_rows;
}

// Three of four positions are taken when it is full: fewer than in the host's cache, because a second bucket costs a
// GPU 64 bytes for each lookup of it, and because the rows of a delta come all at once, between all others.
std::uint64_t buckets_for(std::uint64_t capacity_rows) { return std::max<std::uint64_t>(2, (capacity_rows + 2) / 3); }

// Beside the capacity, for rows that are replaced or come for others: what one set may change.
std::uint32_t slots_for(std::uint64_t capacity_rows) {
  return static_cast<std::uint32_t>(capacity_rows + std::max<std::uint64_t>(64, capacity_rows * 3 / 100));
}

}  // namespace

GpuCache::GpuCache(std::size_t row_bytes, std::uint64_t capacity_rows, std::uint32_t tables)
    : row_bytes_(row_bytes),
      capacity_(checked(row_bytes, capacity_rows, tables)),
      buckets_(buckets_for(capacity_rows)),
      slots_(slots_for(capacity_rows)),
      policy_(capacity_rows),
      rows_of_(tables, 0),
      staged_(row_bytes) {}

std::uint64_t GpuCache::free() const {
  return slots_.held() < offered() ? std::min<std::uint64_t>(offered() - slots_.held(), slots_.free()) : 0;
}

std::size_t GpuCache::memory_bytes() const {
  const std::size_t set = (changes_.capacity() + taken_.capacity()) * sizeof(Change) + staged_.memory_bytes();
  const std::size_t counts = rows_of_.size() * sizeof(rows_of_[0]);
  return buckets_.bytes() + slots_.bytes() + policy_.bytes() + counts + set + sizeof(*this);
}

std::size_t GpuCache::bytes_of(std::uint64_t capacity_rows) {
  const std::uint64_t buckets = buckets_for(checked(4, capacity_rows, 1));
  const std::size_t slots = std::size_t{slots_for(capacity_rows)} + 1;
  return CacheSizes::paged(buckets * sizeof(GpuBucket)) + CacheSizes::paged(slots * sizeof(std::uint32_t)) +
         CacheSizes::paged(slots) + CacheSizes::paged(FrequencyPolicy::ghost_cells(capacity_rows) * 2 + 32) +
         kMostTables * sizeof(std::uint64_t) + sizeof(GpuCache);
}

}  // namespace emberline
