// What is read of the rows that are in a file alone: by pages, and ahead of their use.
#include <algorithm>
#include <cstring>

#include "training/training_table.h"

namespace emberline {

void TrainingTable::read_ahead(const std::int64_t* ids, std::size_t n) const {
  std::vector<std::uint32_t> rows, bare;
  {
    const std::lock_guard lock(mutex_);
    for (std::size_t i = 0; i < n; ++i) {
      if (index_.get(ids[i]) != 0) continue;
      if (tier_->rows.size() > 0) rows.push_back(tier_->rows.page_of(ids[i]));
      if (tier_->bare.size() > 0 && seen_.get(ids[i]) == 0) bare.push_back(tier_->bare.page_of(ids[i]));
    }
  }
  tier_->rows.will_need(rows);
  tier_->bare.will_need(bare);
}

TierFigures TrainingTable::figures() const {
  const std::lock_guard lock(mutex_);
  TierFigures figures = tier_->figures;
  figures.rows_in_dram = index_.size();
  figures.rows_outside = tier_->rows_outside;
  figures.file_bytes = tier_->rows.file_bytes() + tier_->bare.file_bytes();
  return figures;
}

OutsideRows TrainingTable::outside_rows(std::size_t first, std::uint32_t after, std::uint32_t upto,
                                        bool records) const {
  constexpr std::size_t kMostBytes = std::size_t{4} << 20;
  const std::lock_guard lock(mutex_);
  RowFile& file = tier_->rows;
  const std::size_t most = kMostBytes / (records ? file.record_bytes() : sizeof(std::int64_t));
  OutsideRows found;
  std::size_t page = tier_->rows_outside == 0 ? file.pages() : first;
  for (; page < file.pages() && found.ids.size() < most; ++page) {
    if (!file.page(page).second.meet(after, upto)) continue;
    file.scan_ahead(page);
    file.each(page, [&](std::int64_t id, const std::uint8_t* record) {
      RecordHead head;
      std::memcpy(&head, record, sizeof(head));
      if (head.second <= after || head.second > upto || index_.get(id) != 0) return;
      found.ids.push_back(id);
      if (records) found.records.insert(found.records.end(), record, record + file.record_bytes());
    });
  }
  found.next = page < file.pages() ? page : 0;
  return found;
}

void TrainingTable::add_idle_outside(std::uint32_t part, const IdleRows& wanted, std::vector<std::int64_t>& found) {
  RowFile& file = tier_->rows;
  const std::size_t before = found.size();
  file.each_page_of(part, [&](std::uint32_t page) {
    const Bounds& ticks = file.page(page).third;
    if (ticks.least > wanted.unused && !ticks.meet(wanted.norm_after, wanted.norm_upto)) return;
    file.each(page, [&](std::int64_t id, const std::uint8_t* record) {
      RecordHead head;
      std::memcpy(&head, record, sizeof(head));
      if (!is_idle(head.third, reinterpret_cast<const float*>(record + sizeof(head)), wanted)) return;
      if (index_.get(id) == 0) found.push_back(id);
    });
  });
  if (found.size() > before) std::sort(found.begin(), found.end());
}

std::vector<std::int64_t> TrainingTable::row_ids() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::int64_t> ids;
  ids.reserve(index_.size());
  index_.each([&](std::int64_t id, std::uint32_t) { ids.push_back(id); });
  std::sort(ids.begin(), ids.end());
  return ids;
}

}  // namespace emberline
