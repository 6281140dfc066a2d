// Absent rows as Python gives them: (kind, scale, seed), or None.
#pragma once

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "rows/absent.h"

namespace emberline::bind {

using PyAbsent = std::optional<std::tuple<std::string, float, std::uint64_t>>;
// One a feature, or none at all.
using PyAbsents = std::optional<std::vector<PyAbsent>>;

inline std::optional<SeededInitializer> absent_of(const PyAbsent& given) {
  if (!given) return std::nullopt;
  const auto& [kind, scale, seed] = *given;
  return SeededInitializer{initializer_of(kind, scale), seed};
}

// Throws std::invalid_argument unless there are none or one a feature.
inline std::vector<std::optional<SeededInitializer>> absents_of(const PyAbsents& given, std::size_t features) {
  std::vector<std::optional<SeededInitializer>> made(features);
  if (!given) return made;
  if (given->size() != features) {
    throw std::invalid_argument("absent: expected " + std::to_string(features) + " entries, one a feature, got " +
                                std::to_string(given->size()));
  }
  for (std::size_t f = 0; f < features; ++f) made[f] = absent_of((*given)[f]);
  return made;
}

}  // namespace emberline::bind
