// A lookup of many tables, as Python holds it.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "rows/bind_absent.h"
#include "training/batch_lookup.h"
#include "training/bind_training.h"

namespace emberline::bind {

// A lookup, and the arrays that it reads: they are kept until the next call.
class KeptLookup {
 public:
  using PyFeatures = std::vector<std::tuple<std::uint32_t, int, std::uint32_t>>;

  // Levels (feature, parallel) of a feature, the mean row of its table or None, and the share of ids with a row that
  // read the chain too.
  using PyChain = std::tuple<std::vector<std::pair<std::uint32_t, bool>>, nb::object, float>;
  using PyChains = std::optional<std::vector<std::optional<PyChain>>>;

  // features: (table, pooling, length) each. chains: one a feature, or none. hidden: numbers of features.
  KeptLookup(std::vector<TrainingTable*> tables, const PyFeatures& features, const PyAbsents& absent,
             const PyChains& chains, const std::vector<std::uint32_t>& hidden)
      : lookup_(std::move(tables), of(features, absent, chains, hidden, means_)) {
    for (const FeatureLookup& feature : lookup_.features()) {
      columns_.push_back(width_);
      if (feature.pooling != Pooling::kNone && !feature.hidden) width_ += lookup_.tables()[feature.table]->dim();
    }
  }

  KeptLookup(const KeptLookup&) = delete;
  KeptLookup& operator=(const KeptLookup&) = delete;

  std::size_t width() const { return width_; }

  void run(const nb::list& values, const nb::list& offsets, const nb::list& weights, std::size_t batch,
           nb::handle pooled, const nb::list& sequences, bool train, std::size_t threads,
           std::optional<std::uint64_t> stand_in_seed) {
    std::vector<FeatureIds> ids = taken(values, offsets, weights, batch);
    const std::vector<FeatureValues<float>> out = places<float>(pooled, sequences, batch);
    const LookupOptions options{train, std::max<std::size_t>(1, threads), stand_in_seed};
    const nb::gil_scoped_release release;
    lookup_.run(std::move(ids), batch, out, options);
  }

  // Returns what is asked of each rank: ids by rank and table, the message, and its bytes by rank.
  nb::tuple ask(const nb::list& values, const nb::list& offsets, const nb::list& weights, std::size_t batch,
                std::uint32_t ranks, std::size_t threads) {
    if (ranks == 0) fail("ranks: expected 1 or more");
    std::vector<FeatureIds> ids = taken(values, offsets, weights, batch);
    AskedIds asked;
    {
      const nb::gil_scoped_release release;
      asked = lookup_.ask(std::move(ids), batch, ranks, std::max<std::size_t>(1, threads));
    }
    return nb::make_tuple(to_numpy(std::move(asked.numbers)), to_numpy(std::move(asked.message)),
                          to_numpy(std::move(asked.bytes)));
  }

  void find(const nb::list& values, const nb::list& offsets, const nb::list& weights, std::size_t batch, bool train,
            std::size_t threads) {
    std::vector<FeatureIds> ids = taken(values, offsets, weights, batch);
    const nb::gil_scoped_release release;
    lookup_.find(std::move(ids), batch, {train, std::max<std::size_t>(1, threads)});
  }

  std::size_t asked_values() const { return lookup_.asked_values(); }
  std::size_t asked_ids() const { return lookup_.asked_ids(); }

  void pool(nb::handle rows, nb::handle flags, nb::handle pooled, const nb::list& sequences, std::size_t threads) {
    const Floats row(rows, "rows", {lookup_.asked_values()});
    std::optional<ArrayView<const std::uint8_t>> flag;
    if (!flags.is_none()) flag.emplace(flags, "flags", std::initializer_list<std::size_t>{lookup_.asked_ids()});
    const std::vector<FeatureValues<float>> out = places<float>(pooled, sequences, batch_);
    const nb::gil_scoped_release release;
    lookup_.pool(row.data(), flag ? flag->data() : nullptr, out, std::max<std::size_t>(1, threads));
  }

  void sum_gradients(nb::handle out, std::size_t threads) const {
    const ArrayView<float> sums(out, "out", {lookup_.asked_values()});
    const nb::gil_scoped_release release;
    lookup_.sum_gradients(sums.data(), std::max<std::size_t>(1, threads));
  }

  void set_gradients(nb::handle pooled, const nb::list& sequences, std::size_t threads) {
    grads_.clear();
    const std::vector<FeatureValues<const float>> grads = places<const float>(pooled, sequences, batch_);
    const nb::gil_scoped_release release;
    lookup_.set_gradients(grads, std::max<std::size_t>(1, threads));
  }

  nb::object levels(std::uint32_t feature) const {
    if (feature >= lookup_.features().size()) fail("feature: there is no feature " + std::to_string(feature));
    return to_numpy(std::vector<std::uint8_t>(lookup_.levels(feature)));
  }

  TableGradients& gradients(std::size_t table) {
    if (table >= lookup_.tables().size()) fail("table: there is no table " + std::to_string(table));
    return lookup_.gradients(table);
  }

  BatchLookup& lookup() { return lookup_; }
  // Keeps gradients as long as `gradients` may be used.
  void keep_gradients(std::vector<Floats> grads) { grads_ = std::move(grads); }

 private:
  static std::vector<FeatureLookup> of(const PyFeatures& features, const PyAbsents& absent, const PyChains& chains,
                                       const std::vector<std::uint32_t>& hidden, std::vector<Floats>& means) {
    const std::vector<std::optional<SeededInitializer>> reads_as = absents_of(absent, features.size());
    std::vector<FeatureLookup> made;
    for (const auto& [table, pooling, length] : features) {
      if (pooling < 0 || pooling > 3) fail("pooling: expected 0 to 3, got " + std::to_string(pooling));
      made.push_back({table, static_cast<Pooling>(pooling), length, reads_as[made.size()]});
    }
    for (const std::uint32_t feature : hidden) {
      if (feature >= made.size()) fail("hidden: there is no feature " + std::to_string(feature));
      made[feature].hidden = true;
    }
    if (!chains) return made;
    if (chains->size() != made.size()) fail("chains: expected one a feature, got " + std::to_string(chains->size()));
    for (std::size_t f = 0; f < made.size(); ++f) {
      if (!(*chains)[f]) continue;
      const auto& [levels, mean, stand_in] = *(*chains)[f];
      made[f].stand_in = stand_in;
      for (const auto& [level, parallel] : levels) made[f].fallback.push_back({level, parallel});
      if (mean.is_none()) continue;
      means.push_back(Floats::of_rank(1, mean, {"chains", f}));
      made[f].mean = means.back().data();
    }
    return made;
  }

  static void expect(const nb::list& list, std::size_t n, const char* name, const char* of = "feature") {
    if (list.size() == n) return;
    fail(std::string(name) + ": expected " + std::to_string(n) + " entries, one a " + of + ", got " +
         std::to_string(list.size()));
  }

  // Keeps the ids of each feature and returns where they lie.
  std::vector<FeatureIds> taken(const nb::list& values, const nb::list& offsets, const nb::list& weights,
                                std::size_t batch) {
    const std::vector<FeatureLookup>& features = lookup_.features();
    expect(values, features.size(), "values");
    expect(offsets, features.size(), "offsets");
    expect(weights, features.size(), "weights");
    values_.clear();
    offsets_.clear();
    weights_.clear();
    std::vector<FeatureIds> ids;
    for (std::size_t f = 0; f < features.size(); ++f) {
      values_.push_back(Ids::of_rank(1, values[f], {"values", f}));
      offsets_.emplace_back(offsets[f], ArgumentName("offsets", f), std::initializer_list<std::size_t>{batch + 1});
      FeatureIds given{values_.back().data(), offsets_.back().data(), nullptr, values_.back().size()};
      if (features[f].pooling == Pooling::kWeighted) {
        weights_.emplace_back(weights[f], ArgumentName("weights", f), std::initializer_list<std::size_t>{given.n});
        given.weights = weights_.back().data();
      }
      ids.push_back(given);
    }
    batch_ = batch;
    return ids;
  }

  // Where the values of each feature lie: pooled (B, width), sequences (B, L, D) each; None where there are none.
  template <class T>
  std::vector<FeatureValues<T>> places(nb::handle pooled, const nb::list& sequences, std::size_t batch) {
    const std::vector<FeatureLookup>& features = lookup_.features();
    std::vector<FeatureValues<T>> found(features.size());
    T* first = nullptr;
    if (!pooled.is_none()) {
      ArrayView<T> view(pooled, "pooled", {batch, width_});
      first = view.data();
      keep(std::move(view));
    }
    std::size_t sequence = 0;
    for (std::size_t f = 0; f < features.size(); ++f) {
      const std::uint32_t dim = lookup_.tables()[features[f].table]->dim();
      if (features[f].hidden) continue;
      if (features[f].pooling != Pooling::kNone) {
        if (first != nullptr) found[f] = {first + columns_[f], width_};
        continue;
      }
      if (sequence == sequences.size()) fail("sequences: there are too few");
      const nb::object given = sequences[sequence];
      if (!given.is_none()) {
        ArrayView<T> view(given, ArgumentName("sequences", sequence), {batch, features[f].length, dim});
        found[f] = {view.data(), 0};
        keep(std::move(view));
      }
      ++sequence;
    }
    return found;
  }

  void keep(ArrayView<float>&&) {}  // written before the call ends
  void keep(ArrayView<const float>&& view) { grads_.push_back(std::move(view)); }

  std::vector<Floats> means_;  // before lookup_, which is made with them
  BatchLookup lookup_;
  std::vector<std::size_t> columns_;  // by feature
  std::size_t width_ = 0, batch_ = 0;
  std::vector<Ids> values_, offsets_;
  std::vector<Floats> weights_, grads_;
};

}  // namespace emberline::bind
