// A training table of which a part lies in a store: rows that come in, rows that may leave, ids that only the store can
// answer.
//
// The caller moves the rows, under these rules: a row leaves (let_go) after the store has taken it (pack), and an id
// that only the store can answer (unknown) is asked for there, and brought or settled, before training looks it up.
// Then the table behaves as with every row in it, to the bit: a record carries all that a row is.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>

#include "training/training_table.h"

namespace emberline {
namespace {

// Heats are halved after so many uses a row, so that what was hot long ago does not stay.
constexpr std::uint64_t kUsesPerRow = 32;
constexpr std::size_t kHeats = 256;  // above, rows are equally hot: they are the last to leave
constexpr std::size_t kHead = 3 * sizeof(std::uint32_t);

}  // namespace

void TrainingTable::begin() {
  const std::lock_guard lock(mutex_);
  ++batch_;
  settled_.clear();
}

void TrainingTable::use_now(std::uint32_t slot) {
  Tier& tier = tiers_[slot];
  if (tier.used == batch_) return;
  tier.used = batch_;
  tier.heat =
      static_cast<std::uint16_t>(std::min<std::uint32_t>(tier.heat + 1u, std::numeric_limits<std::uint16_t>::max()));
  ++marks_;
}

std::vector<std::int64_t> TrainingTable::unknown(const std::int64_t* ids, std::size_t n, bool hold,
                                                 std::size_t* rowless) {
  const std::lock_guard lock(mutex_);
  positions_.clear();
  std::vector<std::int64_t> found;
  for (std::size_t i = 0; i < n; ++i) {
    if (const std::uint32_t slot = index_.get(ids[i]); slot != 0) {
      if (hold) use_now(slot);
      continue;
    }
    std::uint32_t& met = positions_[ids[i]];
    if (met != 0) continue;
    met = 1;
    if (seen_.get(ids[i]) == 0 && removed_.get(ids[i]) == 0 && settled_.find(ids[i]) == nullptr) {
      found.push_back(ids[i]);
    }
  }
  if (rowless != nullptr) *rowless = positions_.size();
  return found;
}

void TrainingTable::settle(const std::int64_t* ids, std::size_t n) {
  const std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < n; ++i) settled_[ids[i]] = 1;
}

void TrainingTable::bring(const std::int64_t* ids, std::size_t n, const std::uint8_t* records) {
  const std::lock_guard lock(mutex_);
  const std::size_t bytes = record_bytes();
  for (std::size_t i = 0; i < n; ++i, records += bytes) {
    if (index_.get(ids[i]) != 0) continue;
    Use use;
    static_assert(sizeof(Use) == kHead);
    std::memcpy(&use, records, kHead);
    const std::uint32_t slot = create(ids[i], use);
    std::memcpy(row(slot), records + kHead, bytes - kHead);
    // Its heat is not kept outside; how often it was ever used says something of it.
    tiers_[slot] = {use.stamp, batch_, static_cast<std::uint16_t>(std::bit_width(use.count)), true, false};
    ++marks_;
  }
}

void TrainingTable::bring_bare(const std::int64_t* ids, std::size_t n, const std::uint32_t* counts,
                               const std::uint32_t* waiting, const std::uint32_t* removed) {
  const std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < n; ++i) {
    if (index_.get(ids[i]) != 0 || seen_.get(ids[i]) != 0 || removed_.get(ids[i]) != 0) continue;
    if (counts[i] > 0) {
      seen_.set(ids[i], counts[i]);
      if (waiting[i] > 0) {
        waiting_stamps_.set(ids[i], waiting[i]);
        waiting_.note(ids[i], waiting[i]);
      }
    }
    if (removed[i] > 0) removed_.set(ids[i], removed[i]);
  }
}

// Orders by heat, then by age. Two passes over small counters find the bounds, so that no list of all rows is made.
std::vector<std::int64_t> TrainingTable::coldest(std::size_t n) {
  const std::lock_guard lock(mutex_);
  const auto heat_of = [](const Tier& tier) { return std::min<std::size_t>(tier.heat, kHeats - 1); };
  const auto may_leave = [this](const Tier& tier) { return tier.live && tier.used != batch_; };
  std::size_t counts[kHeats] = {};
  const auto each = [this](auto visit) {
    for (std::size_t slot = 0; slot < tiers_.size(); ++slot) visit(tiers_[slot]);
  };
  each([&](const Tier& tier) {
    if (may_leave(tier)) ++counts[heat_of(tier)];
  });
  std::size_t bound = 0;  // rows below this heat leave, and of those at it the oldest
  std::size_t below = 0;
  while (bound < kHeats && below + counts[bound] <= n) below += counts[bound++];
  std::vector<std::uint32_t> ages;
  std::uint32_t newest = 0;  // rows at the bound that were used before this batch leave
  if (bound < kHeats && below < n) {
    ages.reserve(counts[bound]);
    each([&](const Tier& tier) {
      if (may_leave(tier) && heat_of(tier) == bound) ages.push_back(tier.used);
    });
    const auto at = ages.begin() + static_cast<std::ptrdiff_t>(n - below);
    std::nth_element(ages.begin(), at, ages.end());
    newest = *at;
  }
  std::vector<std::int64_t> ids;
  std::vector<std::int64_t> ties;
  index_.each([&](std::int64_t id, std::uint32_t slot) {
    const Tier& tier = tiers_[slot];
    if (!may_leave(tier) || heat_of(tier) > bound) return;
    if (heat_of(tier) < bound || tier.used < newest) {
      ids.push_back(id);
    } else if (tier.used == newest && ids.size() + ties.size() < n) {
      ties.push_back(id);
    }
  });
  const std::size_t room = n - std::min(n, ids.size());
  ids.insert(ids.end(), ties.begin(), ties.begin() + static_cast<std::ptrdiff_t>(std::min(ties.size(), room)));
  std::sort(ids.begin(), ids.end());
  age();
  return ids;
}

void TrainingTable::age() {
  if (marks_ < kUsesPerRow * index_.size()) return;
  marks_ = 0;
  for (std::size_t slot = 0; slot < tiers_.size(); ++slot) {
    tiers_[slot].heat = static_cast<std::uint16_t>(tiers_[slot].heat / 2);
  }
}

std::size_t TrainingTable::held() const {
  const std::lock_guard lock(mutex_);
  std::size_t count = 0;
  for (std::size_t slot = 0; slot < tiers_.size(); ++slot) count += tiers_[slot].live && tiers_[slot].used == batch_;
  return count;
}

PackedRows TrainingTable::pack(const std::int64_t* ids, std::size_t n) const {
  const std::lock_guard lock(mutex_);
  const std::size_t bytes = record_bytes();
  PackedRows all;
  all.records.resize(n * bytes);
  all.stamps.reserve(n);
  all.written.reserve(n);
  all.dirty.reserve(n);
  std::uint8_t* record = all.records.data();
  for (std::size_t i = 0; i < n; ++i, record += bytes) {
    const std::uint32_t slot = index_.get(ids[i]);
    if (slot == 0) throw std::invalid_argument("ids: id " + std::to_string(ids[i]) + " has no row here");
    std::memcpy(record, &uses_[slot], kHead);
    std::memcpy(record + kHead, row(slot), bytes - kHead);
    all.stamps.push_back(uses_[slot].stamp);
    all.written.push_back(tiers_[slot].written);
    all.dirty.push_back(tiers_[slot].dirty ? 1 : 0);
  }
  return all;
}

std::vector<std::uint8_t> TrainingTable::encode(std::size_t n, const float* rows, const float* slot_values,
                                                const std::uint32_t* counts, const std::uint32_t* stamps,
                                                const std::uint32_t* ticks) const {
  const std::lock_guard lock(mutex_);
  const std::size_t bytes = record_bytes();
  const std::size_t row_bytes = dim() * sizeof(float);
  std::vector<std::uint8_t> records(n * bytes);
  std::uint8_t* record = records.data();
  for (std::size_t i = 0; i < n; ++i, record += bytes) {
    check_stamp(stamps[i]);
    const Use use{counts[i], stamps[i], ticks == nullptr ? tick_ : ticks[i]};
    std::memcpy(record, &use, kHead);
    std::memcpy(record + kHead, rows + i * dim(), row_bytes);
    if (slots() > 0) std::memcpy(record + kHead + row_bytes, slot_values + i * slots(), bytes - kHead - row_bytes);
  }
  return records;
}

void TrainingTable::let_go(const std::int64_t* ids, std::size_t n) {
  const std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < n; ++i) {
    const std::uint32_t slot = index_.get(ids[i]);
    if (slot == 0) continue;
    remove(ids[i], slot);
    settled_.erase(ids[i]);
  }
  // Rows come and go between two stamps: without this the log would grow with every coming.
  changes_.compact(index_.size(), [this](std::int64_t id) { return latest(id); });
}

void TrainingTable::forget(const std::int64_t* ids, std::size_t n) {
  const std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < n; ++i) {
    seen_.erase(ids[i]);
    removed_.erase(ids[i]);
    settled_.erase(ids[i]);
  }
}

BareIds TrainingTable::pack_bare() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::int64_t> ids;
  std::vector<std::int64_t> lost;
  ids.reserve(seen_.size() + removed_.size());
  seen_.each([&](std::int64_t id, std::uint32_t) { ids.push_back(id); });
  removed_.each([&](std::int64_t id, std::uint32_t) {
    if (seen_.get(id) == 0) ids.push_back(id);
  });
  waiting_stamps_.each([&](std::int64_t id, std::uint32_t) {
    if (seen_.get(id) == 0 && removed_.get(id) == 0) lost.push_back(id);
  });
  std::sort(ids.begin(), ids.end());
  std::sort(lost.begin(), lost.end());
  BareIds all;
  ids.insert(ids.end(), lost.begin(), lost.end());
  all.counts.reserve(ids.size());
  all.waiting.reserve(ids.size());
  all.removed.reserve(ids.size());
  for (const std::int64_t id : ids) {
    all.counts.push_back(seen_.get(id));
    all.waiting.push_back(waiting_stamps_.get(id));
    all.removed.push_back(removed_.get(id));
  }
  all.ids = std::move(ids);
  return all;
}

void TrainingTable::drop_bare() {
  const std::lock_guard lock(mutex_);
  seen_.clear();
  removed_.clear();
  waiting_stamps_.clear();
  waiting_ = ChangeLog();
  settled_.clear();
}

std::size_t TrainingTable::bare_size() const {
  const std::lock_guard lock(mutex_);
  return std::max(seen_.size(), waiting_stamps_.size()) + removed_.size();
}

std::size_t TrainingTable::waiting_size() const {
  const std::lock_guard lock(mutex_);
  if (bloom_ == nullptr) return seen_.size();
  const auto seen = static_cast<std::size_t>(std::llround(bloom_->ids()));
  return seen - std::min<std::size_t>(seen, index_.size());
}

std::vector<std::int64_t> TrainingTable::row_ids() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::int64_t> ids;
  ids.reserve(index_.size());
  index_.each([&](std::int64_t id, std::uint32_t) { ids.push_back(id); });
  std::sort(ids.begin(), ids.end());
  return ids;
}

std::vector<std::uint8_t> TrainingTable::has_row(const std::int64_t* ids, std::size_t n) const {
  const std::lock_guard lock(mutex_);
  std::vector<std::uint8_t> found(n);
  for (std::size_t i = 0; i < n; ++i) found[i] = index_.get(ids[i]) != 0;
  return found;
}

std::vector<std::uint8_t> TrainingTable::has_waited(const std::int64_t* ids, std::size_t n) const {
  const std::lock_guard lock(mutex_);
  std::vector<std::uint8_t> found(n);
  for (std::size_t i = 0; i < n; ++i) found[i] = waiting_stamps_.get(ids[i]) != 0;
  return found;
}

std::vector<std::uint32_t> TrainingTable::written(const std::int64_t* ids, std::size_t n) const {
  const std::lock_guard lock(mutex_);
  std::vector<std::uint32_t> stamps(n);
  for (std::size_t i = 0; i < n; ++i) {
    const std::uint32_t slot = index_.get(ids[i]);
    stamps[i] = slot == 0 ? 0 : tiers_[slot].written;
  }
  return stamps;
}

}  // namespace emberline
