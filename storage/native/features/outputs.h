// Writes the last cells of each feature into a batch.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "features/batch.h"
#include "features/cells.h"

namespace emberline::features {

struct Feature;

class Outputs {
 public:
  // scratch: for what does not outlive the run.
  Outputs(Batch& batch, Arena& scratch) : batch_(batch), scratch_(scratch) {}

  // The ids of each row without its nulls; one row is repeated over the whole batch.
  void put_ids(const Feature& feature, Cells cells);
  // input: whose name stands in the InvalidInput that a value throws which is not a finite float32.
  void put_dense(const Feature& feature, Cells cells, const std::string& input);

 private:
  void put_fixed(const Cells& cells, Jagged& out);
  void put_lists(const Cells& cells, Jagged& out);
  void put_some(Cells cells, std::int64_t cut, Jagged& out);
  std::span<std::int64_t> fixed_offsets(std::int64_t width);
  template <class T>
  std::span<T> take(std::int64_t count) {
    return {batch_.memory().take<T>(count), static_cast<std::size_t>(count)};
  }

  Batch& batch_;
  Arena& scratch_;
  // The offsets of bags of one length that were made already.
  struct FixedOffsets {
    std::int64_t width = 0;
    std::span<std::int64_t> offsets;
  };
  std::array<FixedOffsets, 4> known_;
  std::size_t known_count_ = 0;
};

}  // namespace emberline::features
