// One batch over many tables and features: find, pool, and what to do about misses.
//
// begin() answers every bag whose rows are all in DRAM, straight into the caller's buffers. A bag with a miss is set aside: the rows at
// hand are copied out, so that no epoch is held while the caller fetches the rest. supply() takes the missing rows, finish() sums the bags
// set aside, in the order of their ids: results are bit-identical whatever tier a row came from.
//
// One object a lane; it keeps its scratch between calls and is not thread-safe. The tables are shared.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "table/table.h"

namespace emberline {

enum class Pooling : int { kSum = 0, kMean = 1, kNone = 2 };
enum class RowState : uint8_t { kAbsent = 0, kFound = 1, kUnresolved = 2 };

struct FeatureLookup {
  uint32_t table;
  Pooling pooling;
  uint32_t length;  // kNone: rows a bag, padded with zeros, cut to the first `length` ids
};

// What one feature of a batch reads and writes. offsets has batch + 1 entries from 0 to the number of values, never falling.
struct FeatureBatch {
  const int64_t* values;
  const int64_t* offsets;
  float* output;  // (batch, dim) or (batch, length, dim), fully written
  uint8_t* mask;  // (batch, length), 1 where a row was found; kNone only, else null
};

struct LookupCounts {
  uint64_t resident = 0, supplied = 0, absent = 0, unresolved = 0;
};

class Lookup {
 public:
  Lookup(std::vector<std::shared_ptr<Table>> tables, std::vector<FeatureLookup> features);

  const std::vector<FeatureLookup>& features() const { return features_; }
  const Table& table(size_t number) const { return *tables_[number]; }
  size_t tables() const { return tables_.size(); }

  // Returns the number of different missing ids over all tables.
  size_t begin(uint64_t batch, const std::vector<FeatureBatch>& inputs);
  const std::vector<int64_t>& missing(size_t table) const { return missing_[table].ids; }
  // rows (m, dim) and state (m), in the order of missing(table); copied.
  void supply(size_t table, const float* rows, const uint8_t* state);
  LookupCounts finish();

 private:
  struct Missing {
    std::vector<int64_t> ids;
    std::unordered_map<int64_t, uint32_t> positions;
    std::vector<float> rows;
    std::vector<uint8_t> state;
  };
  struct LateBag {
    uint32_t feature;
    uint64_t bag;
    size_t first;  // into late_
    uint64_t count;
  };
  struct LateId {
    bool resident;
    size_t at;  // resident: into late_rows_; else: position in missing_[table]
  };

  void run_feature(uint32_t number, uint64_t batch, const FeatureBatch& input);
  void set_aside(uint32_t number, uint64_t bag, const int64_t* values, const uint32_t* slots, uint64_t count);
  void finish_bag(const LateBag& late);

  std::vector<std::shared_ptr<Table>> tables_;
  std::vector<FeatureLookup> features_;
  std::vector<FeatureBatch> inputs_;
  std::vector<uint32_t> slots_;
  std::vector<Missing> missing_;
  std::vector<LateBag> late_bags_;
  std::vector<LateId> late_;
  std::vector<float> late_rows_;
  LookupCounts counts_;
};

}  // namespace emberline
