// One lookup of several features of several tables, and the gradients that come back for it. A table reads an id once a
// batch, however often it stands there, and its row takes one step.
//
// B bags, N ids of a feature, D dim, L length. Work is divided among threads by tables and by rows, and every sum is
// made by one thread in the order of the ids, so results do not depend on the number of threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "rows/absent.h"
#include "rows/pooling.h"
#include "training/asked_rows.h"
#include "training/table_gradients.h"

namespace emberline {

// A level of a chain of fallbacks: another feature of the lookup, whose id stands for one that has no row.
struct FallbackLevel {
  std::uint32_t feature = 0;
  // Id i of a bag stands for id i; without it, the only id of a bag for all.
  bool parallel = false;
};

// How a feature is looked up.
struct FeatureLookup {
  std::uint32_t table = 0;  // its place in the list of tables
  Pooling pooling = Pooling::kSum;
  // Of kNone: the first ids of a bag that are used; the rest are neither read nor counted.
  std::uint32_t length = 0;
  // What ids without a row read as; without one, what their table says.
  std::optional<SeededInitializer> absent = {};
  // What an id without a row reads first: the row of the first level that has one, then `mean` (D) unless it is null.
  std::vector<FallbackLevel> fallback = {};
  const float* mean = nullptr;
  // The share of the ids with a row that read their chain in training all the same, where it has a row.
  float stand_in = 0.0f;
  // It is found and not counted, it has no output and gets no gradient: a level of other features alone.
  bool hidden = false;

  bool falls_back() const { return !fallback.empty() || mean != nullptr || stand_in > 0.0f; }
};

// The ids of a feature. They must stay where they are until the gradients have come.
struct FeatureIds {
  const std::int64_t* values = nullptr;  // (N)
  const std::int64_t* offsets = nullptr;  // (B + 1)
  const float* weights = nullptr;  // (N), of kWeighted
  std::size_t n = 0;
};

// Where values of a feature lie: pooled (B, D), `stride` floats from bag to bag; kNone (B, L, D) without gaps.
template <class T>
struct FeatureValues {
  T* data = nullptr;
  std::size_t stride = 0;
};

struct LookupOptions {
  // Counts the ids and creates the rows that are due.
  bool train = false;
  std::size_t threads = 1;
  // Draws the ids that read their chain although they have a row; without it, none does.
  std::optional<std::uint64_t> stand_in_seed = {};
};

class BatchLookup {
 public:
  // Throws std::invalid_argument for a table that is not there, or a length of 0.
  BatchLookup(std::vector<TrainingTable*> tables, std::vector<FeatureLookup> features);

  const std::vector<TrainingTable*>& tables() const { return tables_; }
  const std::vector<FeatureLookup>& features() const { return features_; }

  // ids, out: (features). Throws std::invalid_argument for offsets that are none.
  void run(std::vector<FeatureIds> ids, std::size_t batch, const std::vector<FeatureValues<float>>& out,
           const LookupOptions& options);
  // Finds the ids of each table, each once, and their rows. What `run` does beside it is left to DeviceRows.
  void find(std::vector<FeatureIds> ids, std::size_t batch, const LookupOptions& options);
  // What `run` does, in two parts, for rows that lie in other processes. `ask` finds the ids of each table, each once,
  // and returns what is asked of each rank; `pool` takes what they answer, in the order of AskedRows (asked_rows.h).
  // Ids have no row where flags (ids) are 0; without flags all have one.
  AskedIds ask(std::vector<FeatureIds> ids, std::size_t batch, std::uint32_t ranks, std::size_t threads);
  void pool(const float* rows, const std::uint8_t* flags, const std::vector<FeatureValues<float>>& out,
            std::size_t threads);
  // Values of all rows that were asked for, and ids.
  std::size_t asked_values() const { return asked_values_; }
  std::size_t asked_ids() const { return asked_ids_; }
  // Writes the sum of the gradients of each id, out (values) in the order of the rows, after `set_gradients`, which
  // must have had data for every feature. Throws std::invalid_argument.
  void sum_gradients(float* out, std::size_t threads) const;
  // grads: (features), of which those without data are left out. They must stay where they are until the step.
  void set_gradients(const std::vector<FeatureValues<const float>>& grads, std::size_t threads);
  TableGradients& gradients(std::size_t table) { return parts_[table].gradients; }
  const FoundRows& found(std::size_t table) const { return parts_[table].gradients.found; }

  std::size_t batch() const { return batch_; }
  const FeatureIds& ids(std::uint32_t feature) const { return ids_[feature]; }
  // Which of the found ids of its table each used id of a feature is, (ids).
  const std::uint32_t* places(std::uint32_t feature) const {
    return parts_[features_[feature].table].places.data() + begins_[feature];
  }
  // By used id of a feature that falls back: the level that was read, 0 for its own row, fallback.size() + 1 for the
  // mean, one more where none had a row. Empty when every id had a row.
  const std::vector<std::uint8_t>& levels(std::uint32_t feature) const { return chains_[feature].levels; }
  // How many ids of a bag are used.
  std::size_t used(std::uint32_t feature, std::size_t bag) const;

 private:
  // A use of a row as the level of an id of another feature, or of the same table.
  struct Borrowed {
    std::uint32_t feature;  // whose output has the row
    std::uint32_t bag, in_bag;
    std::uint32_t place;  // of the row
  };

  // What a feature that falls back reads, by used id; empty when every id has a row.
  struct Chain {
    std::vector<const float*> rows;
    std::vector<std::uint8_t> levels;
  };

  // The features of a table, and its ids in their order.
  struct Part {
    std::vector<std::uint32_t> features;
    std::vector<Borrowed> borrowed;
    bool waits = false;  // whether a feature needs the rows of other tables
    std::vector<std::uint32_t> places;  // (ids of all its features): which of gradients.found.ids it is
    TableGradients gradients;
    // After `ask`, by found id: its place among all ids that were asked for, and that of its row among all values.
    std::vector<std::uint32_t> asked_id, asked_value;
  };

  // The rows of a feature whose absent ids do not read as its table says, by place.
  struct OwnRows {
    AbsentRows absent;
    std::uint32_t dim;
    std::vector<const float*> rows;
    std::vector<float> made;  // rows of absent ids
  };

  void take(std::vector<FeatureIds> ids, std::size_t batch);
  // Where the id of a level lies among the places of its table; null where the bag has none.
  const std::uint32_t* level_place(std::uint32_t feature, const FallbackLevel& level, std::size_t bag,
                                   std::size_t in_bag);
  void begin_from_chain(std::uint32_t feature);
  void follow_chain(std::uint32_t feature, const std::optional<std::uint64_t>& stand_in_seed);
  static void set_own_rows(const FoundRows& found, OwnRows& own);
  void collect(Part& part);
  void pool(const Part& part, const std::vector<FeatureValues<float>>& out, std::size_t first, std::size_t last) const;
  void pool_feature(const Part& part, std::uint32_t feature, const FeatureValues<float>& out, std::size_t first,
                    std::size_t last) const;
  // row_at(i): the row of the i-th used id, or null.
  template <class RowAt>
  void pool_bags(std::uint32_t feature, const RowAt& row_at, const FeatureValues<float>& out, std::size_t first,
                 std::size_t last) const;
  void check_level(std::uint32_t feature, const FallbackLevel& level) const;
  Contribution contribution(std::uint32_t feature, const FeatureValues<const float>& grad, std::size_t bag,
                            std::size_t i, std::size_t n) const;
  void contribute(Part& part, const std::vector<FeatureValues<const float>>& grads) const;

  std::vector<TrainingTable*> tables_;
  std::vector<FeatureLookup> features_;
  std::vector<Part> parts_;
  std::vector<FeatureIds> ids_;
  std::vector<std::optional<OwnRows>> own_;  // by feature
  std::vector<Chain> chains_;  // by feature
  // By feature of kNone that is a level: where each bag begins among its used ids.
  std::vector<std::vector<std::size_t>> firsts_;
  std::vector<char> single_;  // by feature: every bag has one id
  std::vector<std::size_t> begins_;  // by feature: where its ids begin among the places of its table
  std::size_t batch_ = 0, asked_ids_ = 0, asked_values_ = 0;
};

}  // namespace emberline
