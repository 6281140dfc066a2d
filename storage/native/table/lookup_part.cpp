#include "table/lookup_part.h"

#include <algorithm>
#include <cstring>

namespace emberline {
namespace {

// Ids per reader section, whole bags: short sections, and addresses that stay in the first-level cache.
constexpr std::size_t kWindow = 1024;
// Rows that are copied in one go, while those behind them are on their way.
constexpr std::size_t kCopied = 16;
constexpr std::int64_t kNowhere = INT64_MIN;

// Brings outputs that are written next into the cache. Where a feature's outputs lie apart, the processor sees no
// stream and would wait for each: a seventh of a lookup of 26 features that lie behind each other.
void fetch_outputs(const float* output, std::size_t stride, std::size_t from, std::size_t to) {
  for (std::size_t i = from; i < to; ++i) __builtin_prefetch(output + i * stride, 1, 3);
}

std::size_t missing_of(const char* const* rows, std::size_t n) {
  std::size_t missing = 0;
  for (std::size_t i = 0; i < n; ++i) missing += rows[i] == nullptr;
  return missing;
}

}  // namespace

std::uint32_t MissingRows::enter(std::int64_t id, std::uint8_t source) {
  std::uint32_t& position = positions[id];
  if (position == 0) {
    ids.push_back(id);
    sources.push_back(source);
    position = static_cast<std::uint32_t>(ids.size());
  }
  return position - 1;
}

void MissingRows::clear() {
  positions.clear();
  ids.clear();
  sources.clear();
  supplied = false;
}

void FallbackRows::clear() {
  absent.clear();
  unresolved.clear();
  rows.clear();
  has_row.clear();
}

void LookupPart::reset(const LookupSchema& schema, std::uint64_t mask) {
  schema_ = &schema;
  mask_ = mask;
  shares_.clear();
  misses_.resize(schema.tables.size());
  places_.resize(schema.tables.size());
  for (MissingRows& misses : misses_) misses.clear();
  for (std::vector<std::uint32_t>& places : places_) places.clear();
  totals_.assign(schema.tables.size(), {});
  late_.clear();
  sources_.clear();
  kept_.clear();
}

void LookupPart::begin(const std::vector<LookupInput>& inputs, const std::vector<std::uint8_t>& singles) {
  values_.clear();
  for (const LookupInput& input : inputs) values_.push_back(input.values);
  for (const Share& share : shares_) {
    if (schema_->features[share.feature].pooling == Pooling::kNone) {
      begin_unpooled(share, inputs[share.feature]);
    } else {
      begin_pooled(share, inputs[share.feature], singles[share.feature] != 0);
    }
  }
}

std::size_t LookupPart::stride_of(std::uint32_t number, const LookupInput& input) const {
  const LookupFeature& feature = schema_->features[number];
  const std::size_t dim = schema_->formats[feature.table].dim;
  if (input.stride != 0) return input.stride;
  return feature.pooling == Pooling::kNone ? dim * feature.length : dim;
}

void LookupPart::begin_pooled(const Share& share, const LookupInput& input, bool all_single) {
  const LookupFeature& feature = schema_->features[share.feature];
  const RowSource& from = *schema_->tables[feature.table];
  const RowFormat format = schema_->formats[feature.table];
  const std::size_t stride = stride_of(share.feature, input);
  PipelineSpace space;
  for (std::size_t bag = share.first; bag < share.last;) {
    // A window of whole bags: those that fit, or one that is larger.
    std::size_t last = bag + 1;
    const auto start = static_cast<std::size_t>(input.offsets[bag]);
    if (all_single) last = std::min(share.last, bag + kWindow);
    while (!all_single && last < share.last && static_cast<std::size_t>(input.offsets[last + 1]) - start <= kWindow)
      ++last;
    const std::size_t count = static_cast<std::size_t>(input.offsets[last]) - start;
    if (rows_.size() < count) rows_.resize(count);
    const Window window{share.feature,
                        feature.table,
                        format,
                        input.values + start,
                        feature.pooling == Pooling::kWeighted ? input.weights + start : nullptr,
                        count,
                        start};
    bool singles = count == last - bag && window.weights == nullptr;
    for (std::size_t b = bag; singles && !all_single && b < last; ++b) {
      singles = input.offsets[b + 1] - input.offsets[b] == 1;
    }
    const ReaderSection section;
    const bool covered = ask_overlay(window);
    RowPipeline& pipeline = from.start(space, window.ids, count, rows_.data());
    if (covered) {
      pool_bags<true>(window, input, bag, last, pipeline);
    } else if (singles) {
      pool_singles(window, input.output + bag * stride, stride, pipeline);
    } else {
      pool_bags<false>(window, input, bag, last, pipeline);
    }
    bag = last;
  }
}

// Twice, so that a bag pays nothing for overlays in a window that none covers.
template <bool kCovered>
void LookupPart::pool_bags(const Window& window, const LookupInput& input, std::size_t bag, std::size_t last,
                           RowPipeline& pipeline) {
  const Pooling pooling = schema_->features[window.feature].pooling;
  const RowKernels::Pool pool = row_kernels().pool[static_cast<int>(window.format.type)];
  const std::uint32_t dim = window.format.dim;
  const std::size_t stride = stride_of(window.feature, input);
  const std::int64_t start = input.offsets[bag];
  std::uint64_t dram = 0;
  for (; bag < last; ++bag) {
    const auto at = static_cast<std::size_t>(input.offsets[bag] - start);
    const auto end = static_cast<std::size_t>(input.offsets[bag + 1] - start);
    const std::size_t n = end - at;
    pipeline.advance(end);
    float* output = input.output + bag * stride;
    const std::size_t laid = kCovered ? lay_over(window, at, n) : 0;
    const std::size_t missing = missing_of(rows_.data() + at, n);
    dram += n - missing - laid;
    if (missing == 0) {
      const float divisor = pooling == Pooling::kMean && n > 1 ? static_cast<float>(n) : 1.0f;
      pool(rows_.data() + at, window.weights == nullptr ? nullptr : window.weights + at, n, dim, divisor, output);
    } else {
      keep_aside(window, at, n, kCovered, output);
    }
  }
  totals_[window.table].dram += dram;
}

// Bags of one id each: their rows go straight into the output.
void LookupPart::pool_singles(const Window& window, float* output, std::size_t stride, RowPipeline& pipeline) {
  const RowKernels::Singles put = row_kernels().singles[static_cast<int>(window.format.type)];
  const std::uint32_t dim = window.format.dim;
  for (std::size_t at = 0; at < window.count; at += kCopied) {
    const std::size_t n = std::min(kCopied, window.count - at);
    if (stride != dim)
      fetch_outputs(output, stride, at == 0 ? 0 : at + kCopied, std::min(window.count, at + 2 * kCopied));
    pipeline.advance(at + n);
    const char* const* rows = rows_.data() + at;
    const std::size_t missing = missing_of(rows, n);
    totals_[window.table].dram += n - missing;
    if (missing == 0) {
      put(rows, n, dim, output + at * stride, stride);
      continue;
    }
    for (std::size_t i = 0; i < n; ++i) {
      if (rows[i] != nullptr) {
        put(rows + i, 1, dim, output + (at + i) * stride, stride);
      } else {
        keep_aside(window, at + i, 1, false, output + (at + i) * stride);
      }
    }
  }
}

void LookupPart::begin_unpooled(const Share& share, const LookupInput& input) {
  const LookupFeature& feature = schema_->features[share.feature];
  const RowSource& from = *schema_->tables[feature.table];
  const RowFormat format = schema_->formats[feature.table];
  const std::uint32_t dim = format.dim;
  const std::size_t length = feature.length;
  const std::size_t stride = stride_of(share.feature, input);
  const std::size_t bags_at_once = std::max<std::size_t>(1, kWindow / length);
  const auto used = [&](std::size_t bag) {
    return std::min(length, static_cast<std::size_t>(input.offsets[bag + 1] - input.offsets[bag]));
  };
  PipelineSpace space;
  for (std::size_t bag = share.first; bag < share.last;) {
    const std::size_t last = std::min(share.last, bag + bags_at_once);
    std::size_t count = 0;
    for (std::size_t b = bag; b < last; ++b) count += used(b);
    const std::int64_t* ids = input.values + input.offsets[bag];
    if (count != static_cast<std::size_t>(input.offsets[last] - input.offsets[bag])) {  // some bag is cut
      window_ids_.clear();
      for (std::size_t b = bag; b < last; ++b) {
        const std::int64_t* own = input.values + input.offsets[b];
        window_ids_.insert(window_ids_.end(), own, own + used(b));
      }
      ids = window_ids_.data();
    }
    if (rows_.size() < count) rows_.resize(count);
    const auto place = static_cast<std::size_t>(input.offsets[bag]);
    const Window window{share.feature, feature.table, format, ids, nullptr, count, place};
    const ReaderSection section;
    const bool covered = ask_overlay(window);
    RowPipeline& pipeline = from.start(space, ids, count, rows_.data());
    if (!covered && count == (last - bag) * length && stride == length * dim) {
      put_flat(window, input.output + bag * stride, input.mask + bag * length, pipeline);
      bag = last;
      continue;
    }
    std::size_t at = 0;
    for (; bag < last; ++bag) {
      const std::size_t n = used(bag);
      pipeline.advance(at + n);
      float* output = input.output + bag * stride;
      std::uint8_t* mask = input.mask + bag * length;
      if (covered) totals_[window.table].dram -= lay_over(window, at, n);  // counted again below
      const auto first = static_cast<std::size_t>(input.offsets[bag]);
      for (std::size_t i = 0; i < n; ++i, ++at) {
        if (covered) {
          put_row<true>(window, at, first + i, output + i * dim, mask + i);
        } else {
          put_row<false>(window, at, first + i, output + i * dim, mask + i);
        }
      }
      std::memset(output + n * dim, 0, (length - n) * dim * sizeof(float));
      std::memset(mask + n, 0, length - n);
    }
  }
}

// Bags that are all as long as the output: one run of rows.
void LookupPart::put_flat(const Window& window, float* output, std::uint8_t* mask, RowPipeline& pipeline) {
  const RowKernels::Gather gather = row_kernels().gather[static_cast<int>(window.format.type)];
  const std::uint32_t dim = window.format.dim;
  for (std::size_t at = 0; at < window.count; at += kCopied) {
    const std::size_t n = std::min(kCopied, window.count - at);
    pipeline.advance(at + n);
    if (missing_of(rows_.data() + at, n) == 0) {
      gather(rows_.data() + at, n, dim, output + at * dim);
      std::memset(mask + at, 1, n);
      totals_[window.table].dram += n;
      continue;
    }
    for (std::size_t i = at; i < at + n; ++i) put_row<false>(window, i, window.place + i, output + i * dim, mask + i);
  }
}

template <bool kCovered>
void LookupPart::put_row(const Window& window, std::size_t at, std::size_t place, float* output, std::uint8_t* mask) {
  const char* row = rows_[at];
  *mask = row != nullptr;
  if (row != nullptr) {
    row_kernels().gather[static_cast<int>(window.format.type)](&row, 1, window.format.dim, output);
    ++totals_[window.table].dram;
    return;
  }
  const bool removed = kCovered && covers_[at].state == CoverState::kRemoved;
  if (removed && !schema_->features[window.feature].falls_back) {
    schema_->absent[window.feature].write(window.ids[at], output);
    return;
  }
  std::memset(output, 0, window.format.dim * sizeof(float));
  late_.push_back({window.feature, 1, sources_.size(), nullptr, output, mask, place});
  if (removed) {
    sources_.push_back(kNowhere);
    return;
  }
  sources_.push_back(miss(window, at, kCovered ? covers_[at].overlay : kNoOverlay));
}

// Finds the overlays' entries for a window's ids, into covers_; returns false when there are none. Runs before the
// search of the base (overlay.h says why), and is all that a lookup without overlays pays for them.
bool LookupPart::ask_overlay(const Window& window) {
  if (mask_ == 0 || schema_->overlays[window.table]->size() == 0) return false;
  if (covers_.size() < window.count) covers_.resize(window.count);
  return schema_->overlays[window.table]->find_rows(mask_, window.ids, window.count, covers_.data()) > 0;
}

// Puts the overlays' rows over the base's, and nothing over it where a row was removed or lies elsewhere. Returns how
// many rows it put, and counts them and the removed.
std::size_t LookupPart::lay_over(const Window& window, std::size_t at, std::size_t n) {
  LookupTotals& totals = totals_[window.table];
  std::size_t laid = 0;
  for (std::size_t i = at; i < at + n; ++i) {
    const Cover& cover = covers_[i];
    if (cover.state == CoverState::kNone) continue;
    rows_[i] = cover.row;
    laid += cover.row != nullptr;
    totals.absent += cover.state == CoverState::kRemoved;
  }
  totals.overlay += laid;
  return laid;
}

void LookupPart::keep_aside(const Window& window, std::size_t at, std::size_t n, bool covered, float* output) {
  const std::uint32_t dim = window.format.dim;
  const AbsentRows& absent = schema_->absent[window.feature];
  late_.push_back({window.feature, static_cast<std::uint32_t>(n), sources_.size(),
                   window.weights == nullptr ? nullptr : window.weights + at, output, nullptr, window.place + at});
  for (std::size_t i = at; i < at + n; ++i) {
    const bool removed = rows_[i] == nullptr && covered && covers_[i].state == CoverState::kRemoved;
    if (rows_[i] == nullptr && !removed) {
      sources_.push_back(miss(window, i, covered ? covers_[i].overlay : kNoOverlay));
      continue;
    }
    if (removed && (absent.is_zero() || schema_->features[window.feature].falls_back)) {
      sources_.push_back(kNowhere);
      continue;
    }
    sources_.push_back(static_cast<std::int64_t>(kept_.size()));
    kept_.resize(kept_.size() + dim);
    float* const kept = kept_.data() + kept_.size() - dim;
    if (removed) {
      absent.write(window.ids[i], kept);
    } else {
      decode_rows(window.format, rows_[i], 1, kept);
    }
  }
  std::memset(output, 0, dim * sizeof(float));
}

std::int64_t LookupPart::miss(const Window& window, std::size_t at, std::uint8_t source) {
  return -1 - static_cast<std::int64_t>(misses_[window.table].enter(window.ids[at], source));
}

RowState LookupPart::state_of(std::int64_t source, const MissingRows& misses, std::uint32_t table) const {
  if (source >= 0) return RowState::kFound;
  if (source == kNowhere) return RowState::kAbsent;
  const auto own = static_cast<std::size_t>(-source - 1);
  return static_cast<RowState>(misses.states[places_[table].empty() ? own : places_[table][own]]);
}

void LookupPart::settle(const std::vector<MissingRows>& missing, std::vector<FallbackRows>& fallback) {
  next_fallback_.resize(fallback.size());
  for (std::size_t f = 0; f < fallback.size(); ++f) next_fallback_[f] = fallback[f].absent.size();
  for (const Late& late : late_) {
    const LookupFeature& feature = schema_->features[late.feature];
    if (!feature.falls_back) continue;
    FallbackRows& rows = fallback[late.feature];
    for (std::size_t i = 0; i < late.count; ++i) {
      const RowState state = state_of(sources_[late.first + i], missing[feature.table], feature.table);
      if (state == RowState::kFound) continue;
      (state == RowState::kAbsent ? rows.absent : rows.unresolved).push_back(static_cast<std::int64_t>(late.place + i));
    }
  }
}

void LookupPart::finish(const std::vector<MissingRows>& missing, const std::vector<FallbackRows>& fallback) {
  for (const Late& late : late_) {
    const LookupFeature& feature = schema_->features[late.feature];
    // A row that waited was decoded when it was set aside, which changes no bit of the sum.
    const std::uint32_t dim = schema_->formats[feature.table].dim;
    const FallbackRows* rows = feature.falls_back ? &fallback[late.feature] : nullptr;
    const std::size_t supplied = collect(late, missing[feature.table], rows);
    if (feature.pooling != Pooling::kNone) {
      pool_rows({RowType::kFp32, dim}, rows_.data(), late.weights, late.count, feature.pooling, late.output);
    } else if (rows_[0] != nullptr) {
      std::memcpy(late.output, rows_[0], dim * sizeof(float));
      *late.mask = supplied != 0;
    }
  }
  late_.clear();
}

// Puts the rows of what waited into rows_, null where zeros stand for one, and counts those that were missing. Returns
// for how many of those a row was supplied.
std::size_t LookupPart::collect(const Late& late, const MissingRows& misses, const FallbackRows* fallback) {
  const std::uint32_t table = schema_->features[late.feature].table;
  const std::size_t dim = schema_->formats[table].dim;
  const std::vector<std::uint32_t>& places = places_[table];
  const AbsentRows& absent = schema_->absent[late.feature];
  LookupTotals& totals = totals_[table];
  if (rows_.size() < late.count) rows_.resize(late.count);
  if (!absent.is_zero() && !absent.is_constant()) absent_.resize(late.count * dim);
  // Where an absent id has no row of its chain, it reads as the feature says.
  const auto without_row = [&](std::size_t i) -> const char* {
    if (fallback != nullptr) {
      const std::size_t at = next_fallback_[late.feature]++;
      if (fallback->has_row[at] != 0) return reinterpret_cast<const char*>(fallback->rows.data() + at * dim);
    }
    if (absent.is_zero()) return nullptr;
    const std::int64_t id = values_[late.feature][late.place + i];
    return reinterpret_cast<const char*>(absent.row(id, absent_.data() + i * dim));
  };
  std::size_t supplied = 0;
  for (std::size_t i = 0; i < late.count; ++i) {
    const std::int64_t source = sources_[late.first + i];
    rows_[i] = nullptr;
    if (source >= 0) {
      rows_[i] = reinterpret_cast<const char*>(kept_.data() + source);
      continue;
    }
    if (source == kNowhere) {  // counted by lay_over
      if (fallback != nullptr) rows_[i] = without_row(i);
      continue;
    }
    const auto own = static_cast<std::size_t>(-source - 1);
    const std::size_t position = places.empty() ? own : places[own];
    switch (static_cast<RowState>(misses.states[position])) {
      case RowState::kFound:
        rows_[i] = reinterpret_cast<const char*>(misses.rows.data() + position * dim);
        ++supplied;
        break;
      case RowState::kAbsent:
        rows_[i] = without_row(i);
        ++totals.absent;
        break;
      case RowState::kUnresolved: ++totals.unresolved; break;
    }
  }
  totals.supplied += supplied;
  return supplied;
}

}  // namespace emberline
