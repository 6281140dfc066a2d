#include "table/lookup.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

#include "table/workers.h"

namespace emberline {

Lookup::Lookup(std::vector<const RowSource*> tables, std::vector<LookupFeature> features,
               std::vector<const OverlayTable*> overlays)
    : schema_{std::move(tables), {}, std::move(features), std::move(overlays), {}}, parts_(1) {
  const std::size_t count = schema_.tables.size();
  for (const RowSource* table : schema_.tables) schema_.formats.push_back(table->format());
  missing_.resize(count);
  totals_.resize(count);
  singles_.resize(schema_.features.size());
  for (std::size_t f = 0; f < schema_.features.size(); ++f) {
    if (schema_.features[f].table >= count) {
      throw std::invalid_argument("features[" + std::to_string(f) + "]: table " +
                                  std::to_string(schema_.features[f].table) + " of " + std::to_string(count));
    }
    schema_.absent.emplace_back(schema_.features[f].absent, schema_.formats[schema_.features[f].table]);
  }
  for (const LookupFeature& feature : schema_.features) {
    if (feature.falls_back) fallback_.resize(schema_.features.size());
  }
  if (schema_.overlays.empty()) return;
  if (schema_.overlays.size() != count) {
    throw std::invalid_argument("overlays: expected one a table, " + std::to_string(count) + ", got " +
                                std::to_string(schema_.overlays.size()));
  }
  for (std::size_t t = 0; t < count; ++t) {
    const RowFormat over = schema_.overlays[t]->format(), under = schema_.formats[t];
    const std::string name = "overlays[" + std::to_string(t) + "]: ";
    if (over.dim != under.dim) {
      throw std::invalid_argument(name + "dim " + std::to_string(over.dim) + " over a table of dim " +
                                  std::to_string(under.dim));
    }
    if (over.type != under.type) {
      throw std::invalid_argument(name + "rows of " + row_type_name(over.type) + " over a table of " +
                                  row_type_name(under.type));
    }
  }
}

void Lookup::check(std::size_t batch, const std::vector<LookupInput>& inputs, std::uint64_t mask, std::size_t threads) {
  if (mask >> kMostOverlays != 0) throw std::invalid_argument("mask: overlays are numbered 0 to 62, bit 63 is none");
  if (mask != 0 && schema_.overlays.empty()) throw std::invalid_argument("mask: the lookup was made without overlays");
  if (threads < 1 || threads > kMostThreads) {
    throw std::invalid_argument("threads: expected 1 to " + std::to_string(kMostThreads) + ", got " +
                                std::to_string(threads));
  }
  for (std::size_t f = 0; f < inputs.size(); ++f) {
    const bool known =
        f > 0 && inputs[f].offsets == inputs[f - 1].offsets && inputs[f].value_count == inputs[f - 1].value_count;
    singles_[f] =
        known ? singles_[f - 1] : check_offsets(inputs[f].offsets, batch, inputs[f].value_count, "offsets", f);
    if (schema_.features[f].pooling == Pooling::kWeighted && inputs[f].weights == nullptr &&
        inputs[f].value_count > 0) {
      throw std::invalid_argument("weights[" + std::to_string(f) + "]: a weighted feature needs one weight an id");
    }
  }
}

std::size_t Lookup::begin(std::size_t batch, const std::vector<LookupInput>& inputs, std::uint64_t mask,
                          std::size_t threads) {
  check(batch, inputs, mask, threads);
  for (MissingRows& missing : missing_) missing.clear();
  settled_ = false;
  std::size_t ids = 0;
  if (threads > 1) {
    for (const LookupInput& input : inputs) ids += input.value_count;
  }
  part_count_ = std::clamp<std::size_t>(ids / kIdsPerThread, 1, threads);
  if (parts_.size() < part_count_) parts_.resize(part_count_);
  for (std::size_t p = 0; p < part_count_; ++p) parts_[p].reset(schema_, mask);
  share_out(batch, inputs, part_count_);
  if (part_count_ == 1) {
    parts_[0].begin(inputs, singles_);
  } else {
    Workers::shared().run(part_count_, [&](std::size_t p) { parts_[p].begin(inputs, singles_); });
  }
  gather_misses();
  std::size_t count = 0;
  for (const MissingRows& missing : missing_) count += missing.ids.size();
  return count;
}

// The number of bags whose results, of all features, stay in the second-level cache while they are written: rows of
// many features that lie behind each other would otherwise be fetched for each of them again.
std::size_t Lookup::tile_of(std::size_t batch) const {
  std::size_t bytes = 0;
  for (const LookupFeature& feature : schema_.features) {
    const std::size_t rows = feature.pooling == Pooling::kNone ? feature.length : 1;
    bytes += rows * format(feature.table).dim * sizeof(float);
  }
  return std::clamp<std::size_t>(kTileBytes / std::max<std::size_t>(bytes, 1), kLeastTile, std::max(batch, kLeastTile));
}

// Bags in order, to each part about the same work: lines of memory that its ids and rows take.
void Lookup::share_out(std::size_t batch, const std::vector<LookupInput>& inputs, std::size_t parts) {
  if (parts == 1) {
    const std::size_t tile = tile_of(batch);
    for (std::size_t first = 0; first < batch; first += tile) {
      const std::size_t last = std::min(batch, first + tile);
      for (std::uint32_t f = 0; f < inputs.size(); ++f) parts_[0].add_share({f, first, last});
    }
    return;
  }
  const auto lines = [&](std::size_t f) { return 1 + (format(schema_.features[f].table).bytes() + 63) / 64; };
  std::size_t total = 0;
  for (std::size_t f = 0; f < inputs.size(); ++f) total += inputs[f].value_count * lines(f) + batch;
  const std::size_t each = (total + parts - 1) / parts;
  std::size_t part = 0, room = each;
  for (std::uint32_t f = 0; f < inputs.size(); ++f) {
    const std::int64_t* offsets = inputs[f].offsets;
    for (std::size_t bag = 0; bag < batch;) {
      const auto cost = [&](std::size_t last) {
        return static_cast<std::size_t>(offsets[last] - offsets[bag]) * lines(f) + (last - bag);
      };
      std::size_t last = batch;
      if (part + 1 < parts && cost(batch) > room) {
        std::size_t low = bag + 1, high = batch;  // the first end that fills the room
        while (low < high) {
          const std::size_t middle = (low + high) / 2;
          if (cost(middle) >= room) {
            high = middle;
          } else {
            low = middle + 1;
          }
        }
        last = low;
      }
      parts_[part].add_share({f, bag, last});
      const std::size_t used = cost(last);
      bag = last;
      if (used < room) {
        room -= used;
      } else if (part + 1 < parts) {
        ++part;
        room = each;
      }
    }
  }
}

// Collects the ids that the parts miss, each once, in the order of the parts.
void Lookup::gather_misses() {
  for (std::size_t t = 0; t < missing_.size(); ++t) {
    MissingRows& missing = missing_[t];
    if (part_count_ == 1) {
      missing.ids.swap(parts_[0].misses(t).ids);
      missing.sources.swap(parts_[0].misses(t).sources);
      continue;
    }
    for (std::size_t p = 0; p < part_count_; ++p) {
      const MissingRows& own = parts_[p].misses(t);
      std::vector<std::uint32_t>& places = parts_[p].places(t);
      for (std::size_t i = 0; i < own.ids.size(); ++i) places.push_back(missing.enter(own.ids[i], own.sources[i]));
    }
  }
}

void Lookup::supply(std::size_t table, RowInput rows, const std::uint8_t* states) {
  MissingRows& missing = missing_[table];
  const std::size_t count = missing.ids.size();
  for (std::size_t i = 0; i < count; ++i) {
    if (states[i] > static_cast<std::uint8_t>(RowState::kUnresolved)) {
      throw std::invalid_argument("state: 0 absent, 1 found, 2 unresolved; got " + std::to_string(states[i]));
    }
  }
  const RowFormat format = schema_.formats[table];
  missing.rows.resize(count * format.dim);
  if (rows.encoded != nullptr) {
    decode_rows(format, rows.encoded, count, missing.rows.data());
  } else if (count > 0) {
    std::memcpy(missing.rows.data(), rows.floats, missing.rows.size() * sizeof(float));
  }
  missing.states.assign(states, states + count);
  missing.supplied = true;
}

void Lookup::check_supplied(const char* by) const {
  for (std::size_t t = 0; t < missing_.size(); ++t) {
    if (!missing_[t].ids.empty() && !missing_[t].supplied) {
      throw std::invalid_argument(std::string(by) + ": table " + std::to_string(t) + " has " +
                                  std::to_string(missing_[t].ids.size()) + " missing ids; call supply first");
    }
  }
}

std::size_t Lookup::settle() {
  check_supplied("settle");
  for (FallbackRows& rows : fallback_) rows.clear();
  for (std::size_t p = 0; p < part_count_; ++p) parts_[p].settle(missing_, fallback_);
  std::size_t count = 0;
  for (FallbackRows& rows : fallback_) {
    rows.has_row.assign(rows.absent.size(), 0);
    count += rows.absent.size();
  }
  settled_ = true;
  return count;
}

void Lookup::fall_back(std::size_t feature, const float* rows, const std::uint8_t* has_row) {
  FallbackRows& own = fallback_[feature];
  const std::size_t count = own.absent.size();
  own.rows.assign(rows, rows + count * format(schema_.features[feature].table).dim);
  own.has_row.assign(has_row, has_row + count);
}

LookupTotals Lookup::finish() {
  check_supplied("finish");
  if (!fallback_.empty() && !settled_) settle();  // nothing was asked for: ids read as their features say
  std::fill(totals_.begin(), totals_.end(), LookupTotals{});
  for (std::size_t p = 0; p < part_count_; ++p) {
    parts_[p].finish(missing_, fallback_);
    for (std::size_t t = 0; t < totals_.size(); ++t) totals_[t].add(parts_[p].totals()[t]);
  }
  LookupTotals all;
  for (const LookupTotals& totals : totals_) all.add(totals);
  for (MissingRows& missing : missing_) missing.clear();
  return all;
}

}  // namespace emberline
