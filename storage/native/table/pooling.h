// Pooling of rows by address, in the order of the ids; a null row adds nothing. One function for every caller, so that a bag
// comes out bit for bit the same whichever tier its rows came from, in training as in serving.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace emberline {

enum class Pooling : int { kSum = 0, kMean = 1, kNone = 2 };

// rows: n addresses. out: (dim). Mean divides by n, absent rows included; an empty bag gives zeros.
inline void pool_rows(const float* const* rows, std::size_t n, std::uint32_t dim, Pooling pooling, float* __restrict out) {
  std::memset(out, 0, dim * sizeof(float));
  for (std::size_t i = 0; i < n; ++i) {
    const float* __restrict row = rows[i];
    if (row == nullptr) continue;
    for (std::uint32_t d = 0; d < dim; ++d) out[d] += row[d];
  }
  if (pooling == Pooling::kMean && n > 1) {
    const float count = static_cast<float>(n);
    for (std::uint32_t d = 0; d < dim; ++d) out[d] /= count;
  }
}

// Throws std::invalid_argument unless offsets (batch + 1) start at 0, never fall and end at `values`.
void check_offsets(const std::int64_t* offsets, std::size_t batch, std::size_t values, const char* name);

}  // namespace emberline
