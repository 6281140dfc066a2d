// What ids without a row read as: zeros, or a row that is made of the id alone. Training and serving read it here.
#pragma once

#include <cstdint>
#include <vector>

#include "rows/codec.h"
#include "rows/initial.h"

namespace emberline {

// An initializer and the seed of its hashes, which a constant does not read.
struct SeededInitializer {
  Initializer initializer;
  std::uint64_t seed = 0;
};

// The rows of absent ids of one table or feature, rounded as the table stores rows: an id reads the same whether or not
// such a row was written. D values a row.
class AbsentRows {
 public:
  AbsentRows() = default;  // zeros
  // Throws std::invalid_argument for a constant that int8 cannot scale.
  AbsentRows(const SeededInitializer& from, RowFormat format);

  bool is_zero() const { return from_.initializer.is_zero(); }
  // Whether one row serves every id; `row` then writes nothing.
  bool is_constant() const { return !constant_.empty(); }
  // The row (D) of an id, unless it is zero: a constant lies here, another one is made in scratch (D).
  const float* row(std::int64_t id, float* scratch) const {
    if (is_constant()) return constant_.data();
    make(id, scratch);
    return scratch;
  }
  // Writes the row (D) of an id, zeros too.
  void write(std::int64_t id, float* out) const;

 private:
  void make(std::int64_t id, float* out) const;

  SeededInitializer from_;
  RowFormat format_;
  std::vector<float> constant_;
};

}  // namespace emberline
