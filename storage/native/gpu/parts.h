// A call over many ids in parts, one a thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <stdexcept>
#include <string>

#include "table/workers.h"

namespace emberline {

// Returns the number of parts, one for each 2,048 ids. Throws std::invalid_argument.
inline std::size_t parts_of(std::size_t n, std::size_t threads) {
  if (threads < 1 || threads > Workers::kMost) {
    throw std::invalid_argument("threads: expected 1 to " + std::to_string(Workers::kMost) + ", got " +
                                std::to_string(threads));
  }
  return std::clamp<std::size_t>(n / 2048, 1, threads);
}

// Calls each(part, from, to) for the parts of 0 to n.
template <class Each>
void in_parts(std::size_t n, std::size_t threads, const Each& each) {
  const std::size_t parts = parts_of(n, threads);
  if (parts == 1) return each(0, 0, n);
  Workers::shared().run(parts, [&](std::size_t part) { each(part, n * part / parts, n * (part + 1) / parts); });
}

}  // namespace emberline
