// Pooling of rows by address, in the order of the ids; a null row adds nothing. One function for every caller, so that
// a bag comes out bit for bit the same whichever tier its rows came from, in training as in serving.
#pragma once

#include <cstddef>
#include <cstdint>

#include "rows/kernels.h"

namespace emberline {

// Weighted: the sum of weight * row, one weight an id.
enum class Pooling : int { kSum = 0, kMean = 1, kNone = 2, kWeighted = 3 };

// rows: n addresses of encoded rows. weights: (n) for kWeighted, else not read. out: (D). Mean divides by n, absent
// rows included; an empty bag gives zeros.
inline void pool_rows(RowFormat format, const char* const* rows, const float* weights, std::size_t n, Pooling pooling,
                      float* out) {
  const float divisor = pooling == Pooling::kMean && n > 1 ? static_cast<float>(n) : 1.0f;
  row_kernels().pool[static_cast<int>(format.type)](rows, pooling == Pooling::kWeighted ? weights : nullptr, n,
                                                    format.dim, divisor, out);
}

// Throws std::invalid_argument unless offsets (batch + 1) start at 0, never fall and end at `values`.
void check_offsets(const std::int64_t* offsets, std::size_t batch, std::size_t values, const char* name);
// The same, of one feature of several. Returns whether every bag has one id.
bool check_offsets(const std::int64_t* offsets, std::size_t batch, std::size_t values, const char* name,
                   std::size_t feature);

}  // namespace emberline
