// What changed in a training table, and when: stamps, erasures, counts of ids that wait for a row.
#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>

#include "training/training_table.h"

namespace emberline {

std::uint32_t TrainingTable::stamp() const {
  const std::lock_guard lock(mutex_);
  return stamp_;
}

std::uint32_t TrainingTable::advance() {
  const std::lock_guard lock(mutex_);
  if (stamp_ == std::numeric_limits<std::uint32_t>::max()) throw std::invalid_argument("advance: no stamp is left");
  if (tier_ == nullptr) changes_.compact(index_.size(), [this](std::int64_t id) { return latest(id); });
  forget_waiting();
  waiting_.compact(waiting_stamps_.size(), [this](std::int64_t id) { return waiting_stamps_.get(id); });
  return stamp_++;
}

void TrainingTable::set_stamp(std::uint32_t stamp) {
  const std::lock_guard lock(mutex_);
  if (stamp < stamp_) {
    throw std::invalid_argument("stamp: " + std::to_string(stamp) + " was used already, the table is at " +
                                std::to_string(stamp_));
  }
  stamp_ = stamp;
}

void TrainingTable::note_waiting(std::int64_t id) {
  if (waiting_stamps_.get(id) == stamp_) return;
  waiting_stamps_.set(id, stamp_);
  waiting_.note(id, stamp_);
}

// Ids that were admitted or erased long ago need no stamp: no caller asks so far back.
void TrainingTable::forget_waiting() {
  if (waiting_stamps_.size() < 2 * seen_.size() + kWaitingSlack) return;
  IdIndex kept;
  waiting_stamps_.each([&](std::int64_t id, std::uint32_t stamp) {
    if (seen_.get(id) != 0 || stamp + kWaitingStamps > stamp_) kept.set(id, stamp);
  });
  waiting_stamps_ = std::move(kept);
}

std::uint32_t TrainingTable::latest(std::int64_t id) const {
  const std::uint32_t slot = index_.get(id);
  return slot == 0 ? 0 : uses_[slot].stamp;
}

std::vector<std::int64_t> TrainingTable::changed_between(std::uint32_t after, std::uint32_t upto) const {
  if (tier_ == nullptr) {
    return changes_.between(after, upto, [this](std::int64_t id) { return latest(id); });
  }
  // Rows come and go between two stamps, so a log would grow with every coming; those here are few.
  std::vector<std::int64_t> ids;
  for (std::size_t slot = 0; slot < tier_->slots.size(); ++slot) {
    const std::uint32_t at = uses_[slot].stamp;
    if (tier_->slots[slot].live && at > after && at <= upto) ids.push_back(tier_->slots[slot].id);
  }
  std::sort(ids.begin(), ids.end());
  return ids;
}

std::vector<std::int64_t> TrainingTable::changed_since(std::uint32_t stamp) const {
  const std::lock_guard lock(mutex_);
  return changed_between(stamp, std::numeric_limits<std::uint32_t>::max());
}

std::vector<std::int64_t> TrainingTable::expired(std::uint32_t stamp) const {
  const std::lock_guard lock(mutex_);
  return changed_between(0, stamp);
}

std::vector<std::int64_t> TrainingTable::removed_since(std::uint32_t stamp) const {
  const std::lock_guard lock(mutex_);
  std::vector<std::int64_t> ids;
  removed_.each([&](std::int64_t id, std::uint32_t at) {
    if (at > stamp) ids.push_back(id);
  });
  std::sort(ids.begin(), ids.end());
  return ids;
}

IdStamps TrainingTable::removed() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::pair<std::int64_t, std::uint32_t>> order;
  removed_.each([&](std::int64_t id, std::uint32_t at) { order.emplace_back(id, at); });
  std::sort(order.begin(), order.end());
  IdStamps all;
  for (const auto& [id, at] : order) {
    all.ids.push_back(id);
    all.stamps.push_back(at);
  }
  return all;
}

void TrainingTable::forget_removed(std::uint32_t upto_stamp) {
  const std::lock_guard lock(mutex_);
  std::vector<std::int64_t> ids;
  removed_.each([&](std::int64_t id, std::uint32_t at) {
    if (at <= upto_stamp) ids.push_back(id);
  });
  for (const std::int64_t id : ids) removed_.erase(id);
  if (tier_ != nullptr) forget_removed_outside(upto_stamp);
}

IdCounts TrainingTable::waiting_since(std::uint32_t stamp) const {
  const std::lock_guard lock(mutex_);
  IdCounts all;
  if (stamp + kWaitingStamps < stamp_) {
    throw std::invalid_argument("waiting_since: stamp " + std::to_string(stamp) + " is too old, only the last " +
                                std::to_string(kWaitingStamps) + " before " + std::to_string(stamp_) + " are kept");
  }
  all.ids = waiting_.between(stamp, std::numeric_limits<std::uint32_t>::max(),
                             [this](std::int64_t id) { return waiting_stamps_.get(id); });
  for (const std::int64_t id : all.ids) all.counts.push_back(seen_.get(id));
  return all;
}

}  // namespace emberline
