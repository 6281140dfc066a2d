// Weights of a linear layer in the order in which the kernels read them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>
#include <vector>

namespace emberline::dense {

// Memory that begins on a cache line.
template <class T>
struct LineAllocator {
  using value_type = T;
  LineAllocator() = default;
  template <class U>
  LineAllocator(const LineAllocator<U>&) {}  // NOLINT(google-explicit-constructor)
  T* allocate(std::size_t n) { return static_cast<T*>(::operator new(n * sizeof(T), std::align_val_t{64})); }
  void deallocate(T* p, std::size_t) { ::operator delete(p, std::align_val_t{64}); }
  bool operator==(const LineAllocator&) const { return true; }
};
template <class T>
using Lines = std::vector<T, LineAllocator<T>>;

// A matrix of `in` rows and `out` columns, and a bias. Columns are cut into panels, which hold theirs row by row:
//
//   panel p, row k, column c of the panel: values[start of p + k * width of p + c]
//
// All panels have the kernels' full width but the last, which is as narrow as whole vectors allow. Columns past `out`
// are zero.
struct Panels {
  std::uint32_t in, out;
  // Columns with those that fill the last vector.
  std::uint32_t padded_out;
  const float* values;
  const float* bias;
};

// The panels of a linear layer, and their memory.
struct PackedLinear {
  std::uint32_t in = 0, out = 0, padded_out = 0;
  Lines<float> values;
  Lines<float> bias;  // (padded_out); zeros where there is none
  // In bfloat16, where that is allowed and the processor has tiles of it: 32 rows and 16 columns a tile, those of the
  // first 16 columns first, each as 16 pairs of rows. `values` is then empty.
  Lines<std::uint16_t> tiles;

  Panels panels() const { return {in, out, padded_out, values.data(), bias.data()}; }
  std::size_t bytes() const { return (values.size() + bias.size()) * sizeof(float) + tiles.size() * sizeof(tiles[0]); }
};

// weight: (out, in), a value every `out_step` and `in_step` floats. bias: (out) or null.
struct LinearWeights {
  const float* weight;
  std::ptrdiff_t out_step, in_step;
  const float* bias;
  std::uint32_t in, out;
};

// vector_width: floats of a vector. vectors: of a full panel.
PackedLinear pack_panels(const LinearWeights& from, std::uint32_t vector_width, std::uint32_t vectors);

// One run of neighbouring products that an index takes from the lower triangle of a square.
struct Run {
  std::uint32_t from, length;
};

// What an index takes of the products of all pairs of vectors, in its order.
struct PairRuns {
  // Whether it takes the triangle below the diagonal, row by row. `runs` is then empty.
  bool is_triangle = false;
  std::vector<Run> runs;
};

// n: vectors. stride: floats from one row of their square to the next. The square is symmetric: a product above the
// diagonal is taken from below it. Throws std::invalid_argument for an index outside 0 to n * n - 1.
PairRuns index_runs(const std::int64_t* index, std::size_t count, std::uint32_t n, std::uint32_t stride);

}  // namespace emberline::dense
