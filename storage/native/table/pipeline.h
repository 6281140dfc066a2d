// The pipeline over a Table: the buckets of the ids ahead on their way, and the rows of those that were matched.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "table/match.h"
#include "table/source.h"
#include "table/table.h"

namespace emberline {

class TablePipeline final : public RowPipeline {
 public:
  // slots: (n) slots of the rows, written as the pipeline advances, or null.
  TablePipeline(const Table& table, const std::int64_t* ids, std::size_t n, const char** rows,
                std::uint32_t* slots = nullptr);

 private:
  // A short step mixes the misses of the copy beside it with those of the rows ahead.
  static constexpr std::size_t kStep = 16;
  static constexpr std::size_t kBucketAhead = 48;
  // Rows on their way beside the step's: more of them than the processor has buffers for would only wait.
  static constexpr std::size_t kRowAhead = 32, kLargeRowAhead = 8, kLargeRow = 256;

  void match_block() override;
  void search(const std::uint32_t* late, std::size_t n);
  void touch(std::size_t start, std::size_t end);

  const Table& table_;
  const BucketArray& buckets_;
  MatchBlock match_;
  MatchTask task_;
  std::uint32_t* slots_out_;
  std::size_t started_ = 0;  // ids that were matched, those of the last step not yet searched for
  std::size_t late_count_ = 0;
  std::uint32_t late_[kStep];
  std::uint32_t slots_[MatchTask::kRing];
  std::uint32_t bucket_ring_[MatchTask::kRing];
};
static_assert(sizeof(TablePipeline) <= PipelineSpace::kBytes);

}  // namespace emberline
