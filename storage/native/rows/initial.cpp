#include "rows/initial.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <stdexcept>

#include "bucket.cuh"

namespace emberline {
namespace {

constexpr std::uint64_t kStep = 0x9E3779B97F4A7C15ull;
constexpr const char* kNames[] = {"constant", "uniform", "normal", "truncated_normal"};

double normal(std::uint64_t bits) {
  const double radius = (static_cast<double>(bits >> 32) + 1.0) * 0x1p-32;  // in (0, 1]
  const double angle = static_cast<double>(bits & 0xFFFFFFFFu) * 0x1p-32;
  return std::sqrt(-2.0 * std::log(radius)) * std::cos(2.0 * std::numbers::pi * angle);
}

}  // namespace

Initializer initializer_of(const std::string& kind, float scale) {
  const auto* const found = std::find(std::begin(kNames), std::end(kNames), kind);
  if (found == std::end(kNames)) {
    throw std::invalid_argument("initializer: expected constant, uniform, normal or truncated_normal, got '" + kind +
                                "'");
  }
  const Initializer made{static_cast<Initial>(found - std::begin(kNames)), scale};
  if (!std::isfinite(scale) || (made.kind != Initial::kConstant && scale < 0)) {
    throw std::invalid_argument("initializer: the scale must be 0 or more, got " + std::to_string(scale));
  }
  return made;
}

void initial_row(const Initializer& initializer, std::uint64_t seed, std::int64_t id, std::uint32_t dim, float* row) {
  const std::uint64_t base = mix_id(id) + mix(seed);
  const float scale = initializer.scale;
  switch (initializer.kind) {
    case Initial::kConstant: std::fill_n(row, dim, scale); break;
    case Initial::kUniform:
      for (std::uint32_t j = 0; j < dim; ++j) {
        row[j] = scale * (static_cast<float>(mix(base + j * kStep) >> 40) * 0x1p-23f - 1.0f);
      }
      break;
    case Initial::kNormal:
      for (std::uint32_t j = 0; j < dim; ++j) row[j] = scale * static_cast<float>(normal(mix(base + j * kStep)));
      break;
    case Initial::kTruncatedNormal:
      for (std::uint32_t j = 0; j < dim; ++j) {
        double value = normal(mix(base + j * kStep));
        for (std::uint64_t next = j; std::abs(value) > 2.0;) {
          next += std::uint64_t{1} << 32;
          value = normal(mix(base + next * kStep));
        }
        row[j] = scale * static_cast<float>(value);
      }
      break;
  }
}

}  // namespace emberline
