#include "dense/packed.h"

#include <algorithm>
#include <stdexcept>

namespace emberline::dense {

PackedLinear pack_panels(const LinearWeights& from, std::uint32_t lanes, std::uint32_t vectors) {
  PackedLinear packed;
  packed.in = from.in;
  packed.out = from.out;
  packed.padded_out = (from.out + lanes - 1) / lanes * lanes;
  packed.values.assign(std::size_t{packed.padded_out} * from.in, 0.0f);
  packed.bias.assign(packed.padded_out, 0.0f);
  if (from.bias != nullptr) std::copy_n(from.bias, from.out, packed.bias.begin());
  float* to = packed.values.data();
  for (std::uint32_t first = 0; first < packed.padded_out; first += lanes * vectors) {
    const std::uint32_t width = std::min(packed.padded_out - first, lanes * vectors);
    const std::uint32_t used = std::min(from.out - first, width);
    for (std::uint32_t k = 0; k < from.in; ++k, to += width) {
      const float* weight = from.weight + static_cast<std::ptrdiff_t>(k) * from.in_step;
      for (std::uint32_t c = 0; c < used; ++c) to[c] = weight[static_cast<std::ptrdiff_t>(first + c) * from.out_step];
    }
  }
  return packed;
}

std::vector<Run> index_runs(const std::int64_t* index, std::size_t count, std::uint32_t n, std::uint32_t stride) {
  std::vector<Run> runs;
  for (std::size_t i = 0; i < count; ++i) {
    if (index[i] < 0 || index[i] >= std::int64_t{n} * n) {
      throw std::invalid_argument("pairs: an index is outside the products of all pairs");
    }
    const auto row = static_cast<std::uint32_t>(index[i] / n), column = static_cast<std::uint32_t>(index[i] % n);
    const std::uint32_t from = std::max(row, column) * stride + std::min(row, column);
    if (!runs.empty() && runs.back().from + runs.back().length == from) {
      ++runs.back().length;
    } else {
      runs.push_back({from, 1});
    }
  }
  return runs;
}

}  // namespace emberline::dense
