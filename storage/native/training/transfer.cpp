// What a training table has, for commits and publishing: rows, counts and removals go out, come back, and are erased.
#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

#include "training/training_table.h"

namespace emberline {

TrainingRows TrainingTable::export_rows() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::pair<std::int64_t, std::uint32_t>> order;
  order.reserve(index_.size());
  index_.each([&](std::int64_t id, std::uint32_t slot) { order.emplace_back(id, slot); });
  std::sort(order.begin(), order.end());
  TrainingRows all;
  all.ids.reserve(order.size());
  all.rows.reserve(order.size() * dim());
  all.slots.reserve(order.size() * slots());
  all.counts.reserve(order.size());
  all.stamps.reserve(order.size());
  all.ticks.reserve(order.size());
  for (const auto& [id, slot] : order) fill(all, id, slot);
  return all;
}

TrainingRows TrainingTable::export_ids(const std::int64_t* ids, std::size_t n) const {
  const std::lock_guard lock(mutex_);
  TrainingRows all;
  for (std::size_t i = 0; i < n; ++i) {
    const std::uint32_t slot = index_.get(ids[i]);
    if (slot == 0) throw std::invalid_argument("ids: id " + std::to_string(ids[i]) + " has no row");
    fill(all, ids[i], slot);
  }
  return all;
}

void TrainingTable::fill(TrainingRows& all, std::int64_t id, std::uint32_t slot) const {
  const float* values = row(slot);
  all.ids.push_back(id);
  all.rows.insert(all.rows.end(), values, values + dim());
  all.slots.insert(all.slots.end(), values + dim(), values + dim() + slots());
  all.counts.push_back(uses_[slot].count);
  all.stamps.push_back(uses_[slot].stamp);
  all.ticks.push_back(uses_[slot].tick);
}

IdCounts TrainingTable::export_counts() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::pair<std::int64_t, std::uint32_t>> order;
  seen_.each([&](std::int64_t id, std::uint32_t count) { order.emplace_back(id, count); });
  std::sort(order.begin(), order.end());
  IdCounts all;
  for (const auto& [id, count] : order) {
    all.ids.push_back(id);
    all.counts.push_back(count);
  }
  return all;
}

void TrainingTable::check_stamp(std::uint32_t stamp) const {
  if (stamp == 0 || stamp > stamp_) {
    throw std::invalid_argument("stamps: expected 1 to " + std::to_string(stamp_) + ", the table's own, got " +
                                std::to_string(stamp) + "; set_stamp first");
  }
}

void TrainingTable::restore(const std::int64_t* ids, std::size_t n, const float* rows, const float* slot_values,
                            const std::uint32_t* counts, const std::uint32_t* stamps, const std::uint32_t* ticks) {
  const std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < n; ++i) {
    check_stamp(stamps[i]);
    const Use use{counts[i], stamps[i], ticks == nullptr ? tick_ : ticks[i]};
    std::uint32_t slot = index_.get(ids[i]);
    if (slot == 0) {
      slot = create(ids[i], use);
    } else {
      set_use(ids[i], slot, use);
    }
    float* values = row(slot);
    std::memcpy(values, rows + i * dim(), dim() * sizeof(float));
    if (slots() > 0) std::memcpy(values + dim(), slot_values + i * slots(), slots() * sizeof(float));
    seen_.erase(ids[i]);
  }
}

void TrainingTable::restore_counts(const std::int64_t* ids, std::size_t n, const std::uint32_t* counts) {
  const std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < n; ++i) {
    if (bloom_ != nullptr) {
      bloom_->raise(ids[i], counts[i], stamp_);
    } else if (counts[i] == 0) {
      seen_.erase(ids[i]);
    } else if (index_.get(ids[i]) == 0) {
      seen_.set(ids[i], counts[i]);
    }
  }
}

void TrainingTable::restore_removed(const std::int64_t* ids, std::size_t n, const std::uint32_t* stamps) {
  const std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < n; ++i) {
    if (index_.get(ids[i]) == 0 && stamps[i] > 0) removed_.set(ids[i], stamps[i]);
  }
}

std::size_t TrainingTable::erase(const std::int64_t* ids, std::size_t n) {
  const std::lock_guard lock(mutex_);
  std::size_t erased = 0;
  for (std::size_t i = 0; i < n; ++i) {
    if (seen_.erase(ids[i])) note_waiting(ids[i]);
    const std::uint32_t slot = index_.get(ids[i]);
    if (slot == 0) continue;
    remove(ids[i], slot);
    removed_.set(ids[i], stamp_);
    ++erased;
  }
  return erased;
}

}  // namespace emberline
