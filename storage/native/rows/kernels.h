// Operations on encoded rows, once per instruction set: encode, decode, copy out by address, pool. All sets give the
// same bits: values are multiplied and added in the same order, without fused multiply-add.
#pragma once

#include <cstddef>
#include <cstdint>

#include "rows/codec.h"
#include "rows/isa.h"

namespace emberline {

// N rows, D dim. Arrays are indexed by RowType.
struct RowKernels {
  // rows (N, D) -> encoded (N, row_bytes). int8 values must be finite.
  using Encode = void (*)(const float* rows, std::size_t n, std::uint32_t dim, char* encoded);
  // encoded (N, row_bytes) -> rows (N, D)
  using Decode = void (*)(const char* encoded, std::size_t n, std::uint32_t dim, float* rows);
  // The rows at n addresses, none of them null -> out (N, D), the very values.
  using Gather = void (*)(const char* const* rows, std::size_t n, std::uint32_t dim, float* out);
  // 0 + weights[0] * rows[0] + weights[1] * rows[1] + ..., in this order, null rows left out; then divided by `divisor`
  // unless that is 1. weights: (n), or null for a plain sum. out (D).
  using Pool = void (*)(const char* const* rows, const float* weights, std::size_t n, std::uint32_t dim, float divisor,
                        float* out);
  // The sums of n bags of one row each, none of them null: 0 + row -> N times D values, `stride` floats apart. Differs
  // from Gather in the sign of a zero too.
  using Singles = void (*)(const char* const* rows, std::size_t n, std::uint32_t dim, float* out, std::size_t stride);

  Encode encode[kRowTypes];
  Decode decode[kRowTypes];
  Gather gather[kRowTypes];
  Pool pool[kRowTypes];
  Singles singles[kRowTypes];
};

// Kernels of each instruction set, each in a file of its own; those that the build lacks are not defined.
extern const RowKernels kPortableRows, kAvx2Rows, kAvx512Rows, kNeonRows;

const RowKernels& row_kernels(Isa isa);
inline const RowKernels& row_kernels() { return row_kernels(isa()); }

}  // namespace emberline
