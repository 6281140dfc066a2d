// The pipeline over a table's share of a cache: two blocks of buckets on their way, one of rows. It reports to the
// cache: rows whose count steps, sampled lookups, and how many lookups hit.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cache/cache_table.h"
#include "table/source.h"

namespace emberline {

class CachePipeline final : public RowPipeline {
 public:
  CachePipeline(const CacheTable& table, const std::int64_t* ids, std::size_t n, const char** rows);

 private:
  struct Found {
    std::uint32_t uses = 0, samples = 0;
    std::uint32_t positions[kBlock];
    SampledLookup sampled[kBlock];
  };

  void match_block() override;
  void match_moving(std::size_t start, std::size_t end);
  void prefetch_buckets();
  void take(std::size_t i, const CacheBucket& bucket, Match match, Found& told);

  const CacheTable& table_;
  Cache& cache_;
  Cache::View view_;
  std::uint64_t sample_mask_;
  std::uint64_t skip_mask_;
  std::uint64_t random_;
  std::size_t row_bytes_;
  std::size_t hits_ = 0;
  std::size_t told_lookups_ = 0, told_hits_ = 0, skipped_ = 0, lost_ = 0;
  std::size_t mixed_end_ = 0;
  std::uint64_t mixed_[2][kBlock];
};
static_assert(sizeof(CachePipeline) <= PipelineSpace::kBytes);

}  // namespace emberline
