// Which rows of a training table are idle: a part of them at a time.
#include <algorithm>
#include <stdexcept>
#include <string>

#include "training/training_table.h"

namespace emberline {
namespace {

constexpr std::size_t kAhead = 16;

}  // namespace

std::uint32_t TrainingTable::tick() const {
  const std::lock_guard lock(mutex_);
  return tick_;
}

void TrainingTable::set_tick(std::uint32_t tick) {
  const std::lock_guard lock(mutex_);
  if (tick < tick_) {
    throw std::invalid_argument("tick: " + std::to_string(tick) + " has passed, the table is at " +
                                std::to_string(tick_));
  }
  tick_ = tick;
}

bool TrainingTable::is_idle(std::uint32_t tick, const float* row, const IdleRows& wanted) const {
  if (tick <= wanted.unused) return true;
  if (tick <= wanted.norm_after || tick > wanted.norm_upto) return false;
  return optimizer_loops().squares(row, dim()) < wanted.norm * wanted.norm;
}

std::vector<std::int64_t> TrainingTable::idle(std::uint32_t part, const IdleRows& wanted) {
  if (!options_.evicts) throw std::invalid_argument("idle: the table was made without `evicts`");
  if (part >= RowParts::kParts) {
    throw std::invalid_argument("part: must be below " + std::to_string(RowParts::kParts) + ", got " +
                                std::to_string(part));
  }
  const std::lock_guard lock(mutex_);
  const std::vector<std::int64_t>& ids = parts_->ids(part, [this](std::int64_t id) { return index_.get(id) != 0; });
  std::vector<std::int64_t> found;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (i + kAhead < ids.size()) __builtin_prefetch(&uses_[index_.get(ids[i + kAhead])], 0, 3);
    const std::uint32_t slot = index_.get(ids[i]);
    const std::uint32_t tick = uses_[slot].tick;
    if (is_idle(tick, row(slot), wanted)) found.push_back(ids[i]);
  }
  if (tier_ != nullptr) add_idle_outside(part, wanted, found);
  return found;
}

}  // namespace emberline
