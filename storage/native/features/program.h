// A feature spec as a program: built once, then immutable, so any number of threads may run it at once.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "features/arrow.h"
#include "features/batch.h"
#include "features/column.h"
#include "features/cross.h"
#include "features/input.h"
#include "features/source.h"
#include "features/transforms.h"

namespace emberline::features {

// A run allocates for this many rows at most; a larger batch is refused before anything is allocated.
inline constexpr std::int64_t kMaxBatch = std::int64_t{1} << 28;
// Scratch memory that a thread keeps from one run to the next.
inline constexpr std::size_t kKeptScratchBytes = std::size_t{4} << 20;

struct Feature {
  std::string name;
  std::vector<std::size_t> inputs;
  std::optional<Cross> cross;          // set with two inputs or more
  std::vector<Transform> transforms;
  bool is_dense = false;
  std::size_t slot = 0;                // dense: the group; ids: the place among the ids features
  std::int64_t column = 0;             // dense: first column in the group
  std::int64_t width = 0;              // dense: columns
  std::int64_t cut = 0;                // ids: at most so many of a row (pooling none); 0: all
  std::optional<std::size_t> weights;  // ids: the input that holds a weight for each value of the one input
};

class Program {
 public:
  // Throws std::invalid_argument when a feature does not fit its inputs or its group.
  Program(std::vector<Input> inputs, std::vector<Feature> features, std::vector<std::int64_t> group_widths);

  // Runs over all rows of all requests, in their order. Throws InvalidInput; `request` of what it throws is the first
  // request that is refused by itself, as its message says. std::invalid_argument: see RequestSource.
  Batch run(std::span<const Request> requests) const;
  // columns: one an input, nullptr = not in the request. Throws InvalidInput.
  Batch run(const std::vector<const ColumnView*>& columns, std::int64_t batch) const;
  // Runs over requests of one block each. Throws InvalidInput, which names no request.
  Batch run(const BlockLayout& layout, std::span<const Block> blocks) const;
  // Runs over rows in the memory of Arrow; see ArrowSource. Throws InvalidInput, which names no request.
  Batch run(const ArrowSchema& schema, const ArrowArray& rows, std::span<const ArrowInput> places) const;

  const std::vector<Input>& inputs() const { return inputs_; }
  const std::vector<Feature>& features() const { return features_; }
  const std::vector<std::int64_t>& group_widths() const { return group_widths_; }

 private:
  friend class ProgramRun;

  Batch run(const Source& source) const;
  void check(const Source& source) const;
  bool fits_weights(const Feature& feature) const;
  std::int64_t row_ids(const Feature& feature) const;

  std::vector<Input> inputs_;
  std::vector<Feature> features_;
  std::vector<std::int64_t> group_widths_;
  std::vector<std::vector<std::string>> names_;  // of the inputs of each feature
  std::vector<bool> is_filled_;                  // by group: whether its features write all columns
  std::size_t ids_features_ = 0;
  std::int64_t row_bytes_ = 0;                   // estimate: results of a row
};

}  // namespace emberline::features
