#include "training/pairs.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "rows/isa.h"
#include "table/workers.h"

namespace emberline {

extern const PairLoops kPortablePairs, kAvx2Pairs, kAvx512Pairs;

namespace {

const PairLoops& pair_loops() {
#if defined(__x86_64__)
  // Every processor with AVX2 that is in use has fused multiply-add; it is asked all the same.
  static const bool has_fma = __builtin_cpu_supports("fma") != 0;
  if (isa() == Isa::kAvx512) return kAvx512Pairs;
  if (isa() == Isa::kAvx2 && has_fma) return kAvx2Pairs;
#endif
  return kPortablePairs;
}

// Calls task(first, last, scratch) for pieces of the batch.
template <class Task>
void in_pieces(const PairShape& shape, std::size_t threads, const Task& task) {
  if (shape.vectors < 2 || shape.dim < 1) {
    throw std::invalid_argument("pairs: expected 2 or more vectors of 1 or more values, got " +
                                std::to_string(shape.vectors) + " of " + std::to_string(shape.dim));
  }
  constexpr std::size_t kLeast = 64;
  const std::size_t pieces = std::clamp<std::size_t>(shape.batch / kLeast, 1, std::max<std::size_t>(1, threads));
  Workers::shared().run(pieces, [&](std::size_t piece) {
    std::vector<float> scratch(pair_scratch(shape));
    task(piece * shape.batch / pieces, (piece + 1) * shape.batch / pieces, scratch.data());
  });
}

}  // namespace

void pair_products(const PairShape& shape, const PairVectors<const float>& vectors, float* out, std::size_t threads) {
  in_pieces(shape, threads, [&](std::size_t first, std::size_t last, float* scratch) {
    pair_loops().products(shape, vectors, out, first, last, scratch);
  });
}

void pair_gradients(const PairShape& shape, const PairVectors<const float>& vectors, const float* grad,
                    const PairVectors<float>& grads, std::size_t threads) {
  in_pieces(shape, threads, [&](std::size_t first, std::size_t last, float* scratch) {
    pair_loops().gradients(shape, vectors, grad, grads, first, last, scratch);
  });
}

}  // namespace emberline
