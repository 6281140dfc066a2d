// Where decoded values go: rows of float32, half precision or bfloat16, four values at a time where they are aligned.
#pragma once

#include "row_decode.cuh"

namespace emberline {

struct alignas(16) Quad32 {
  float values[4];
};
struct alignas(8) Quad16 {
  uint16_t values[4];
};

struct Fp32Output {
  using Value = float;
  using Quad = Quad32;
  EMBERLINE_HD static Value of(float value) { return value; }
};
struct Fp16Output {
  using Value = uint16_t;
  using Quad = Quad16;
  EMBERLINE_HD static Value of(float value) { return float_to_half(value); }
};
struct Bf16Output {
  using Value = uint16_t;
  using Quad = Quad16;
  EMBERLINE_HD static Value of(float value) { return float_to_bfloat(value); }
};

// Writes value_of(0), ..., value_of(kValues - 1) to row[first], row[first + 1], ..., as far as these are within [0,
// dim).
template <class Output, int kValues, class ValueOf>
EMBERLINE_HD void put_values(typename Output::Value* row, int64_t first, int64_t dim, const ValueOf& value_of) {
  using Value = typename Output::Value;
  using Quad = typename Output::Quad;
  if (kValues % 4 == 0 &&
      (reinterpret_cast<uint64_t>(row) + static_cast<uint64_t>(first) * sizeof(Value)) % sizeof(Quad) == 0) {
    EMBERLINE_UNROLL
    for (int v = 0; v + 4 <= kValues; v += 4) {
      if (first + v >= 0 && first + v + 4 <= dim) {
        *reinterpret_cast<Quad*>(row + first + v) = {{Output::of(value_of(v)), Output::of(value_of(v + 1)),
                                                      Output::of(value_of(v + 2)), Output::of(value_of(v + 3))}};
        continue;
      }
      for (int k = v; k < v + 4; ++k) {
        if (first + k >= 0 && first + k < dim) row[first + k] = static_cast<Value>(Output::of(value_of(k)));
      }
    }
    return;
  }
  EMBERLINE_UNROLL
  for (int v = 0; v < kValues; ++v) {
    if (first + v >= 0 && first + v < dim) row[first + v] = Output::of(value_of(v));
  }
}

}  // namespace emberline
