// Dot products of all pairs of vectors of a sample, forward and back: the interaction of DLRM, without the square of
// all products. Floats are rounded as each instruction set does it best; a result does not depend on the number of
// threads.
//
// B samples, V vectors, D dim, P = V (V - 1) / 2 pairs, ordered by the larger number, then by the smaller one.
#pragma once

#include <cstddef>
#include <cstdint>

namespace emberline {

struct PairShape {
  std::size_t batch = 0;
  std::uint32_t vectors = 0, dim = 0;

  std::size_t width() const { return dim + std::size_t{vectors} * (vectors - 1) / 2; }
};

// The vectors of a sample: `first` (B, D), then `rest` (B, V - 1, D); or all of them in `rest` (B, V, D), first null.
template <class T>
struct PairVectors {
  T* first = nullptr;
  T* rest = nullptr;
};

// out (B, D + P): the first vector, then the products. threads: 1 or more.
void pair_products(const PairShape& shape, const PairVectors<const float>& vectors, float* out, std::size_t threads);
// grad (B, D + P), of out; grads: of the vectors, which are written.
void pair_gradients(const PairShape& shape, const PairVectors<const float>& vectors, const float* grad,
                    const PairVectors<float>& grads, std::size_t threads);

// The loops over samples, once for each instruction set. scratch: pair_scratch floats.
struct PairLoops {
  void (*products)(const PairShape& shape, const PairVectors<const float>& vectors, float* out, std::size_t first,
                   std::size_t last, float* scratch);
  void (*gradients)(const PairShape& shape, const PairVectors<const float>& vectors, const float* grad,
                    const PairVectors<float>& grads, std::size_t first, std::size_t last, float* scratch);
};

constexpr std::uint32_t kPairTile = 16;
inline std::size_t pair_padded(std::uint32_t n) { return (n + kPairTile - 1) / kPairTile * kPairTile; }
inline std::size_t pair_scratch(const PairShape& shape) {
  return pair_padded(shape.vectors) * (std::size_t{shape.dim} + pair_padded(shape.vectors) + 2 * kPairTile) +
         pair_padded(shape.vectors) * pair_padded(shape.dim);
}

}  // namespace emberline
