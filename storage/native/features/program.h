// A feature spec as a program: built once, then immutable, so any number of threads may run it at once.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "features/column.h"
#include "features/input.h"
#include "features/transforms.h"

namespace emberline::features {

// A run allocates for this many rows at most; a larger batch is refused before anything is allocated.
inline constexpr std::int64_t kMaxBatch = std::int64_t{1} << 28;

struct Jagged {
  std::vector<std::int64_t> values;
  std::vector<std::int64_t> offsets;  // rows + 1
  std::vector<float> weights;         // one for each value where `weighted`, else empty
  bool weighted = false;
};

// Results of a run: dense group g is (batch, widths[g]) row-major; ids feature i is ids[i].
struct Batch {
  std::vector<std::vector<float>> dense;
  std::vector<Jagged> ids;
};

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

  // columns: one an input, nullptr = not in the request. Throws InvalidInput.
  Batch run(const std::vector<const ColumnView*>& columns, std::int64_t batch) const;

  const std::vector<Input>& inputs() const { return inputs_; }
  const std::vector<std::int64_t>& group_widths() const { return group_widths_; }

 private:
  void check(const std::vector<const ColumnView*>& columns, std::int64_t batch) const;
  Cells transform(const Feature& feature, const std::vector<const ColumnView*>& columns, std::int64_t batch) const;
  bool fits_weights(const Feature& feature) const;
  void attach_weights(const Feature& feature, const std::vector<const ColumnView*>& columns, std::int64_t batch,
                      Cells& cells) const;
  void write_dense(const Feature& feature, Cells&& cells, std::int64_t batch, std::vector<float>& out) const;

  std::vector<Input> inputs_;
  std::vector<Feature> features_;
  std::vector<std::int64_t> group_widths_;
  std::size_t ids_features_ = 0;
};

}  // namespace emberline::features
