// What a training table has beyond its rows in DRAM, when a part of them may lie in a file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "training/chunks.h"
#include "training/row_budget.h"
#include "training/row_file.h"

namespace emberline {

// Numbers of a table's tier since it was made, and now.
struct TierFigures {
  std::uint64_t rows_in_dram = 0;
  std::uint64_t rows_outside = 0;
  std::uint64_t file_bytes = 0;
  std::uint64_t fetched = 0;  // rows brought to DRAM
  std::uint64_t waits = 0;  // times that bringing rows waited for the disk
  std::uint64_t left = 0;  // rows that left DRAM
  std::uint64_t written = 0;  // those of them that had to be written, because the file did not have them as they were
};

struct RowTier {
  // State of a row in DRAM, by slot.
  struct Slot {
    std::int64_t id = 0;
    std::uint32_t used = 0;  // batch
    std::uint16_t heat = 0;  // batches that used it, aged
    bool live = false;
    bool dirty = false;  // the file does not have the row as it is
  };

  RowTier(std::string table, std::shared_ptr<RowBudget> shared, const std::string& folder, std::size_t row_bytes,
          bool by_parts, std::size_t fixed_bytes)
      : name(std::move(table)),
        budget(std::move(shared)),
        share(budget->join(name, fixed_bytes)),
        rows(folder, row_bytes, by_parts),
        bare(folder, 0, false) {}

  std::string name;
  std::shared_ptr<RowBudget> budget;
  std::size_t share;  // number of the table in the budget
  // Rows as they left DRAM last. One that came back is still there, and is not looked at.
  RowFile rows;
  // Ids with a count or an erasure, or that lost their count lately, unless DRAM knows as much of them.
  RowFile bare;
  Chunks<Slot> slots;
  std::uint32_t batch = 1;
  std::uint64_t marks = 0;  // uses since the last ageing
  std::uint64_t rows_outside = 0;
  std::uint64_t waiting_outside = 0;
  std::size_t swept = 0;  // page of `bare` that was cleared last
  TierFigures figures;
  // scratch
  std::vector<std::uint32_t> missing;
  std::vector<std::int64_t> missing_ids;
  std::vector<std::int64_t> bare_ids;
  std::vector<float> body;
};

}  // namespace emberline
