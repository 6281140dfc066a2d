// Sizes of a cache's parts, and the memory that they take.
#include "cache/cache.h"

#include <algorithm>
#include <bit>
#include <stdexcept>
#include <string>

#include "cache/sizes.h"

namespace emberline {
namespace {

void check(std::size_t row_bytes, std::uint64_t capacity_rows, std::uint32_t tables) {
  if (row_bytes < 4 || row_bytes > 65536 || row_bytes % 4 != 0) {
    throw std::invalid_argument("row_bytes: expected a multiple of 4 from 4 to 65536, got " +
                                std::to_string(row_bytes));
  }
  if (capacity_rows > Cache::kMostRows) {
    throw std::invalid_argument("capacity_rows: expected at most 2^31, got " + std::to_string(capacity_rows));
  }
  if (tables < 1 || tables > Cache::kMostTables) {
    throw std::invalid_argument("tables: expected 1 to 65536, got " + std::to_string(tables));
  }
}

std::uint64_t checked(std::size_t row_bytes, std::uint64_t capacity_rows, std::uint32_t tables) {
  check(row_bytes, capacity_rows, tables);
  return capacity_rows;
}

}  // namespace

Cache::Cache(std::size_t row_bytes, std::uint64_t capacity_rows, std::uint32_t tables)
    : row_bytes_(row_bytes),
      capacity_(checked(row_bytes, capacity_rows, tables)),
      states_(tables),
      log_(CacheSizes(capacity_rows).log_uses),
      slots_(row_bytes, CacheSizes(capacity_rows).slots, grace_),
      policy_(capacity_rows),
      curve_(CacheSizes(capacity_rows).curve_cells, tables, CacheSizes(capacity_rows).curve_period),
      changed_(CacheSizes(capacity_rows).changed, 0) {
  buckets_ = std::make_unique<CacheBuckets>(CacheSizes(capacity_rows).buckets);
  owned_view_ = std::make_unique<const View>(View{buckets_.get(), nullptr});
  view_.store(owned_view_.get(), std::memory_order_release);
}

std::size_t Cache::memory_bytes() const {
  const Turn turn(*this);
  return buckets_->bytes() + (old_buckets_ ? old_buckets_->bytes() : 0) + slots_.bytes() + policy_.bytes() +
         curve_.bytes() + log_.bytes() + changed_.size() * sizeof(changed_[0]) + states_.size() * sizeof(TableState) +
         sizeof(*this);
}

std::size_t Cache::bytes_of(std::size_t row_bytes, std::uint64_t capacity_rows, std::uint32_t tables) {
  check(row_bytes, capacity_rows, tables);
  const CacheSizes sizes(capacity_rows);
  // Free slots are listed in four bytes each, in a list that doubles; retired ones in sixteen.
  const std::size_t slots =
      (std::size_t{sizes.slots} + 1) * row_bytes + (std::size_t{sizes.slots} - capacity_rows) * 24;
  return CacheSizes::paged(sizes.buckets * sizeof(CacheBucket)) + slots +
         CacheSizes::paged(FrequencyPolicy::ghost_cells(capacity_rows) * 2 + 32) +
         MissRatioCurve::bytes(sizes.curve_cells, tables) + UseLog::bytes(sizes.log_uses) + sizes.changed * 8 +
         tables * sizeof(TableState) + sizeof(Cache);
}

std::uint64_t Cache::capacity_for(std::size_t row_bytes, std::uint64_t bytes, std::uint32_t tables) {
  check(row_bytes, 0, tables);
  std::uint64_t low = 0, high = std::min<std::uint64_t>(kMostRows, bytes / row_bytes);
  while (low < high) {
    const std::uint64_t middle = low + (high - low + 1) / 2;
    if (bytes_of(row_bytes, middle, tables) <= bytes) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

std::vector<CurvePoint> Cache::curve() const {
  const Turn turn(*this);
  return curve_.curve();
}

std::vector<CurvePoint> Cache::curve_of(std::uint32_t table) const {
  const Turn turn(*this);
  return curve_.curve_of(table);
}

std::pair<std::vector<CurvePoint>, std::vector<double>> Cache::curve_and_parts() const {
  const Turn turn(*this);
  std::vector<CurvePoint> all = curve_.curve();
  std::vector<double> parts = curve_.parts(all);
  return {std::move(all), std::move(parts)};
}

double Cache::predict(std::uint64_t rows) const {
  const Turn turn(*this);
  return curve_.predict(rows);
}

double Cache::predict_of(std::uint32_t table, std::uint64_t rows) const {
  const Turn turn(*this);
  return curve_.predict_of(table, rows);
}

CacheStats Cache::stats() const {
  const Turn turn(*this);
  CacheStats stats = stats_;
  for (const TableState& table : states_) {
    stats.lookups += table.lookups.load(std::memory_order_relaxed);
    stats.hits += table.hits.load(std::memory_order_relaxed);
  }
  stats.changes = policy_.changes();
  return stats;
}

}  // namespace emberline
