// The pipeline over a Table: two blocks of lines on their way, one of rows.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "table/source.h"
#include "table/table.h"

namespace emberline {

class TablePipeline final : public RowPipeline {
 public:
  // slots: (n) slots of the rows, written as the pipeline advances, or null.
  TablePipeline(const Table& table, const std::int64_t* ids, std::size_t n, const char** rows, std::uint32_t* slots = nullptr)
      : RowPipeline(ids, n, rows),
        table_(table),
        lines_(*table.lines_.load(std::memory_order_acquire)),
        slots_out_(slots),
        row_bytes_(table.format().bytes()) {
    prefetch_lines();
  }

 private:
  void match_block() override;
  void prefetch_lines();
  void touch(std::size_t start, std::size_t end);

  const Table& table_;
  const LineArray& lines_;
  std::uint32_t* slots_out_;
  std::size_t row_bytes_;
  std::size_t mixed_end_ = 0;
  std::uint64_t mixed_[2][kBlock];
  std::uint32_t slots_[kBlock];
};
static_assert(sizeof(TablePipeline) <= PipelineSpace::kBytes);

}  // namespace emberline
