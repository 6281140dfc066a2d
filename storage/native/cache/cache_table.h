// One table's share of a cache: the verbs of Table, over rows that all tables of the cache compete for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cache/cache.h"
#include "rows/codec.h"
#include "table/source.h"

namespace emberline {

class CacheTable : public RowSource {
 public:
  // The cache must outlive this. Throws std::invalid_argument that names the argument.
  CacheTable(Cache& cache, std::uint32_t table, RowFormat format);

  RowFormat format() const override { return format_; }
  RowPipeline& start(PipelineSpace& space, const std::int64_t* ids, std::size_t n, const char** rows) const override;

  Cache& cache() const { return cache_; }
  std::uint32_t table() const { return table_; }
  std::uint32_t dim() const { return format_.dim; }
  std::uint64_t size() const { return cache_.rows_of(table_); }

  // ids (n), out (n, dim), found (n). Rows of absent ids are zeros. Returns the number found.
  std::size_t find(const std::int64_t* ids, std::size_t n, float* out, std::uint8_t* found) const;

  // rows: float32 (n, dim), encoded on the way, or encoded. freq (n) codes of uses, or null. As Cache says.
  void insert_or_assign(const std::int64_t* ids, std::size_t n, RowInput rows, const std::uint8_t* freq);
  std::size_t insert_and_evict(const std::int64_t* ids, std::size_t n, RowInput rows, const std::uint8_t* freq);
  std::size_t assign(const std::int64_t* ids, std::size_t n, RowInput rows);
  std::size_t erase(const std::int64_t* ids, std::size_t n) { return cache_.erase(table_, ids, n); }
  CachedRows export_batch(std::uint64_t cursor, std::size_t limit) const {
    return cache_.export_batch(table_, cursor, limit);
  }

 private:
  friend class CachePipeline;

  Cache& cache_;
  std::uint32_t table_;
  RowFormat format_;
  std::uint64_t salt_;
};

}  // namespace emberline
