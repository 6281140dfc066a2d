#include "training/batch_lookup.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <string>

#include "training/distinct_ids.h"
#include "training/owners.h"
#include "training/threads.h"

namespace emberline {
namespace {

// Places 0 to n - 1, the largest first.
std::vector<std::size_t> by_size(std::size_t n, const std::vector<std::size_t>& sizes) {
  std::vector<std::size_t> order(n);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return sizes[a] > sizes[b]; });
  return order;
}

}  // namespace

BatchLookup::BatchLookup(std::vector<TrainingTable*> tables, std::vector<FeatureLookup> features)
    : tables_(std::move(tables)),
      features_(std::move(features)),
      parts_(tables_.size()),
      own_(features_.size()),
      chains_(features_.size()) {
  for (std::uint32_t f = 0; f < features_.size(); ++f) {
    if (features_[f].table >= tables_.size()) {
      throw std::invalid_argument("features[" + std::to_string(f) + "]: there is no table " +
                                  std::to_string(features_[f].table));
    }
    if (features_[f].pooling == Pooling::kNone && features_[f].length == 0) {
      throw std::invalid_argument("features[" + std::to_string(f) + "]: the length must be 1 or more");
    }
    parts_[features_[f].table].features.push_back(f);
    if (features_[f].absent) {
      const RowFormat format = tables_[features_[f].table]->format();
      own_[f].emplace(OwnRows{AbsentRows(*features_[f].absent, format), format.dim, {}, {}});
    }
    for (const FallbackLevel& level : features_[f].fallback) check_level(f, level);
    if (features_[f].falls_back()) parts_[features_[f].table].waits = true;
  }
}

std::size_t BatchLookup::used(std::uint32_t feature, std::size_t bag) const {
  const std::int64_t* offsets = ids_[feature].offsets;
  const auto given = static_cast<std::size_t>(offsets[bag + 1] - offsets[bag]);
  return features_[feature].pooling == Pooling::kNone ? std::min<std::size_t>(given, features_[feature].length) : given;
}

void BatchLookup::take(std::vector<FeatureIds> ids, std::size_t batch) {
  ids_ = std::move(ids);
  batch_ = batch;
  single_.resize(features_.size());
  firsts_.assign(features_.size(), {});
  begins_.resize(features_.size());
  for (std::size_t f = 0; f < features_.size(); ++f) {
    single_[f] = check_offsets(ids_[f].offsets, batch, ids_[f].n, "offsets", f) ? 1 : 0;
  }
}

AskedIds BatchLookup::ask(std::vector<FeatureIds> ids, std::size_t batch, std::uint32_t ranks, std::size_t threads) {
  take(std::move(ids), batch);
  const std::size_t tables = parts_.size();
  AskedIds asked;
  asked.numbers.assign(ranks * tables, 0);
  std::vector<std::vector<std::uint32_t>> owners(tables);
  on_threads(threads, tables, [&](std::size_t table) {
    collect(parts_[table]);
    TableGradients& gradients = parts_[table].gradients;
    const std::size_t n = gradients.found.ids.size();
    gradients.starts.clear();
    gradients.found.slots.assign(n, 1);
    gradients.found.beside.assign(n, 0);
    parts_[table].asked_id.resize(n);
    parts_[table].asked_value.resize(n);
    owners[table].resize(n);
    for (std::size_t i = 0; i < n; ++i) {
      owners[table][i] = owner_of(gradients.found.ids[i], ranks);
      ++asked.numbers[owners[table][i] * tables + table];
    }
  });
  // Where the ids of each rank and table begin.
  std::vector<std::size_t> next_id(ranks * tables), next_value(ranks * tables);
  asked_ids_ = asked_values_ = 0;
  for (std::size_t at = 0; at < ranks * tables; ++at) {
    const auto n = static_cast<std::size_t>(asked.numbers[at]);
    next_id[at] = asked_ids_;
    next_value[at] = asked_values_;
    asked_ids_ += n;
    asked_values_ += n * tables_[at % tables]->dim();
  }
  if (asked_values_ > std::numeric_limits<std::uint32_t>::max()) {
    throw std::invalid_argument("ids: a batch asks for more than 2^32 values; give smaller batches");
  }
  std::vector<std::int64_t> in_order(asked_ids_);
  std::vector<std::uint32_t> counts(asked_ids_);
  for (std::size_t table = 0; table < tables; ++table) {
    Part& part = parts_[table];
    const std::uint32_t dim = tables_[table]->dim();
    for (std::size_t i = 0; i < owners[table].size(); ++i) {
      const std::size_t at = owners[table][i] * tables + table;
      part.asked_id[i] = static_cast<std::uint32_t>(next_id[at]);
      part.asked_value[i] = static_cast<std::uint32_t>(next_value[at]);
      in_order[next_id[at]] = part.gradients.found.ids[i];
      counts[next_id[at]++] = part.gradients.found.counts[i];
      next_value[at] += dim;
    }
  }
  asked.message.reserve(10 * asked_ids_ + 8 * ranks);
  std::size_t first = 0;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const std::size_t begin = asked.message.size(), last = next_id[(rank + 1) * tables - 1];
    const auto* bytes = reinterpret_cast<const std::uint8_t*>(in_order.data() + first);
    asked.message.insert(asked.message.end(), bytes, bytes + 8 * (last - first));
    for (std::size_t i = first; i < last; ++i) put_count(counts[i], asked.message);
    while (asked.message.size() % 8 != 0) asked.message.push_back(0);
    asked.bytes.push_back(static_cast<std::int64_t>(asked.message.size() - begin));
    first = last;
  }
  return asked;
}

void BatchLookup::pool(const float* rows, const std::uint8_t* flags, const std::vector<FeatureValues<float>>& out,
                       std::size_t threads) {
  for (const FeatureLookup& feature : features_) {
    if (feature.falls_back()) throw std::invalid_argument("fallback: rows of other processes have none");
  }
  on_threads(threads, parts_.size(), [&](std::size_t table) {
    Part& part = parts_[table];
    FoundRows& found = part.gradients.found;
    const std::size_t n = found.ids.size();
    found.rows.resize(n);
    for (std::size_t i = 0; i < n; ++i) {
      found.rows[i] = rows + part.asked_value[i];
      if (flags != nullptr) found.slots[i] = flags[part.asked_id[i]];
    }
    for (const std::uint32_t feature : part.features) {
      if (own_[feature]) set_own_rows(found, *own_[feature]);
    }
    pool(part, out, 0, batch_);
  });
}

void BatchLookup::run(std::vector<FeatureIds> ids, std::size_t batch, const std::vector<FeatureValues<float>>& out,
                      const LookupOptions& options) {
  take(std::move(ids), batch);
  std::vector<std::size_t> sizes(tables_.size());
  for (std::size_t f = 0; f < features_.size(); ++f) sizes[features_[f].table] += ids_[f].n;
  const std::vector<std::size_t> order = by_size(tables_.size(), sizes);
  const std::size_t all = std::accumulate(sizes.begin(), sizes.end(), std::size_t{0});
  // A table whose ids are many is pooled by several threads, the others where their rows were just found.
  const auto is_large = [&](std::size_t table) {
    return options.threads > 1 && sizes[table] > all / (2 * options.threads);
  };
  const Locks locks(tables_);
  on_threads(options.threads, order.size(), [&](std::size_t i) {
    const std::size_t table = order[i];
    Part& part = parts_[table];
    collect(part);
    tables_[table]->find(part.gradients.found, options.train);
    for (const std::uint32_t feature : part.features) {
      if (own_[feature]) set_own_rows(part.gradients.found, *own_[feature]);
    }
    if (!is_large(table) && !part.waits) pool(part, out, 0, batch_);
  });
  // Rows of a chain lie in several tables, which are all found by now.
  for (Part& part : parts_) part.borrowed.clear();
  for (std::uint32_t f = 0; options.train && f < features_.size(); ++f) {
    if (features_[f].falls_back()) begin_from_chain(f);
  }
  for (std::uint32_t f = 0; f < features_.size(); ++f) {
    if (features_[f].falls_back()) follow_chain(f, options.stand_in_seed);
  }
  on_threads(options.threads, order.size(), [&](std::size_t i) {
    const Part& part = parts_[order[i]];
    if (part.waits && !is_large(order[i])) pool(part, out, 0, batch_);
  });
  if (options.threads <= 1) return;
  const std::size_t pieces = 4 * options.threads;
  for (const std::size_t table : order) {
    if (!is_large(table)) break;
    on_threads(options.threads, pieces, [&](std::size_t piece) {
      pool(parts_[table], out, piece * batch_ / pieces, (piece + 1) * batch_ / pieces);
    });
  }
}

void BatchLookup::find(std::vector<FeatureIds> ids, std::size_t batch, const LookupOptions& options) {
  take(std::move(ids), batch);
  const Locks locks(tables_);
  on_threads(options.threads, tables_.size(), [&](std::size_t table) {
    collect(parts_[table]);
    tables_[table]->find(parts_[table].gradients.found, options.train);
  });
}

void BatchLookup::set_own_rows(const FoundRows& found, OwnRows& own) {
  const auto is_absent = [&](std::size_t i) { return found.slots[i] == 0 && found.beside[i] == 0; };
  own.rows = found.rows;
  std::size_t made = 0;
  for (std::size_t i = 0; i < own.rows.size(); ++i) made += is_absent(i);
  const bool is_zero = own.absent.is_zero();
  if (!is_zero && !own.absent.is_constant()) own.made.resize(made * own.dim);
  float* to = own.made.data();
  for (std::size_t i = 0; i < own.rows.size(); ++i) {
    if (!is_absent(i)) continue;
    own.rows[i] = is_zero ? nullptr : own.absent.row(found.ids[i], to);
    if (own.rows[i] == to) to += own.dim;
  }
}

// Finds which ids differ.
void BatchLookup::collect(Part& part) {
  FoundRows& found = part.gradients.found;
  part.places.clear();
  DistinctIds distinct(found);
  for (const std::uint32_t feature : part.features) {
    const FeatureIds& ids = ids_[feature];
    begins_[feature] = part.places.size();
    const std::uint32_t counted = features_[feature].hidden ? 0 : 1;
    if (features_[feature].pooling != Pooling::kNone) {
      for (std::size_t i = 0; i < ids.n; ++i) part.places.push_back(distinct.add(ids.values[i], counted));
      continue;
    }
    for (std::size_t bag = 0; bag < batch_; ++bag) {
      const std::int64_t* first = ids.values + ids.offsets[bag];
      const std::size_t n = used(feature, bag);
      for (std::size_t i = 0; i < n; ++i) part.places.push_back(distinct.add(first[i], counted));
    }
  }
}

// Pools the bags first to last - 1 of all features of a table.
void BatchLookup::pool(const Part& part, const std::vector<FeatureValues<float>>& out, std::size_t first,
                       std::size_t last) const {
  for (const std::uint32_t feature : part.features) {
    if (!features_[feature].hidden) pool_feature(part, feature, out[feature], first, last);
  }
}

void BatchLookup::pool_feature(const Part& part, std::uint32_t feature, const FeatureValues<float>& out,
                               std::size_t first, std::size_t last) const {
  if (const std::vector<const float*>& rows = chains_[feature].rows; !rows.empty()) {
    pool_bags(feature, [&](std::size_t i) { return rows[i]; }, out, first, last);
    return;
  }
  const std::vector<const float*>& rows = own_[feature] ? own_[feature]->rows : part.gradients.found.rows;
  const std::uint32_t* places = part.places.data() + begins_[feature];
  pool_bags(feature, [&](std::size_t i) { return rows[places[i]]; }, out, first, last);
}

template <class RowAt>
void BatchLookup::pool_bags(std::uint32_t feature, const RowAt& row_at, const FeatureValues<float>& out,
                            std::size_t first, std::size_t last) const {
  const FeatureLookup& how = features_[feature];
  const FeatureIds& ids = ids_[feature];
  const std::uint32_t dim = tables_[how.table]->dim();
  const std::size_t bytes = dim * sizeof(float);
  if (how.pooling == Pooling::kNone) {
    std::size_t at = 0;
    for (std::size_t bag = 0; bag < first; ++bag) at += used(feature, bag);
    for (std::size_t bag = first; bag < last; ++bag) {
      float* to = out.data + bag * how.length * dim;
      const std::size_t n = used(feature, bag);
      for (std::size_t i = 0; i < n; ++i, to += dim) {
        const float* row = row_at(at++);
        if (row != nullptr) {
          std::memcpy(to, row, bytes);
        } else {
          std::memset(to, 0, bytes);
        }
      }
      std::memset(to, 0, (how.length - n) * bytes);
    }
    return;
  }
  const RowFormat format{RowType::kFp32, dim};
  const auto pooling_single = how.pooling != Pooling::kWeighted && single_[feature] != 0;
  if (pooling_single) {
    for (std::size_t bag = first; bag < last; ++bag) {
      float* __restrict to = out.data + bag * out.stride;
      const float* __restrict row = row_at(bag);
      if (row == nullptr) {
        std::memset(to, 0, bytes);
      } else {
        for (std::uint32_t d = 0; d < dim; ++d) to[d] = 0.0f + row[d];  // as any other sum: never -0
      }
    }
    return;
  }
  std::vector<const char*> bag_rows;
  for (std::size_t bag = first; bag < last; ++bag) {
    const auto from = static_cast<std::size_t>(ids.offsets[bag]);
    const auto n = static_cast<std::size_t>(ids.offsets[bag + 1]) - from;
    bag_rows.resize(n);
    for (std::size_t i = 0; i < n; ++i) bag_rows[i] = reinterpret_cast<const char*>(row_at(from + i));
    pool_rows(format, bag_rows.data(), ids.weights == nullptr ? nullptr : ids.weights + from, n, how.pooling,
              out.data + bag * out.stride);
  }
}

void BatchLookup::set_gradients(const std::vector<FeatureValues<const float>>& grads, std::size_t threads) {
  std::vector<std::size_t> sizes(parts_.size());
  for (std::size_t table = 0; table < parts_.size(); ++table) sizes[table] = parts_[table].places.size();
  const std::vector<std::size_t> order = by_size(parts_.size(), sizes);
  on_threads(threads, order.size(), [&](std::size_t i) { contribute(parts_[order[i]], grads); });
}

void BatchLookup::sum_gradients(float* out, std::size_t threads) const {
  const OptimizerLoops& loops = optimizer_loops();
  on_threads(threads, parts_.size(), [&](std::size_t table) {
    const Part& part = parts_[table];
    const TableGradients& gradients = part.gradients;
    const std::size_t n = gradients.found.ids.size();
    const std::uint32_t dim = tables_[table]->dim();
    if (gradients.starts.size() != n + 1) throw std::invalid_argument("gradients: they have not come");
    for (std::size_t i = 0; i < n; ++i) {
      const std::uint32_t first = gradients.starts[i], count = gradients.starts[i + 1] - first;
      if (count == 0) throw std::invalid_argument("gradients: a feature has none");
      loops.sum(gradients.contributions.data() + first, count, dim, out + part.asked_value[i]);
    }
  });
}

// Lists, for each id, where its gradients lie.
void BatchLookup::contribute(Part& part, const std::vector<FeatureValues<const float>>& grads) const {
  TableGradients& gradients = part.gradients;
  const bool has_all = std::all_of(part.features.begin(), part.features.end(),
                                   [&](std::uint32_t feature) { return grads[feature].data != nullptr; });
  const bool stands_in = std::any_of(part.features.begin(), part.features.end(),
                                     [&](std::uint32_t feature) { return !chains_[feature].levels.empty(); });
  if (!has_all || stands_in || !part.borrowed.empty()) {  // some ids have fewer gradients, or more
    std::fill(gradients.found.counts.begin(), gradients.found.counts.end(), 0);
    const std::uint32_t* place = part.places.data();
    for (const std::uint32_t feature : part.features) {
      std::size_t n = 0;
      for (std::size_t bag = 0; bag < batch_; ++bag) n += used(feature, bag);
      const std::uint8_t* levels = chains_[feature].levels.empty() ? nullptr : chains_[feature].levels.data();
      for (std::size_t i = 0; i < n && grads[feature].data != nullptr; ++i) {
        if (levels == nullptr || levels[i] == 0) ++gradients.found.counts[place[i]];
      }
      place += n;
    }
    for (const Borrowed& each : part.borrowed) {
      if (grads[each.feature].data != nullptr) ++gradients.found.counts[each.place];
    }
    for (std::size_t i = 0; i < gradients.found.ids.size(); ++i) {
      if (gradients.found.counts[i] == 0) gradients.found.slots[i] = gradients.found.beside[i] = 0;  // takes no step
    }
  }
  gradients.set_starts();
  std::vector<std::uint32_t> next(gradients.starts.begin(), gradients.starts.end() - 1);
  const std::uint32_t* place = part.places.data();
  for (const std::uint32_t feature : part.features) {
    const bool has = grads[feature].data != nullptr;
    const std::vector<std::uint8_t>& levels = chains_[feature].levels;
    std::size_t at = 0;
    for (std::size_t bag = 0; bag < batch_; ++bag) {
      const std::size_t n = used(feature, bag);
      for (std::size_t i = 0; has && i < n; ++i) {
        if (!levels.empty() && levels[at + i] != 0) continue;  // another row was read
        gradients.contributions[next[place[i]]++] = contribution(feature, grads[feature], bag, i, n);
      }
      place += n;
      at += n;
    }
  }
  // The row that an id read in place of its own gets the id's gradient.
  for (const Borrowed& each : part.borrowed) {
    if (grads[each.feature].data == nullptr) continue;
    gradients.contributions[next[each.place]++] =
        contribution(each.feature, grads[each.feature], each.bag, each.in_bag, used(each.feature, each.bag));
  }
}

// The gradient that id i of the n used ones of a bag gets.
Contribution BatchLookup::contribution(std::uint32_t feature, const FeatureValues<const float>& grad, std::size_t bag,
                                       std::size_t i, std::size_t n) const {
  const FeatureLookup& how = features_[feature];
  if (how.pooling == Pooling::kNone) {
    const std::uint32_t dim = tables_[how.table]->dim();
    return {grad.data + (bag * how.length + i) * dim, 1.0f, false};
  }
  const float* from = grad.data + bag * grad.stride;
  const FeatureIds& ids = ids_[feature];
  if (how.pooling == Pooling::kWeighted) {
    return {from, ids.weights[static_cast<std::size_t>(ids.offsets[bag]) + i], false};
  }
  const bool divides = how.pooling == Pooling::kMean && n > 1;
  return {from, divides ? static_cast<float>(n) : 1.0f, divides};
}

}  // namespace emberline
