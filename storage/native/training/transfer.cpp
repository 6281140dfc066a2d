// What a training table has, for commits and publishing: rows, counts and removals go out, come back, and are erased.
#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

#include "training/training_table.h"

namespace emberline {
namespace {

// Ids without a row are in DRAM while a call changes them; after so many it is seen whether they are too many.
constexpr std::size_t kKnownAtOnce = 1024;

}  // namespace

TrainingRows TrainingTable::export_rows() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::int64_t> ids;
  ids.reserve(index_.size());
  index_.each([&](std::int64_t id, std::uint32_t) { ids.push_back(id); });
  std::sort(ids.begin(), ids.end());
  return rows_at(std::move(ids));
}

TrainingRows TrainingTable::export_ids(const std::int64_t* ids, std::size_t n) const {
  const std::lock_guard lock(mutex_);
  return rows_at({ids, ids + n});
}

TrainingRows TrainingTable::rows_at(std::vector<std::int64_t> ids) const {
  const std::size_t n = ids.size();
  TrainingRows all;
  all.rows.resize(n * dim());
  all.slots.resize(n * slots());
  all.counts.resize(n);
  all.stamps.resize(n);
  all.ticks.resize(n);
  const auto fill = [&](std::size_t i, const Use& use, const float* values) {
    std::copy_n(values, dim(), all.rows.begin() + static_cast<std::ptrdiff_t>(i * dim()));
    std::copy_n(values + dim(), slots(), all.slots.begin() + static_cast<std::ptrdiff_t>(i * slots()));
    all.counts[i] = use.count;
    all.stamps[i] = use.stamp;
    all.ticks[i] = use.tick;
  };
  const auto refuse = [](std::int64_t id) {
    throw std::invalid_argument("ids: id " + std::to_string(id) + " has no row");
  };
  std::vector<std::size_t> places;
  std::vector<std::int64_t> outside;
  for (std::size_t i = 0; i < n; ++i) {
    const std::uint32_t slot = index_.get(ids[i]);
    if (slot != 0) {
      fill(i, uses_[slot], row(slot));
    } else if (tier_ == nullptr) {
      refuse(ids[i]);
    } else {
      places.push_back(i);
      outside.push_back(ids[i]);
    }
  }
  if (!outside.empty()) {
    tier_->rows.will_need_of(outside);
    tier_->rows.find(outside.data(), outside.size(), [&](std::size_t i, const std::uint8_t* record) {
      if (record == nullptr) refuse(outside[i]);
      Use use;
      std::memcpy(&use, record, sizeof(use));
      fill(places[i], use, reinterpret_cast<const float*>(record + sizeof(use)));
    });
  }
  all.ids = std::move(ids);
  return all;
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

IdCounts TrainingTable::most_seen(std::size_t n) const {
  const std::lock_guard lock(mutex_);
  n = std::min(n, index_.size());
  IdCounts most;
  if (n == 0) return most;
  std::vector<std::pair<std::uint32_t, std::int64_t>> order;
  order.reserve(std::min(2 * n, index_.size()));
  const auto before = [](const auto& a, const auto& b) {
    return a.first != b.first ? a.first > b.first : a.second < b.second;
  };
  // Leaves the first n, so that the memory that this takes depends on n, and not on the table.
  const auto cut = [&] {
    std::nth_element(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(n - 1), order.end(), before);
    order.resize(n);
  };
  index_.each([&](std::int64_t id, std::uint32_t slot) {
    if (order.size() == 2 * n) cut();
    order.emplace_back(uses_[slot].count, id);
  });
  cut();
  std::sort(order.begin(), order.end(), before);
  most.ids.reserve(n);
  most.counts.reserve(n);
  for (const auto& [count, id] : order) {
    most.ids.push_back(id);
    most.counts.push_back(count);
  }
  return most;
}

void TrainingTable::write(const std::int64_t* ids, std::size_t n, const float* rows, const float* slot_values) {
  const std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < n; ++i, rows += dim(), slot_values += slots()) {
    const std::uint32_t slot = index_.get(ids[i]);
    if (slot != 0) {
      if (tier_ != nullptr) tier_->slots[slot].dirty = true;
      std::copy_n(rows, dim(), row(slot));
      std::copy_n(slot_values, slots(), row(slot) + dim());
    } else if (tier_ != nullptr) {
      const std::uint8_t* record = tier_->rows.find(ids[i]);
      if (record == nullptr) continue;
      RecordHead head;
      std::memcpy(&head, record, sizeof head);
      restore_outside(ids[i], {head.count, head.second, head.third}, rows, slot_values);
    }
  }
}

void TrainingTable::check_stamp(std::uint32_t stamp) const {
  if (stamp == 0 || stamp > stamp_) {
    throw std::invalid_argument("stamps: expected 1 to " + std::to_string(stamp_) + ", the table's own, got " +
                                std::to_string(stamp) + "; set_stamp first");
  }
}

// Rows that come back: those of a small table to DRAM, those of a larger one to the file, until training asks for them.
bool TrainingTable::restores_outside(std::size_t n) {
  if (tier_ == nullptr) return false;
  const std::size_t wanted = used_bytes(n);
  if (tier_->rows_outside > 0 || wanted > tier_->budget->kept()) return true;
  tier_->budget->ask(tier_->share, wanted);
  return false;
}

void TrainingTable::restore_outside(std::int64_t id, const Use& use, const float* values, const float* slot_values) {
  std::vector<float>& body = tier_->body;
  body.assign(values, values + dim());
  body.insert(body.end(), slot_values, slot_values + slots());
  if (tier_->rows.put(id, {use.count, use.stamp, use.tick}, body.data())) ++tier_->rows_outside;
}

void TrainingTable::know(std::int64_t id, std::size_t i) {
  if (tier_ == nullptr) return;
  if (i % kKnownAtOnce == 0) spill_bare_if_many();
  bring_bare(id);
}

void TrainingTable::restore(const std::int64_t* ids, std::size_t n, const float* rows, const float* slot_values,
                            const std::uint32_t* counts, const std::uint32_t* stamps, const std::uint32_t* ticks) {
  const std::lock_guard lock(mutex_);
  const bool outside = restores_outside(n);
  for (std::size_t i = 0; i < n; ++i, rows += dim(), slot_values += slots()) {
    check_stamp(stamps[i]);
    know(ids[i], i);
    const Use use{counts[i], stamps[i], ticks == nullptr ? tick_ : ticks[i]};
    std::uint32_t slot = index_.get(ids[i]);
    seen_.erase(ids[i]);
    if (outside && slot == 0) {
      removed_.erase(ids[i]);
      restore_outside(ids[i], use, rows, slot_values);
      continue;
    }
    if (slot == 0) {
      slot = create(ids[i], use);
    } else {
      set_use(ids[i], slot, use);
    }
    std::copy_n(rows, dim(), row(slot));
    std::copy_n(slot_values, slots(), row(slot) + dim());
  }
}

void TrainingTable::restore_counts(const std::int64_t* ids, std::size_t n, const std::uint32_t* counts) {
  const std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < n; ++i) {
    know(ids[i], i);
    if (bloom_ != nullptr) {
      bloom_->raise(ids[i], counts[i], stamp_);
    } else if (counts[i] == 0) {
      seen_.erase(ids[i]);
    } else if (!has_row(ids[i])) {
      seen_.set(ids[i], counts[i]);
    }
  }
}

void TrainingTable::restore_removed(const std::int64_t* ids, std::size_t n, const std::uint32_t* stamps) {
  const std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < n; ++i) {
    know(ids[i], i);
    if (stamps[i] > 0 && !has_row(ids[i])) removed_.set(ids[i], stamps[i]);
  }
}

std::size_t TrainingTable::erase(const std::int64_t* ids, std::size_t n) {
  const std::lock_guard lock(mutex_);
  std::size_t erased = 0;
  for (std::size_t i = 0; i < n; ++i) {
    know(ids[i], i);
    if (seen_.erase(ids[i])) note_waiting(ids[i]);
    const std::uint32_t slot = index_.get(ids[i]);
    const bool was_outside = tier_ != nullptr && tier_->rows.erase(ids[i]) && slot == 0;
    if (slot == 0 && !was_outside) continue;
    if (slot != 0) {
      remove(ids[i], slot);
    } else {
      --tier_->rows_outside;
    }
    removed_.set(ids[i], stamp_);
    ++erased;
  }
  return erased;
}

}  // namespace emberline
