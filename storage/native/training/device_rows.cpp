#include "training/device_rows.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <stdexcept>

#include "training/threads.h"

namespace emberline {

DeviceRows::DeviceRows(BatchLookup& lookup, std::vector<std::uint32_t> groups, const std::vector<const KeptIds*>& kept,
                       std::size_t threads)
    : lookup_(lookup), group_of_(std::move(groups)), at_(group_of_.size()) {
  const std::size_t tables = lookup_.tables().size();
  if (group_of_.size() != tables || kept.size() != tables) {
    throw std::invalid_argument("groups: expected one a table");
  }
  for (std::size_t table = 0; table < tables; ++table) {
    const std::uint32_t dim = lookup_.tables()[table]->dim();
    if (group_of_[table] >= groups_.size()) groups_.resize(group_of_[table] + 1);
    Group& group = groups_[group_of_[table]];
    if (group.dim != 0 && group.dim != dim) throw std::invalid_argument("groups: one has tables of several dims");
    group.dim = dim;
  }
  // By table and found id: one more than the place of a kept row.
  std::vector<std::vector<std::uint32_t>> places(tables);
  std::vector<std::size_t> kept_rows(tables);
  on_threads(threads, tables, [&](std::size_t table) {
    const FoundRows& found = lookup_.found(table);
    places[table].assign(found.ids.size(), 0);
    if (kept[table] == nullptr || kept[table]->size() == 0) return;
    for (std::size_t i = 0; i < found.ids.size(); ++i) {
      if (found.has_row(i)) places[table][i] = kept[table]->get(found.ids[i]);
      kept_rows[table] += places[table][i] != 0;
    }
  });
  std::vector<std::size_t> next_kept(tables), next_other(tables), sizes(groups_.size());
  for (std::size_t table = 0; table < tables; ++table) {
    next_kept[table] = sizes[group_of_[table]];
    sizes[group_of_[table]] += kept_rows[table];
  }
  for (std::size_t group = 0; group < groups_.size(); ++group) groups_[group].kept.resize(sizes[group]);
  for (std::size_t table = 0; table < tables; ++table) {
    Group& group = groups_[group_of_[table]];
    next_other[table] = group.kept.size() + group.others;
    group.others += places[table].size() - kept_rows[table];
    if (group.kept.size() + group.others >= std::numeric_limits<std::int32_t>::max()) {
      throw std::invalid_argument("ids: a batch has more than 2^31 different ids; give smaller batches");
    }
  }
  on_threads(threads, tables, [&](std::size_t table) {
    Group& group = groups_[group_of_[table]];
    at_[table].resize(places[table].size());
    std::size_t own = next_kept[table], other = next_other[table];
    for (std::size_t i = 0; i < places[table].size(); ++i) {
      if (places[table][i] == 0) {
        at_[table][i] = static_cast<std::uint32_t>(other++);
      } else {
        group.kept[own] = static_cast<std::int32_t>(places[table][i] - 1);
        at_[table][i] = static_cast<std::uint32_t>(own++);
      }
    }
  });
}

void DeviceRows::write(const std::vector<float*>& out, std::size_t threads) const {
  on_threads(threads, at_.size(), [&](std::size_t table) {
    const Group& group = groups_[group_of_[table]];
    const std::size_t first = group.kept.size(), bytes = group.dim * sizeof(float);
    const std::vector<const float*>& rows = lookup_.found(table).rows;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      if (at_[table][i] < first) continue;
      float* to = out[group_of_[table]] + (at_[table][i] - first) * group.dim;
      if (rows[i] == nullptr) {
        std::memset(to, 0, bytes);
      } else {
        std::memcpy(to, rows[i], bytes);
      }
    }
  });
}

std::size_t DeviceRows::ids(const std::vector<std::uint32_t>& features) const {
  std::size_t n = 0;
  for (const std::uint32_t feature : features) n += lookup_.ids(feature).n;
  if (n > std::numeric_limits<std::int32_t>::max()) {
    throw std::invalid_argument("ids: a batch has more than 2^31 ids; give smaller batches");
  }
  return n;
}

void DeviceRows::write_bags(const std::vector<std::uint32_t>& features, std::int32_t* places, std::int32_t* offsets,
                            float* weights, std::size_t threads) const {
  const std::size_t batch = lookup_.batch(), side = features.size();
  const std::size_t pieces = threads <= 1 ? 1 : 4 * threads;
  on_threads(threads, pieces, [&](std::size_t piece) {
    const std::size_t first = piece * batch / pieces, last = (piece + 1) * batch / pieces;
    std::size_t to = 0;
    for (const std::uint32_t feature : features) to += static_cast<std::size_t>(lookup_.ids(feature).offsets[first]);
    for (std::size_t bag = first; bag < last; ++bag) {
      for (std::size_t f = 0; f < side; ++f) {
        const std::uint32_t feature = features[f];
        const FeatureIds& ids = lookup_.ids(feature);
        const std::vector<std::uint32_t>& at = at_[lookup_.features()[feature].table];
        const std::uint32_t* found = lookup_.places(feature);
        offsets[bag * side + f] = static_cast<std::int32_t>(to);
        for (auto i = static_cast<std::size_t>(ids.offsets[bag]); i < static_cast<std::size_t>(ids.offsets[bag + 1]);
             ++i, ++to) {
          places[to] = static_cast<std::int32_t>(at[found[i]]);
          if (weights != nullptr) weights[to] = ids.weights[i];
        }
      }
    }
    if (last == batch) offsets[batch * side] = static_cast<std::int32_t>(to);
  });
}

void DeviceRows::write_sequence(std::uint32_t feature, std::int32_t* places) const {
  const FeatureLookup& how = lookup_.features()[feature];
  const std::vector<std::uint32_t>& at = at_[how.table];
  const Group& group = groups_[group_of_[how.table]];
  const auto zeros = static_cast<std::int32_t>(group.kept.size() + group.others);
  const std::uint32_t* found = lookup_.places(feature);
  for (std::size_t bag = 0; bag < lookup_.batch(); ++bag) {
    const std::size_t n = lookup_.used(feature, bag);
    for (std::size_t i = 0; i < n; ++i) *places++ = static_cast<std::int32_t>(at[*found++]);
    for (std::size_t i = n; i < how.length; ++i) *places++ = zeros;
  }
}

DeviceSums DeviceRows::sums(std::size_t group, const std::vector<GradientRows>& from, std::size_t threads) const {
  const std::size_t rows = groups_[group].kept.size() + groups_[group].others, batch = lookup_.batch();
  // Features by table, because a row belongs to one table, and tables are independent of each other.
  std::vector<std::vector<std::uint32_t>> features(group_of_.size());
  bool has_factors = false;
  for (std::uint32_t feature = 0; feature < from.size(); ++feature) {
    const FeatureLookup& how = lookup_.features()[feature];
    if (!from[feature].has || group_of_[how.table] != group) continue;
    features[how.table].push_back(feature);
    has_factors = has_factors || how.pooling == Pooling::kMean || how.pooling == Pooling::kWeighted;
  }
  std::vector<std::uint32_t> counts(rows);
  on_threads(threads, features.size(), [&](std::size_t table) {
    for (const std::uint32_t feature : features[table]) {
      const std::uint32_t* place = lookup_.places(feature);
      for (std::size_t bag = 0; bag < batch; ++bag) {
        for (std::size_t i = lookup_.used(feature, bag); i > 0; --i) ++counts[at_[table][*place++]];
      }
    }
  });
  std::vector<std::uint32_t> next(rows);
  std::size_t terms = 0;
  for (std::size_t row = 0; row < rows; ++row) {
    next[row] = static_cast<std::uint32_t>(terms);
    terms += counts[row];
  }
  if (terms > std::numeric_limits<std::int32_t>::max()) {
    throw std::invalid_argument("ids: a batch has more than 2^31 ids; give smaller batches");
  }
  DeviceSums sums;
  sums.rows.resize(terms);
  if (has_factors) sums.factors.assign(terms, 1.0f);
  on_threads(threads, features.size(), [&](std::size_t table) {
    for (const std::uint32_t feature : features[table]) {
      const std::uint32_t* place = lookup_.places(feature);
      const Pooling pooling = lookup_.features()[feature].pooling;
      const FeatureIds& ids = lookup_.ids(feature);
      for (std::size_t bag = 0; bag < batch; ++bag) {
        const std::size_t n = lookup_.used(feature, bag);
        const std::size_t row = from[feature].first + bag * from[feature].stride;
        for (std::size_t i = 0; i < n; ++i) {
          const std::uint32_t term = next[at_[table][*place++]]++;
          sums.rows[term] = static_cast<std::int32_t>(pooling == Pooling::kNone ? row + i : row);
          if (pooling == Pooling::kMean) sums.factors[term] = 1.0f / static_cast<float>(n);
          if (pooling == Pooling::kWeighted) {
            sums.factors[term] = ids.weights[static_cast<std::size_t>(ids.offsets[bag]) + i];
          }
        }
      }
    }
  });
  constexpr std::uint32_t kTerms = 32;
  bool is_last = false;
  while (!is_last) {
    is_last = std::all_of(counts.begin(), counts.end(), [](std::uint32_t count) { return count <= kTerms; });
    std::vector<std::int32_t>& starts = sums.levels.emplace_back();
    std::uint32_t start = 0;
    for (std::uint32_t& count : counts) {
      const std::uint32_t pieces = is_last ? 1 : (count + kTerms - 1) / kTerms;
      for (std::uint32_t piece = 0; piece < pieces; ++piece) {
        starts.push_back(static_cast<std::int32_t>(start + piece * kTerms));
      }
      start += count;
      count = pieces;
    }
    starts.push_back(static_cast<std::int32_t>(start));
  }
  return sums;
}

std::vector<std::uint8_t> DeviceRows::is_used(std::size_t group, const std::vector<char>& used) const {
  std::vector<std::uint8_t> found(groups_[group].kept.size() + groups_[group].others, 0);
  for (std::uint32_t feature = 0; feature < used.size(); ++feature) {
    const std::uint32_t table = lookup_.features()[feature].table;
    if (used[feature] == 0 || group_of_[table] != group) continue;
    const std::uint32_t* place = lookup_.places(feature);
    for (std::size_t bag = 0; bag < lookup_.batch(); ++bag) {
      for (std::size_t i = lookup_.used(feature, bag); i > 0; --i) found[at_[table][*place++]] = 1;
    }
  }
  return found;
}

void DeviceRows::take_gradients(const std::vector<const float*>& grads, const std::vector<char>& used,
                                std::size_t threads) {
  std::vector<std::vector<std::uint8_t>> is_of_used(groups_.size());
  if (std::find(used.begin(), used.end(), 0) != used.end()) {
    for (std::size_t group = 0; group < groups_.size(); ++group) is_of_used[group] = is_used(group, used);
  }
  on_threads(threads, at_.size(), [&](std::size_t table) {
    const Group& group = groups_[group_of_[table]];
    const std::vector<std::uint8_t>& is_of = is_of_used[group_of_[table]];
    const std::size_t first = group.kept.size();
    TableGradients& gradients = lookup_.gradients(table);
    FoundRows& found = gradients.found;
    gradients.contributions.clear();
    std::size_t n = 0;
    for (std::size_t i = 0; i < found.ids.size(); ++i) {
      const std::size_t at = at_[table][i];
      if (at < first || !found.has_row(i) || (!is_of.empty() && is_of[at] == 0)) continue;
      found.ids[n] = found.ids[i];
      found.slots[n] = found.slots[i];
      found.beside[n] = found.beside[i];
      found.counts[n] = 1;
      gradients.contributions.push_back({grads[group_of_[table]] + (at - first) * group.dim, 1.0f, false});
      ++n;
    }
    found.ids.resize(n);
    found.slots.resize(n);
    found.beside.resize(n);
    found.counts.resize(n);
    found.rows.clear();
    gradients.starts.resize(n + 1);
    for (std::size_t i = 0; i <= n; ++i) gradients.starts[i] = static_cast<std::uint32_t>(i);
  });
}

}  // namespace emberline
