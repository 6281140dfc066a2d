#include "table/lookup.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>


namespace emberline {
namespace {

// Ids per reader section, whole bags: short sections, and addresses that stay in the first-level cache.
constexpr std::size_t kWindow = 1024;
constexpr std::int64_t kNowhere = INT64_MIN;

}  // namespace

Lookup::Lookup(std::vector<const RowSource*> tables, std::vector<LookupFeature> features,
               std::vector<const OverlayTable*> overlays)
    : tables_(std::move(tables)),
      features_(std::move(features)),
      overlays_(std::move(overlays)),
      misses_(tables_.size()) {
  for (std::size_t f = 0; f < features_.size(); ++f) {
    if (features_[f].table >= tables_.size()) {
      throw std::invalid_argument("features[" + std::to_string(f) + "]: table " + std::to_string(features_[f].table) +
                                  " of " + std::to_string(tables_.size()));
    }
  }
  if (overlays_.empty()) return;
  if (overlays_.size() != tables_.size()) {
    throw std::invalid_argument("overlays: expected one a table, " + std::to_string(tables_.size()) + ", got " +
                                std::to_string(overlays_.size()));
  }
  for (std::size_t t = 0; t < tables_.size(); ++t) {
    const RowFormat over = overlays_[t]->format(), under = tables_[t]->format();
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

void LookupTotals::add(const LookupTotals& other) {
  dram += other.dram;
  supplied += other.supplied;
  absent += other.absent;
  unresolved += other.unresolved;
  overlay += other.overlay;
}

std::size_t Lookup::begin(std::size_t batch, const std::vector<LookupInput>& inputs, std::uint64_t mask) {
  if (mask >> kMostOverlays != 0) throw std::invalid_argument("mask: overlays are numbered 0 to 62, bit 63 is none");
  if (mask != 0 && overlays_.empty()) throw std::invalid_argument("mask: the lookup was made without overlays");
  for (std::size_t f = 0; f < inputs.size(); ++f) {
    const std::string name = "offsets[" + std::to_string(f) + "]";
    check_offsets(inputs[f].offsets, batch, inputs[f].value_count, name.c_str());
    if (features_[f].pooling == Pooling::kWeighted && inputs[f].weights == nullptr && inputs[f].value_count > 0) {
      throw std::invalid_argument("weights[" + std::to_string(f) + "]: a weighted feature needs one weight an id");
    }
  }
  for (Misses& misses : misses_) {
    misses.positions.clear();
    misses.ids.clear();
    misses.sources.clear();
    misses.supplied = false;
  }
  late_.clear();
  sources_.clear();
  kept_.clear();
  totals_.assign(tables_.size(), {});
  mask_ = mask;
  for (std::uint32_t f = 0; f < inputs.size(); ++f) {
    if (features_[f].pooling == Pooling::kNone) {
      begin_unpooled(f, batch, inputs[f]);
    } else {
      begin_pooled(f, batch, inputs[f]);
    }
  }
  std::size_t missing = 0;
  for (const Misses& misses : misses_) missing += misses.ids.size();
  return missing;
}

void Lookup::begin_pooled(std::uint32_t feature, std::size_t batch, const LookupInput& input) {
  const RowSource& from = *tables_[features_[feature].table];
  PipelineSpace space;
  std::size_t bag = 0;
  while (bag < batch) {
    // A window of whole bags: those that fit, or one that is larger.
    std::size_t last = bag + 1;
    const auto start = static_cast<std::size_t>(input.offsets[bag]);
    while (last < batch && static_cast<std::size_t>(input.offsets[last + 1]) - start <= kWindow) ++last;
    const std::size_t count = static_cast<std::size_t>(input.offsets[last]) - start;
    if (rows_.size() < count) rows_.resize(count);
    const ReaderSection section;
    const bool covered = ask_overlay(features_[feature].table, input.values + start, count);
    RowPipeline& pipeline = from.start(space, input.values + start, count, rows_.data());
    if (covered) {
      pool_window<true>(feature, input, bag, last, pipeline);
    } else {
      pool_window<false>(feature, input, bag, last, pipeline);
    }
    bag = last;
  }
}

// Twice, so that a bag pays nothing for overlays in a window that none covers.
template <bool kCovered>
void Lookup::pool_window(std::uint32_t feature, const LookupInput& input, std::size_t bag, std::size_t last,
                         RowPipeline& pipeline) {
  const RowFormat format = tables_[features_[feature].table]->format();
  const std::uint32_t dim = format.dim;
  const auto start = static_cast<std::size_t>(input.offsets[bag]);
  const Pooling pooling = features_[feature].pooling;
  LookupTotals& totals = totals_[features_[feature].table];
  for (; bag < last; ++bag) {
    const std::size_t begin_at = static_cast<std::size_t>(input.offsets[bag]) - start;
    const std::size_t end_at = static_cast<std::size_t>(input.offsets[bag + 1]) - start;
    pipeline.advance(end_at);
    const std::size_t n = end_at - begin_at;
    const char** rows = rows_.data() + begin_at;
    const float* weights = pooling == Pooling::kWeighted ? input.weights + start + begin_at : nullptr;
    float* output = input.output + bag * dim;
    const Cover* covers = kCovered ? covers_.data() + begin_at : nullptr;
    const std::size_t laid = kCovered ? lay_over(covers, n, rows, totals) : 0;
    const auto hits = n - static_cast<std::size_t>(std::count(rows, rows + n, nullptr));
    totals.dram += hits - laid;
    if (hits == n) {
      pool_rows(format, rows, weights, n, pooling, output);
    } else {
      keep_aside(feature, input.values + start + begin_at, rows, covers, n, weights, output);
    }
  }
}

void Lookup::begin_unpooled(std::uint32_t feature, std::size_t batch, const LookupInput& input) {
  const RowSource& from = *tables_[features_[feature].table];
  const RowFormat format = from.format();
  const std::uint32_t dim = format.dim;
  PipelineSpace space;
  const std::size_t length = features_[feature].length;
  const std::size_t bags_at_once = std::max<std::size_t>(1, kWindow / std::max<std::size_t>(1, length));
  const auto used = [&](std::size_t bag) {
    return std::min(length, static_cast<std::size_t>(input.offsets[bag + 1] - input.offsets[bag]));
  };
  LookupTotals& totals = totals_[features_[feature].table];
  for (std::size_t bag = 0; bag < batch;) {
    const std::size_t last = std::min(batch, bag + bags_at_once);
    window_ids_.clear();
    for (std::size_t b = bag; b < last; ++b) {
      const std::int64_t* ids = input.values + input.offsets[b];
      window_ids_.insert(window_ids_.end(), ids, ids + used(b));
    }
    if (rows_.size() < window_ids_.size()) rows_.resize(window_ids_.size());
    const ReaderSection section;
    const bool covered = ask_overlay(features_[feature].table, window_ids_.data(), window_ids_.size());
    RowPipeline& pipeline = from.start(space, window_ids_.data(), window_ids_.size(), rows_.data());
    std::size_t at = 0;
    for (; bag < last; ++bag) {
      const std::size_t n = used(bag);
      pipeline.advance(at + n);
      if (covered) totals.dram -= lay_over(covers_.data() + at, n, rows_.data() + at, totals);  // counted again below
      float* output = input.output + bag * length * dim;
      std::uint8_t* mask = input.mask + bag * length;
      for (std::size_t i = 0; i < n; ++i, ++at) {
        const char* row = rows_[at];
        mask[i] = row != nullptr;
        if (row != nullptr) {
          decode_rows(format, row, 1, output + i * dim);
          ++totals.dram;
          continue;
        }
        std::memset(output + i * dim, 0, dim * sizeof(float));
        if (covered && covers_[at].state == CoverState::kRemoved) continue;
        late_.push_back({feature, 1, sources_.size(), nullptr, output + i * dim, mask + i});
        sources_.push_back(miss(features_[feature].table, window_ids_[at], covered ? covers_[at].overlay : kNoOverlay));
      }
      std::memset(output + n * dim, 0, (length - n) * dim * sizeof(float));
      std::memset(mask + n, 0, length - n);
    }
  }
}

// What the overlays say of a window's ids, into covers_; false when that is nothing. Comes before the look into the base
// (overlay.h says why), and is all that a lookup without overlays pays for them.
bool Lookup::ask_overlay(std::uint32_t table, const std::int64_t* ids, std::size_t n) {
  if (mask_ == 0 || overlays_[table]->size() == 0) return false;
  if (covers_.size() < n) covers_.resize(n);
  return overlays_[table]->find_rows(mask_, ids, n, covers_.data()) > 0;
}

// Puts the overlays' rows over the base's, and nothing over it where a row was removed or lies elsewhere. Returns how many
// rows it put, and counts them and the removed.
std::size_t Lookup::lay_over(const Cover* covers, std::size_t n, const char** rows, LookupTotals& totals) {
  std::size_t laid = 0;
  for (std::size_t i = 0; i < n; ++i) {
    if (covers[i].state == CoverState::kNone) continue;
    rows[i] = covers[i].row;
    laid += covers[i].row != nullptr;
    totals.absent += covers[i].state == CoverState::kRemoved;
  }
  totals.overlay += laid;
  return laid;
}

// covers: of the bag's ids, or null in a window that is not covered.
void Lookup::keep_aside(std::uint32_t feature, const std::int64_t* ids, const char* const* rows, const Cover* covers,
                        std::size_t n, const float* weights, float* output) {
  const std::uint32_t table = features_[feature].table;
  const RowFormat format = tables_[table]->format();
  late_.push_back({feature, static_cast<std::uint32_t>(n), sources_.size(), weights, output, nullptr});
  for (std::size_t i = 0; i < n; ++i) {
    if (rows[i] == nullptr) {
      const bool removed = covers != nullptr && covers[i].state == CoverState::kRemoved;
      sources_.push_back(removed ? kNowhere : miss(table, ids[i], covers != nullptr ? covers[i].overlay : kNoOverlay));
      continue;
    }
    sources_.push_back(static_cast<std::int64_t>(kept_.size()));
    kept_.resize(kept_.size() + format.dim);
    decode_rows(format, rows[i], 1, kept_.data() + kept_.size() - format.dim);
  }
  std::memset(output, 0, format.dim * sizeof(float));
}

std::int64_t Lookup::miss(std::uint32_t table, std::int64_t id, std::uint8_t source) {
  Misses& misses = misses_[table];
  std::uint32_t& position = misses.positions[id];
  if (position == 0) {
    misses.ids.push_back(id);
    misses.sources.push_back(source);
    position = static_cast<std::uint32_t>(misses.ids.size());
  }
  return -static_cast<std::int64_t>(position);
}

void Lookup::supply(std::size_t table, RowInput rows, const std::uint8_t* states) {
  Misses& misses = misses_[table];
  const std::size_t count = misses.ids.size();
  for (std::size_t i = 0; i < count; ++i) {
    if (states[i] > static_cast<std::uint8_t>(RowState::kUnresolved)) {
      throw std::invalid_argument("state: 0 absent, 1 found, 2 unresolved; got " + std::to_string(states[i]));
    }
  }
  const RowFormat format = tables_[table]->format();
  misses.rows.resize(count * format.dim);
  if (rows.encoded != nullptr) {
    decode_rows(format, rows.encoded, count, misses.rows.data());
  } else if (count > 0) {
    std::memcpy(misses.rows.data(), rows.floats, misses.rows.size() * sizeof(float));
  }
  misses.states.assign(states, states + count);
  misses.supplied = true;
}

LookupTotals Lookup::finish() {
  for (std::size_t t = 0; t < misses_.size(); ++t) {
    if (!misses_[t].ids.empty() && !misses_[t].supplied) {
      throw std::invalid_argument("finish: table " + std::to_string(t) + " has " + std::to_string(misses_[t].ids.size()) +
                                  " missing ids; call supply first");
    }
  }
  for (const Late& late : late_) {
    const LookupFeature& feature = features_[late.feature];
    // What waited was decoded when it was set aside, which changes no bit of the sum.
    const std::uint32_t dim = tables_[feature.table]->format().dim;
    const RowFormat decoded{RowType::kFp32, dim};
    const Misses& misses = misses_[feature.table];
    if (rows_.size() < late.count) rows_.resize(late.count);
    for (std::size_t i = 0; i < late.count; ++i) {
      const std::int64_t source = sources_[late.first + i];
      if (source >= 0) {
        rows_[i] = reinterpret_cast<const char*>(kept_.data() + source);
        continue;
      }
      if (source == kNowhere) {
        rows_[i] = nullptr;  // counted by lay_over
        continue;
      }
      const auto position = static_cast<std::size_t>(-source - 1);
      const auto state = static_cast<RowState>(misses.states[position]);
      rows_[i] = state == RowState::kFound ? reinterpret_cast<const char*>(misses.rows.data() + position * dim) : nullptr;
      totals_[feature.table].supplied += state == RowState::kFound;
      totals_[feature.table].absent += state == RowState::kAbsent;
      totals_[feature.table].unresolved += state == RowState::kUnresolved;
    }
    if (feature.pooling != Pooling::kNone) {
      pool_rows(decoded, rows_.data(), late.weights, late.count, feature.pooling, late.output);
    } else if (rows_[0] != nullptr) {
      std::memcpy(late.output, rows_[0], dim * sizeof(float));
      *late.mask = 1;
    }
  }
  LookupTotals totals;
  for (const LookupTotals& each : totals_) totals.add(each);
  finished_ = totals_;
  for (Misses& misses : misses_) {
    misses.ids.clear();
    misses.sources.clear();
  }
  late_.clear();
  totals_.assign(tables_.size(), {});
  return totals;
}

}  // namespace emberline
