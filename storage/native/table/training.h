// A table that is trained: rows are born when their id has been seen often enough, and are updated in place by fused optimizers.
//
// One thread at a time: training alternates lookup and update, and nobody reads in between.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "table/lookup.h"
#include "table/table.h"

namespace emberline {

struct TrainingOptions {
  uint32_t dim;
  uint32_t slots;       // optimizer floats behind a row: dim for Adagrad, 0 for SGD
  uint64_t seed;
  float init_scale;     // a new row is uniform in [-init_scale, init_scale), from (seed, id) alone
  uint32_t admit_after; // occurrences until an id gets a row; 0 and 1 admit at once
};

struct TrainedRows {
  std::vector<int64_t> ids;  // ascending
  std::vector<float> rows;   // (n, dim)
  std::vector<float> slots;  // (n, slots)
  std::vector<uint32_t> counts;
};

class TrainingTable {
 public:
  explicit TrainingTable(const TrainingOptions& options);

  const TrainingOptions& options() const { return options_; }
  uint64_t size() const { return table_.size(); }
  size_t memory_bytes() const { return table_.memory_bytes(); }

  // ids (n) -> out (n, dim), zeros where there is no row. With `train`, counts the occurrences and creates admitted rows, whose
  // optimizer slots start at initial_slot. Returns the ids that had a row.
  size_t lookup(const int64_t* ids, size_t n, float* out, bool train, float initial_slot);

  // Bags of values (offsets has bags + 1 entries) -> out (bags, dim); mean divides by the ids given.
  size_t pool(const int64_t* values, const int64_t* offsets, size_t bags, Pooling pooling, float* out, bool train, float initial_slot);

  // Gradients of equal ids are summed in their order, then each row takes one step. Ids without a row are dropped. Returns rows updated.
  size_t adagrad(const int64_t* ids, const float* grads, size_t n, float learning_rate, float epsilon);
  size_t sgd(const int64_t* ids, const float* grads, size_t n, float learning_rate);

  TrainedRows export_rows() const;
  void restore(const int64_t* ids, const float* rows, const float* slots, const uint32_t* counts, size_t n);

  // Ids seen, but not often enough yet.
  void export_waiting(std::vector<int64_t>& ids, std::vector<uint32_t>& counts) const;
  void restore_waiting(const int64_t* ids, const uint32_t* counts, size_t n);

 private:
  uint32_t slot_for(int64_t id, bool train, float initial_slot);
  size_t sum_gradients(const int64_t* ids, const float* grads, size_t n);
  uint32_t& count_of(uint32_t slot);

  TrainingOptions options_;
  Table table_;
  std::vector<uint32_t> counts_;                   // by slot
  std::unordered_map<int64_t, uint32_t> waiting_;  // id -> occurrences, until it is admitted

  // Scratch of one update: the rows touched, in the order of first appearance, and their summed gradients.
  std::unordered_map<uint32_t, uint32_t> touched_;
  std::vector<uint32_t> touched_slots_;
  std::vector<float> sums_;
};

// d(pooled) -> d(rows): grad (bags, dim) -> out (values, dim).
void expand_gradient(const int64_t* offsets, size_t bags, size_t dim, Pooling pooling, const float* grad, float* out);

}  // namespace emberline
