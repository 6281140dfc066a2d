#include "table/lookup.h"

#include <algorithm>
#include <stdexcept>

#include "table/pooling.h"

namespace emberline {

Lookup::Lookup(std::vector<std::shared_ptr<Table>> tables, std::vector<FeatureLookup> features)
    : tables_(std::move(tables)), features_(std::move(features)), missing_(tables_.size()) {
  for (const FeatureLookup& feature : features_) {
    if (feature.table >= tables_.size()) throw std::invalid_argument("a feature names a table that was not given");
    if (feature.pooling == Pooling::kNone && feature.length == 0) throw std::invalid_argument("pooling none needs a length above 0");
  }
}

size_t Lookup::begin(uint64_t batch, const std::vector<FeatureBatch>& inputs) {
  inputs_ = inputs;
  counts_ = {};
  late_bags_.clear();
  late_.clear();
  late_rows_.clear();
  for (Missing& missing : missing_) {
    missing.ids.clear();
    missing.positions.clear();
    missing.state.clear();
  }
  {
    const Epochs::Guard guard(Epochs::global());
    for (uint32_t number = 0; number < features_.size(); ++number) run_feature(number, batch, inputs[number]);
  }
  size_t total = 0;
  for (const Missing& missing : missing_) total += missing.ids.size();
  return total;
}

void Lookup::run_feature(uint32_t number, uint64_t batch, const FeatureBatch& input) {
  constexpr uint64_t kChunk = 256;  // ids resolved ahead of their use: their rows are on the way into L2
  const FeatureLookup& feature = features_[number];
  const Table& table = *tables_[feature.table];
  const size_t dim = table.dim();
  uint64_t bag = 0;
  while (bag < batch) {
    // As many whole bags as fill a chunk; a single long bag makes a chunk of its own.
    uint64_t end = bag + 1;
    while (end < batch && input.offsets[end + 1] - input.offsets[bag] <= static_cast<int64_t>(kChunk)) ++end;
    const int64_t first = input.offsets[bag];
    const size_t n = static_cast<size_t>(input.offsets[end] - first);
    if (slots_.size() < n) slots_.resize(n);
    table.resolve(input.values + first, n, slots_.data());
    for (; bag < end; ++bag) {
      const uint64_t given = static_cast<uint64_t>(input.offsets[bag + 1] - input.offsets[bag]);
      const uint64_t used = feature.pooling == Pooling::kNone ? std::min<uint64_t>(given, feature.length) : given;
      const uint32_t* slots = slots_.data() + (input.offsets[bag] - first);
      const size_t hits = used - static_cast<size_t>(std::count(slots, slots + used, kEmptySlot));
      counts_.resident += hits;
      if (hits < used) {
        set_aside(number, bag, input.values + input.offsets[bag], slots, used);
        continue;
      }
      if (feature.pooling == Pooling::kNone) {
        float* out = input.output + bag * feature.length * dim;
        for (uint64_t i = 0; i < used; ++i) copy_row(out + i * dim, table.row(slots[i]), dim);
        std::memset(out + used * dim, 0, (feature.length - used) * dim * sizeof(float));
        uint8_t* mask = input.mask + bag * feature.length;
        std::memset(mask, 1, used);
        std::memset(mask + used, 0, feature.length - used);
        continue;
      }
      float* out = input.output + bag * dim;
      if (used == 0) {
        zero_row(out, dim);
        continue;
      }
      copy_row(out, table.row(slots[0]), dim);
      for (uint64_t i = 1; i < used; ++i) add_row(out, table.row(slots[i]), dim);
      if (feature.pooling == Pooling::kMean) divide_row(out, dim, used);
    }
  }
}

void Lookup::set_aside(uint32_t number, uint64_t bag, const int64_t* values, const uint32_t* slots, uint64_t count) {
  const Table& table = *tables_[features_[number].table];
  Missing& missing = missing_[features_[number].table];
  late_bags_.push_back({number, bag, late_.size(), count});
  for (uint64_t i = 0; i < count; ++i) {
    if (slots[i] == kEmptySlot) {
      const auto [entry, added] = missing.positions.try_emplace(values[i], static_cast<uint32_t>(missing.ids.size()));
      if (added) missing.ids.push_back(values[i]);
      late_.push_back({false, entry->second});
    } else {
      late_.push_back({true, late_rows_.size()});
      const float* row = table.row(slots[i]);
      late_rows_.insert(late_rows_.end(), row, row + table.dim());
    }
  }
}

void Lookup::supply(size_t number, const float* rows, const uint8_t* state) {
  Missing& missing = missing_[number];
  const size_t m = missing.ids.size();
  missing.rows.assign(rows, rows + m * tables_[number]->dim());
  missing.state.assign(state, state + m);
}

void Lookup::finish_bag(const LateBag& late) {
  const FeatureLookup& feature = features_[late.feature];
  const FeatureBatch& input = inputs_[late.feature];
  const Missing& missing = missing_[feature.table];
  const size_t dim = tables_[feature.table]->dim();
  const bool pooled = feature.pooling != Pooling::kNone;
  float* out = input.output + late.bag * dim * (pooled ? 1 : feature.length);
  std::memset(out, 0, dim * (pooled ? 1 : feature.length) * sizeof(float));
  if (!pooled) std::memset(input.mask + late.bag * feature.length, 0, feature.length);
  bool first = true;
  for (uint64_t i = 0; i < late.count; ++i) {
    const LateId& id = late_[late.first + i];
    const float* row = nullptr;
    if (id.resident) {
      row = late_rows_.data() + id.at;
    } else {
      switch (static_cast<RowState>(missing.state[id.at])) {
        case RowState::kFound:
          row = missing.rows.data() + id.at * dim;
          ++counts_.supplied;
          break;
        case RowState::kAbsent:
          ++counts_.absent;
          break;
        case RowState::kUnresolved:
          ++counts_.unresolved;
          break;
      }
    }
    if (row == nullptr) continue;
    if (!pooled) {
      copy_row(out + i * dim, row, dim);
      input.mask[late.bag * feature.length + i] = 1;
    } else if (first) {
      copy_row(out, row, dim);
    } else {
      add_row(out, row, dim);
    }
    first = false;
  }
  if (feature.pooling == Pooling::kMean) divide_row(out, dim, late.count);
}

LookupCounts Lookup::finish() {
  for (size_t number = 0; number < tables_.size(); ++number) {
    if (missing_[number].state.size() != missing_[number].ids.size()) {
      throw std::logic_error("finish() before the missing rows of every table were supplied");
    }
  }
  for (const LateBag& late : late_bags_) finish_bag(late);
  late_bags_.clear();
  return counts_;
}

}  // namespace emberline
