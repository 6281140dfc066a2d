// Row arithmetic of pooling. The order of additions is part of the contract: first row copied, then each next one added.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace emberline {

inline void copy_row(float* to, const float* row, size_t dim) { std::memcpy(to, row, dim * sizeof(float)); }

inline void add_row(float* __restrict to, const float* __restrict row, size_t dim) {
  for (size_t d = 0; d < dim; ++d) to[d] += row[d];
}

inline void zero_row(float* to, size_t dim) { std::memset(to, 0, dim * sizeof(float)); }

// A mean divides by the ids given: an absent id adds zero and still counts.
inline void divide_row(float* to, size_t dim, uint64_t given) {
  const float divisor = static_cast<float>(given);
  for (size_t d = 0; d < dim; ++d) to[d] /= divisor;
}

}  // namespace emberline
