#include "table/training.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "table/pooling.h"

namespace emberline {

TrainingTable::TrainingTable(const TrainingOptions& options) : options_(options), table_(options.dim, options.slots, 0) {}

uint32_t& TrainingTable::count_of(uint32_t slot) {
  if (slot >= counts_.size()) counts_.resize(std::max<size_t>(slot + 1, counts_.size() * 2));
  return counts_[slot];
}

uint32_t TrainingTable::slot_for(int64_t id, bool train, float initial_slot) {
  uint32_t slot = table_.slot_of(id);
  if (!train) return slot;
  if (slot != kEmptySlot) {
    uint32_t& count = count_of(slot);
    count += count != UINT32_MAX;
    return slot;
  }
  uint32_t seen = 1;
  if (options_.admit_after > 1) {
    seen = ++waiting_[id];
    if (seen < options_.admit_after) return kEmptySlot;
    waiting_.erase(id);
  }
  slot = table_.create(id);
  count_of(slot) = seen;
  float* row = table_.row_in_place(slot);
  for (uint32_t d = 0; d < options_.dim; ++d) {
    const uint64_t bits = mix64(mix64(static_cast<uint64_t>(id) ^ options_.seed * 0x9E3779B97F4A7C15ull) + d);
    const float unit = static_cast<float>(bits >> 40) * 0x1.0p-24f;  // [0, 1), every value exact
    row[d] = (2.0f * unit - 1.0f) * options_.init_scale;
  }
  std::fill(row + options_.dim, row + options_.dim + options_.slots, initial_slot);
  return slot;
}

size_t TrainingTable::lookup(const int64_t* ids, size_t n, float* out, bool train, float initial_slot) {
  size_t hits = 0;
  for (size_t i = 0; i < n; ++i) {
    const uint32_t slot = slot_for(ids[i], train, initial_slot);
    float* to = out + i * options_.dim;
    if (slot == kEmptySlot) {
      zero_row(to, options_.dim);
      continue;
    }
    copy_row(to, table_.row(slot), options_.dim);
    ++hits;
  }
  return hits;
}

size_t TrainingTable::pool(const int64_t* values, const int64_t* offsets, size_t bags, Pooling pooling, float* out, bool train,
                           float initial_slot) {
  const size_t dim = options_.dim;
  size_t hits = 0;
  for (size_t bag = 0; bag < bags; ++bag) {
    float* to = out + bag * dim;
    bool first = true;
    for (int64_t i = offsets[bag]; i < offsets[bag + 1]; ++i) {
      const uint32_t slot = slot_for(values[i], train, initial_slot);
      if (slot == kEmptySlot) continue;
      ++hits;
      if (first) {
        copy_row(to, table_.row(slot), dim);
      } else {
        add_row(to, table_.row(slot), dim);
      }
      first = false;
    }
    const uint64_t given = static_cast<uint64_t>(offsets[bag + 1] - offsets[bag]);
    if (first) {
      zero_row(to, dim);
    } else if (pooling == Pooling::kMean) {
      divide_row(to, dim, given);
    }
  }
  return hits;
}

size_t TrainingTable::sum_gradients(const int64_t* ids, const float* grads, size_t n) {
  const size_t dim = options_.dim;
  touched_.clear();
  touched_slots_.clear();
  sums_.clear();
  for (size_t i = 0; i < n; ++i) {
    const uint32_t slot = table_.slot_of(ids[i]);
    if (slot == kEmptySlot) continue;
    const auto [entry, added] = touched_.try_emplace(slot, static_cast<uint32_t>(touched_slots_.size()));
    if (added) {
      touched_slots_.push_back(slot);
      sums_.insert(sums_.end(), grads + i * dim, grads + (i + 1) * dim);
    } else {
      add_row(sums_.data() + entry->second * dim, grads + i * dim, dim);
    }
  }
  return touched_slots_.size();
}

// Duchi, Hazan, Singer, "Adaptive subgradient methods", 2011; epsilon outside the root, as in torch.optim.Adagrad.
size_t TrainingTable::adagrad(const int64_t* ids, const float* grads, size_t n, float learning_rate, float epsilon) {
  const size_t dim = options_.dim;
  const size_t rows = sum_gradients(ids, grads, n);
  for (size_t r = 0; r < rows; ++r) {
    float* row = table_.row_in_place(touched_slots_[r]);
    float* squares = row + dim;
    const float* gradient = sums_.data() + r * dim;
    for (size_t d = 0; d < dim; ++d) {
      squares[d] += gradient[d] * gradient[d];
      row[d] -= learning_rate * gradient[d] / (std::sqrt(squares[d]) + epsilon);
    }
  }
  return rows;
}

size_t TrainingTable::sgd(const int64_t* ids, const float* grads, size_t n, float learning_rate) {
  const size_t dim = options_.dim;
  const size_t rows = sum_gradients(ids, grads, n);
  for (size_t r = 0; r < rows; ++r) {
    float* row = table_.row_in_place(touched_slots_[r]);
    const float* gradient = sums_.data() + r * dim;
    for (size_t d = 0; d < dim; ++d) row[d] -= learning_rate * gradient[d];
  }
  return rows;
}

TrainedRows TrainingTable::export_rows() const {
  std::vector<int64_t> ids;
  std::vector<float> rows;
  std::vector<uint8_t> scores;
  for (int64_t cursor = 0; cursor >= 0;) cursor = table_.export_batch(cursor, ids.size() + 65536, ids, rows, scores);
  std::vector<size_t> order(ids.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return ids[a] < ids[b]; });

  TrainedRows out;
  out.ids.reserve(ids.size());
  out.rows.reserve(ids.size() * options_.dim);
  out.slots.reserve(ids.size() * options_.slots);
  out.counts.reserve(ids.size());
  for (size_t from : order) {
    const float* row = rows.data() + from * table_.row_floats();
    out.ids.push_back(ids[from]);
    out.rows.insert(out.rows.end(), row, row + options_.dim);
    out.slots.insert(out.slots.end(), row + options_.dim, row + table_.row_floats());
    out.counts.push_back(counts_[table_.slot_of(ids[from])]);
  }
  return out;
}

void TrainingTable::restore(const int64_t* ids, const float* rows, const float* slots, const uint32_t* counts, size_t n) {
  table_.reserve(table_.size() + n);
  for (size_t i = 0; i < n; ++i) {
    uint32_t slot = table_.slot_of(ids[i]);
    if (slot == kEmptySlot) slot = table_.create(ids[i]);
    float* row = table_.row_in_place(slot);
    std::copy_n(rows + i * options_.dim, options_.dim, row);
    std::copy_n(slots + i * options_.slots, options_.slots, row + options_.dim);
    count_of(slot) = counts[i];
  }
}

void TrainingTable::export_waiting(std::vector<int64_t>& ids, std::vector<uint32_t>& counts) const {
  ids.reserve(waiting_.size());
  for (const auto& [id, count] : waiting_) ids.push_back(id);
  std::sort(ids.begin(), ids.end());
  for (int64_t id : ids) counts.push_back(waiting_.at(id));
}

void TrainingTable::restore_waiting(const int64_t* ids, const uint32_t* counts, size_t n) {
  for (size_t i = 0; i < n; ++i) waiting_[ids[i]] = counts[i];
}

void expand_gradient(const int64_t* offsets, size_t bags, size_t dim, Pooling pooling, const float* grad, float* out) {
  for (size_t bag = 0; bag < bags; ++bag) {
    const int64_t first = offsets[bag], end = offsets[bag + 1];
    for (int64_t i = first; i < end; ++i) {
      float* to = out + static_cast<size_t>(i - offsets[0]) * dim;
      copy_row(to, grad + bag * dim, dim);
      if (pooling == Pooling::kMean) divide_row(to, dim, static_cast<uint64_t>(end - first));
    }
  }
}

}  // namespace emberline
