#include "dense/packed.h"

#include <algorithm>
#include <stdexcept>

namespace emberline::dense {

PackedLinear pack_panels(const LinearWeights& from, std::uint32_t vector_width, std::uint32_t vectors) {
  PackedLinear packed;
  packed.in = from.in;
  packed.out = from.out;
  packed.padded_out = (from.out + vector_width - 1) / vector_width * vector_width;
  packed.values.assign(std::size_t{packed.padded_out} * from.in, 0.0f);
  packed.bias.assign(packed.padded_out, 0.0f);
  if (from.bias != nullptr) std::copy_n(from.bias, from.out, packed.bias.begin());
  float* to = packed.values.data();
  for (std::uint32_t first = 0; first < packed.padded_out; first += vector_width * vectors) {
    const std::uint32_t width = std::min(packed.padded_out - first, vector_width * vectors);
    const std::uint32_t used = std::min(from.out - first, width);
    for (std::uint32_t k = 0; k < from.in; ++k, to += width) {
      const float* weight = from.weight + static_cast<std::ptrdiff_t>(k) * from.in_step;
      for (std::uint32_t c = 0; c < used; ++c) to[c] = weight[static_cast<std::ptrdiff_t>(first + c) * from.out_step];
    }
  }
  return packed;
}

PairRuns index_runs(const std::int64_t* index, std::size_t count, std::uint32_t n, std::uint32_t stride) {
  PairRuns found;
  std::vector<Run>& runs = found.runs;
  std::uint32_t row_of_triangle = 1, column_of_triangle = 0;
  found.is_triangle = count == std::size_t{n} * (n - 1) / 2;
  for (std::size_t i = 0; i < count; ++i) {
    if (index[i] < 0 || index[i] >= std::int64_t{n} * n) {
      throw std::invalid_argument("pairs: an index is outside the products of all pairs");
    }
    const auto first = static_cast<std::uint32_t>(index[i] / n), second = static_cast<std::uint32_t>(index[i] % n);
    const std::uint32_t row = std::max(first, second), column = std::min(first, second);
    found.is_triangle = found.is_triangle && row == row_of_triangle && column == column_of_triangle;
    if (++column_of_triangle == row_of_triangle) {
      ++row_of_triangle;
      column_of_triangle = 0;
    }
    const std::uint32_t from = row * stride + column;
    if (!runs.empty() && runs.back().from + runs.back().length == from) {
      ++runs.back().length;
    } else {
      runs.push_back({from, 1});
    }
  }
  if (found.is_triangle) runs.clear();
  return found;
}

}  // namespace emberline::dense
