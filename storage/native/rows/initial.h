// The first values of rows: a function of a seed, an id and the place in the row alone, so that a trainer and a server
// that never met have the same.
#pragma once

#include <cstdint>
#include <string>

namespace emberline {

enum class Initial : int {
  kConstant = 0,  // scale
  kUniform = 1,  // in [-scale, scale)
  kNormal = 2,  // standard deviation scale, mean 0
  kTruncatedNormal = 3,  // the same, within two standard deviations
};

struct Initializer {
  Initial kind = Initial::kConstant;
  float scale = 0.0f;

  bool is_zero() const { return scale == 0.0f; }
};

// Throws std::invalid_argument for a name that is none, a scale that is not finite, or below 0 where it is a width.
Initializer initializer_of(const std::string& kind, float scale);

// Uniform value j: with mix and mix_id of bucket.cuh, u = mix(mix_id(id) + mix(seed) + j * 0x9E3779B97F4A7C15) >> 40;
// scale * (u * 2^-23 - 1). Normal ones: Box and Muller's method on the upper and lower half of the same hash; of values
// beyond two standard deviations, further ones are drawn with j + 2^32, j + 2 * 2^32, and so on.
void initial_row(const Initializer& initializer, std::uint64_t seed, std::int64_t id, std::uint32_t dim, float* row);

}  // namespace emberline
