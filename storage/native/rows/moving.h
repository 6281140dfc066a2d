// Copies rows to other places of memory, and sums their fingerprint. n rows, D values a row.
#pragma once

#include <cstddef>
#include <cstdint>

namespace emberline {

// to[targets[i]] = from[places[i]] for each i, rows of D float32. Returns the first i whose row holds NaN or infinity,
// n if none does; every row is copied all the same.
std::size_t move_rows(const float* from, const std::int64_t* places, float* to, const std::int64_t* targets,
                      std::size_t n, std::size_t dim);

// The sum of the terms of rows, as storage/checkpoint/fingerprint.py defines it.
// rows: n times `words` words of 4 bytes, as they are stored. keys: (words).
std::uint64_t rows_fingerprint(const std::int64_t* ids, const char* rows, std::size_t n, const std::uint64_t* keys,
                               std::size_t words);

// What other values than finite ones there are.
struct NotFinite {
  bool nan = false;
  bool infinity = false;
};

NotFinite not_finite(const float* values, std::size_t n);
// values: bits of bfloat16.
NotFinite not_finite_bf16(const std::uint16_t* values, std::size_t n);

// The first row (n, D) float32 that holds NaN or infinity, n if none does.
std::size_t first_not_finite(const float* rows, std::size_t n, std::size_t dim);

}  // namespace emberline
