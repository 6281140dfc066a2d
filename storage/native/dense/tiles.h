// Linear layers in bfloat16 by the tiles of AMX, where the processor has them.
//
// Inputs and weights are rounded to bfloat16, sums are float32. A row's results do not depend on the rows beside it.
#pragma once

#include "dense/kernels.h"

namespace emberline::dense {

constexpr std::uint32_t kTileRows16 = 16, kTileDepth = 32, kTileColumns = 16;
constexpr std::size_t kTileValues = std::size_t{kTileDepth} * kTileColumns;

// Whether this processor has tiles of bfloat16, and the kernel lets this process use them.
bool has_tiles();

// Fills `tiles` and `bias`.
PackedLinear pack_tiles(const LinearWeights& from);

// A view of what pack_tiles made.
struct Tiles {
  std::uint32_t in, out;
  const std::uint16_t* values;
  const float* bias;
};

// The values of bfloat16 that `linear_in_tiles` needs in `rounded`, for n rows.
constexpr std::size_t rounded_values(std::size_t n, std::size_t in) {
  return (n + kTileRows16 - 1) / kTileRows16 * kTileRows16 * ((in + kTileDepth - 1) / kTileDepth * kTileDepth);
}

// from (n, in) -> activation(from * weights + bias), to (n, out). rounded: memory on a cache line.
void linear_in_tiles(Rows from, std::size_t n, const Tiles& weights, Activation activation, OutRows to,
                     std::uint16_t* rounded);

}  // namespace emberline::dense
