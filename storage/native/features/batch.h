// The results of a run: spans over memory that one object owns.
#pragma once

#include <cstdint>
#include <span>

#include "features/arena.h"

namespace emberline::features {

// The ids of one feature as bags, one a row: bag r is values[offsets[r], offsets[r + 1]).
struct Jagged {
  std::span<std::int64_t> values;
  std::span<std::int64_t> offsets;  // rows + 1; features whose bags have the same ends share them
  std::span<float> weights;         // one for each value where `weighted`, else empty
  bool weighted = false;
  bool single = false;              // each bag has one id: the offsets are 0, 1, 2 and so on
};

// A dense group, (rows, width) row-major.
struct Dense {
  std::span<float> values;
  std::int64_t width = 0;
};

// The dense groups and the ids features in the order of the program. The spans are valid as long as the batch, or the
// one that it was moved to, and no longer: what may be read from any thread is freed with it.
class Batch {
 public:
  Batch(std::int64_t row_count, std::int64_t groups, std::int64_t ids_features, std::size_t bytes)
      : rows(row_count), memory_(bytes) {
    dense = {memory_.take_filled<Dense>(groups, {}), static_cast<std::size_t>(groups)};
    ids = {memory_.take_filled<Jagged>(ids_features, {}), static_cast<std::size_t>(ids_features)};
  }

  std::int64_t rows;
  std::span<Dense> dense;
  std::span<Jagged> ids;

  Arena& memory() { return memory_; }
  const Arena& memory() const { return memory_; }

 private:
  Arena memory_;
};

}  // namespace emberline::features
