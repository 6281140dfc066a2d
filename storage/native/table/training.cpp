#include "table/training.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <string>

#include "table/pipeline.h"

namespace emberline {

float initial_value(std::uint64_t seed, std::int64_t id, std::uint32_t j, float scale) {
  const std::uint64_t bits = mix(mix_id(id) + mix(seed) + j * 0x9E3779B97F4A7C15ull) >> 40;
  return scale * (static_cast<float>(bits) * 0x1p-23f - 1.0f);
}

void pool_backward(const std::int64_t* offsets, std::size_t batch, std::uint32_t dim, Pooling pooling,
                   const float* grad, float* grads) {
  for (std::size_t b = 0; b < batch; ++b, grad += dim) {
    const std::int64_t n = offsets[b + 1] - offsets[b];
    for (std::int64_t i = 0; i < n; ++i, grads += dim) {
      if (pooling == Pooling::kMean) {
        for (std::uint32_t d = 0; d < dim; ++d) grads[d] = grad[d] / static_cast<float>(n);
      } else {
        std::memcpy(grads, grad, dim * sizeof(float));
      }
    }
  }
}

TrainingTable::TrainingTable(std::uint32_t dim, std::uint32_t slots, std::uint64_t seed, float init_scale,
                             std::uint32_t admit_after, bool tiered)
    : table_(dim, slots, 0), seed_(seed), init_scale_(init_scale), admit_after_(admit_after), tiered_(tiered) {
  if (!(init_scale >= 0) || std::isinf(init_scale)) {
    throw std::invalid_argument("init_scale: must be 0 or more, got " + std::to_string(init_scale));
  }
}

std::size_t TrainingTable::memory_bytes() const {
  const std::lock_guard lock(mutex_);
  return table_.memory_bytes() + uses_.capacity() * sizeof(Use) + seen_.bytes() + removed_.bytes() + changes_.bytes() +
         waiting_.bytes() + waiting_stamps_.bytes() + tiers_.capacity() * sizeof(Tier) + settled_.bytes();
}

std::size_t TrainingTable::lookup(const std::int64_t* ids, std::size_t n, float* out, bool train, float initial_slot,
                                  const SideRows& side) {
  const std::lock_guard lock(mutex_);
  find_rows(ids, n, train, initial_slot);
  add_side(ids, n, side);
  const std::size_t bytes = dim() * sizeof(float);
  std::size_t hits = 0;
  for (std::size_t i = 0; i < n; ++i, out += dim()) {
    if (rows_[i] == nullptr) {
      std::memset(out, 0, bytes);
    } else {
      std::memcpy(out, rows_[i], bytes);
      ++hits;
    }
  }
  return hits;
}

std::size_t TrainingTable::pool(const std::int64_t* values, const std::int64_t* offsets, std::size_t batch,
                                std::size_t value_count, Pooling pooling, float* out, bool train, float initial_slot,
                                const SideRows& side) {
  check_offsets(offsets, batch, value_count, "offsets");
  const std::lock_guard lock(mutex_);
  find_rows(values, value_count, train, initial_slot);
  add_side(values, value_count, side);
  for (std::size_t b = 0; b < batch; ++b) {
    pool_rows(table_.format(), rows_.data() + offsets[b], nullptr,
              static_cast<std::size_t>(offsets[b + 1] - offsets[b]), pooling, out + b * dim());
  }
  return value_count - static_cast<std::size_t>(std::count(
                           rows_.begin(), rows_.begin() + static_cast<std::ptrdiff_t>(value_count), nullptr));
}

// Fills rows_ and slots_.
void TrainingTable::locate_rows(const std::int64_t* ids, std::size_t n) {
  if (rows_.size() < n) {
    rows_.resize(n);
    slots_.resize(n);
  }
  TablePipeline(table_, ids, n, rows_.data(), slots_.data()).advance(n);
}

// Fills rows_; all occurrences of an id in one call see the same row, also the call in which it is admitted.
void TrainingTable::find_rows(const std::int64_t* ids, std::size_t n, bool train, float initial_slot) {
  locate_rows(ids, n);
  if (!train) return;
  bool created = false;
  for (std::size_t i = 0; i < n; ++i) {
    if (slots_[i] == kEmptySlot && created) slots_[i] = table_.locate(ids[i]);
    if (slots_[i] != kEmptySlot) {
      touch(ids[i], slots_[i]);
      std::uint32_t& count = uses_[slots_[i]].count;
      count += count != std::numeric_limits<std::uint32_t>::max();
      continue;
    }
    std::uint32_t count = 1;
    if (admit_after_ > 1) {
      std::uint32_t& seen = seen_[ids[i]];
      count = ++seen;
      note_waiting(ids[i]);
      if (count < admit_after_) continue;
      seen_.erase(ids[i]);
    }
    slots_[i] = admit(ids[i], count, initial_slot);
    created = true;
  }
  if (!created) return;
  for (std::size_t i = 0; i < n; ++i) {
    if (rows_[i] != nullptr) continue;
    const std::uint32_t slot = slots_[i] != kEmptySlot ? slots_[i] : table_.locate(ids[i]);
    if (slot != kEmptySlot) rows_[i] = table_.address(slot);
  }
}

std::uint32_t TrainingTable::admit(std::int64_t id, std::uint32_t count, float initial_slot) {
  const std::uint32_t slot = table_.create(id);
  float* row = table_.row(slot);
  for (std::uint32_t j = 0; j < dim(); ++j) row[j] = initial_value(seed_, id, j, init_scale_);
  std::fill_n(row + dim(), slots(), initial_slot);
  set_use(id, slot, {count, stamp_});
  return slot;
}

// Notes a row that is new, or whose count and stamp come from outside.
void TrainingTable::set_use(std::int64_t id, std::uint32_t slot, Use use) {
  if (uses_.size() <= slot) {
    const std::size_t size = std::max<std::size_t>(std::size_t{slot} + 1, uses_.size() * 5 / 4);
    uses_.reserve(size);  // a vector that grows by itself doubles
    uses_.resize(size);
    if (tiered_) {
      tiers_.reserve(size);
      tiers_.resize(size);
    }
  }
  uses_[slot] = use;
  if (tiered_) {
    tiers_[slot] = {tiers_[slot].live ? tiers_[slot].written : 0, batch_, 1, true, true};
  }
  removed_.erase(id);
  changes_.note(id, use.stamp);
}

void TrainingTable::note_waiting(std::int64_t id) {
  std::uint32_t& stamp = waiting_stamps_[id];
  if (stamp == stamp_) return;
  stamp = stamp_;
  waiting_.note(id, stamp_);
}

std::uint32_t TrainingTable::latest(std::int64_t id) const {
  const std::uint32_t slot = table_.locate(id);
  return slot == kEmptySlot ? 0 : uses_[slot].stamp;
}

// Adds up the gradients of each row that exists, in the order given: stepped_ and sums_, one entry a row.
std::size_t TrainingTable::gather_gradients(const std::int64_t* ids, std::size_t n, const float* grads) {
  locate_rows(ids, n);
  positions_.clear();
  stepped_.clear();
  sums_.clear();
  const std::size_t width = dim();
  for (std::size_t i = 0; i < n; ++i) {
    if (slots_[i] == kEmptySlot) continue;
    const float* grad = grads + i * width;
    std::uint32_t& position = positions_[ids[i]];
    if (position == 0) {
      touch(ids[i], slots_[i]);
      stepped_.push_back(slots_[i]);
      position = static_cast<std::uint32_t>(stepped_.size());
      sums_.insert(sums_.end(), grad, grad + width);
    } else {
      float* sum = sums_.data() + (position - 1) * width;
      for (std::size_t d = 0; d < width; ++d) sum[d] += grad[d];
    }
  }
  return stepped_.size();
}

std::size_t TrainingTable::adagrad(const std::int64_t* ids, std::size_t n, const float* grads, float lr, float eps) {
  const std::lock_guard lock(mutex_);
  const std::uint32_t width = dim();
  if (slots() != width) {
    throw std::invalid_argument("adagrad: needs slots == dim (" + std::to_string(width) + "), the table has " +
                                std::to_string(slots()));
  }
  const std::size_t count = gather_gradients(ids, n, grads);
  for (std::size_t k = 0; k < count; ++k) {
    float* __restrict row = table_.row(stepped_[k]);
    const float* __restrict grad = sums_.data() + k * width;
    for (std::uint32_t d = 0; d < width; ++d) {
      const float squares = row[width + d] + grad[d] * grad[d];
      row[width + d] = squares;
      row[d] -= lr * grad[d] / (std::sqrt(squares) + eps);
    }
  }
  return count;
}

std::size_t TrainingTable::sgd(const std::int64_t* ids, std::size_t n, const float* grads, float lr) {
  const std::lock_guard lock(mutex_);
  const std::uint32_t width = dim();
  const std::size_t count = gather_gradients(ids, n, grads);
  for (std::size_t k = 0; k < count; ++k) {
    float* __restrict row = table_.row(stepped_[k]);
    const float* __restrict grad = sums_.data() + k * width;
    for (std::uint32_t d = 0; d < width; ++d) row[d] -= lr * grad[d];
  }
  return count;
}

TrainingRows TrainingTable::export_rows() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::pair<std::int64_t, std::uint32_t>> order;
  order.reserve(table_.size());
  table_.each([&](std::int64_t id, std::uint32_t slot) { order.emplace_back(id, slot); });
  std::sort(order.begin(), order.end());
  TrainingRows all;
  all.ids.reserve(order.size());
  all.rows.reserve(order.size() * dim());
  all.slots.reserve(order.size() * slots());
  all.counts.reserve(order.size());
  all.stamps.reserve(order.size());
  for (const auto& [id, slot] : order) fill(all, id, slot);
  return all;
}

TrainingRows TrainingTable::export_ids(const std::int64_t* ids, std::size_t n) const {
  const std::lock_guard lock(mutex_);
  TrainingRows all;
  for (std::size_t i = 0; i < n; ++i) {
    const std::uint32_t slot = table_.locate(ids[i]);
    if (slot == kEmptySlot) throw std::invalid_argument("ids: id " + std::to_string(ids[i]) + " has no row");
    fill(all, ids[i], slot);
  }
  return all;
}

void TrainingTable::fill(TrainingRows& all, std::int64_t id, std::uint32_t slot) const {
  const float* row = table_.row(slot);
  all.ids.push_back(id);
  all.rows.insert(all.rows.end(), row, row + dim());
  all.slots.insert(all.slots.end(), row + dim(), row + dim() + slots());
  all.counts.push_back(uses_[slot].count);
  all.stamps.push_back(uses_[slot].stamp);
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
                            const std::uint32_t* counts, const std::uint32_t* stamps) {
  const std::lock_guard lock(mutex_);
  table_.reserve(table_.size() + n);
  for (std::size_t i = 0; i < n; ++i) {
    check_stamp(stamps[i]);
    std::uint32_t slot = table_.locate(ids[i]);
    if (slot == kEmptySlot) slot = table_.create(ids[i]);
    float* row = table_.row(slot);
    std::memcpy(row, rows + i * dim(), dim() * sizeof(float));
    if (slots() > 0) std::memcpy(row + dim(), slot_values + i * slots(), slots() * sizeof(float));
    set_use(ids[i], slot, {counts[i], stamps[i]});
    seen_.erase(ids[i]);
  }
}

void TrainingTable::restore_counts(const std::int64_t* ids, std::size_t n, const std::uint32_t* counts) {
  const std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < n; ++i) {
    if (counts[i] == 0) {
      seen_.erase(ids[i]);
    } else if (table_.locate(ids[i]) == kEmptySlot) {
      seen_[ids[i]] = counts[i];
    }
  }
}

void TrainingTable::restore_removed(const std::int64_t* ids, std::size_t n, const std::uint32_t* stamps) {
  const std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < n; ++i) {
    if (table_.locate(ids[i]) == kEmptySlot && stamps[i] > 0) removed_[ids[i]] = stamps[i];
  }
}

std::size_t TrainingTable::erase(const std::int64_t* ids, std::size_t n) {
  const std::lock_guard lock(mutex_);
  std::size_t erased = 0;
  for (std::size_t i = 0; i < n; ++i) {
    if (const std::uint32_t* seen = seen_.find(ids[i]); seen != nullptr) {
      seen_.erase(ids[i]);
      note_waiting(ids[i]);
    }
    const std::uint32_t slot = tiered_ ? table_.locate(ids[i]) : kEmptySlot;
    if (table_.erase(&ids[i], 1) == 0) continue;
    if (slot != kEmptySlot) tiers_[slot] = {};
    removed_[ids[i]] = stamp_;
    ++erased;
  }
  return erased;
}

std::uint32_t TrainingTable::stamp() const {
  const std::lock_guard lock(mutex_);
  return stamp_;
}

std::uint32_t TrainingTable::advance() {
  const std::lock_guard lock(mutex_);
  if (stamp_ == std::numeric_limits<std::uint32_t>::max()) throw std::invalid_argument("advance: no stamp is left");
  changes_.compact(table_.size(), [this](std::int64_t id) { return latest(id); });
  forget_waiting();
  waiting_.compact(waiting_stamps_.size(), [this](std::int64_t id) { return last_waiting(id); });
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

// Ids that were admitted or erased long ago need no stamp: no caller asks so far back.
void TrainingTable::forget_waiting() {
  if (waiting_stamps_.size() < 2 * seen_.size() + kWaitingSlack) return;
  IdMap kept;
  waiting_stamps_.each([&](std::int64_t id, std::uint32_t stamp) {
    if (seen_.find(id) != nullptr || stamp + kWaitingStamps > stamp_) kept[id] = stamp;
  });
  waiting_stamps_ = std::move(kept);
}

std::uint32_t TrainingTable::last_waiting(std::int64_t id) const {
  const std::uint32_t* stamp = waiting_stamps_.find(id);
  return stamp == nullptr ? 0 : *stamp;
}

std::vector<std::int64_t> TrainingTable::changed_since(std::uint32_t stamp) const {
  const std::lock_guard lock(mutex_);
  return changes_.between(stamp, std::numeric_limits<std::uint32_t>::max(),
                          [this](std::int64_t id) { return latest(id); });
}

std::vector<std::int64_t> TrainingTable::expired(std::uint32_t stamp) const {
  const std::lock_guard lock(mutex_);
  return changes_.between(0, stamp, [this](std::int64_t id) { return latest(id); });
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
}

IdCounts TrainingTable::waiting_since(std::uint32_t stamp) const {
  const std::lock_guard lock(mutex_);
  IdCounts all;
  if (stamp + kWaitingStamps < stamp_) {
    throw std::invalid_argument("waiting_since: stamp " + std::to_string(stamp) + " is too old, only the last " +
                                std::to_string(kWaitingStamps) + " before " + std::to_string(stamp_) + " are kept");
  }
  all.ids = waiting_.between(stamp, std::numeric_limits<std::uint32_t>::max(),
                             [this](std::int64_t id) { return last_waiting(id); });
  for (const std::int64_t id : all.ids) {
    const std::uint32_t* seen = seen_.find(id);
    all.counts.push_back(seen == nullptr ? 0 : *seen);
  }
  return all;
}

}  // namespace emberline
