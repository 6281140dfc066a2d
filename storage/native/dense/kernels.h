// The arithmetic of a dense graph over rows of float32, once per instruction set.
//
// A row's results do not depend on the rows beside it: each sum has one order, whatever the number of rows. Sets that
// multiply and add in one rounding (all but the portable one) give the same bits.
#pragma once

#include <cstddef>
#include <cstdint>

#include "dense/packed.h"
#include "rows/isa.h"

namespace emberline::dense {

enum class Activation : std::uint8_t { kNone, kRelu, kSigmoid, kTanh, kSilu };
constexpr int kActivations = 5;
enum class Binary : std::uint8_t { kAdd, kSubtract, kMultiply };
constexpr int kBinaries = 3;

// Rows of floats, `stride` floats apart; 0 repeats one row.
struct Rows {
  const float* data;
  std::size_t stride;
};
struct OutRows {
  float* data;
  std::size_t stride;
};

struct DenseKernels {
  // Floats of a vector, and vectors of a full panel.
  std::uint32_t width, vectors;
  // from (n, in) -> activation(from * weights + bias), to (n, out)
  void (*linear)(Rows from, std::size_t n, const Panels& weights, Activation activation, OutRows to);
  // The products of all pairs of `n` vectors of `dim` values, at or below the diagonal, into `to`, row i at
  // i * square_stride(n); what stands behind the diagonal is not defined. transposed: dim * square_stride(n) floats of
  // scratch memory.
  void (*square)(const float* const* vectors, std::size_t n, std::size_t dim, float* transposed, float* to);
  // Those below the diagonal alone, one row behind the other: n * (n - 1) / 2 floats.
  void (*triangle)(const float* const* vectors, std::size_t n, std::size_t dim, float* transposed, float* to);
  // Copies runs of a square one behind the other into `to`, `total` floats.
  void (*take_runs)(const float* square, const Run* runs, std::size_t count, float* to, std::size_t total);
  void (*activate)(Activation activation, const float* from, std::size_t n, float* to);
  void (*combine)(Binary operation, const float* a, const float* b, std::size_t n, float* to);
  // from (outer, middle, inner) -> sums over the middle, to (outer, inner)
  void (*sum)(const float* from, std::size_t outer, std::size_t middle, std::size_t inner, float* to);

  std::size_t square_stride(std::size_t n) const { return (n + width - 1) / width * width; }
};

// Kernels of each instruction set, each in a file of its own; those that the build lacks are not defined.
extern const DenseKernels kPortableDense, kAvx2Dense, kAvx512Dense, kNeonDense;

const DenseKernels& dense_kernels(Isa isa);

}  // namespace emberline::dense
