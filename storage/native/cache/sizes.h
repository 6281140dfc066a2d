// Sizes of a cache's parts for a capacity in rows. At its capacity a cache takes at most 22 bytes a row beside the
// rows, from about a million rows on: 18.7 of index (16 a position, six of seven used), 2.8 of ghosts, the rest for the
// curve, the use log, and spare slots. Two buckets of four with displacement hold more, but the search for a place gets
// long.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace emberline {

struct CacheSizes {
  explicit CacheSizes(std::uint64_t rows)
      : buckets(std::max<std::uint64_t>(2, (rows * 7 + 23) / 24)),
        slots(static_cast<std::uint32_t>(rows + std::clamp<std::uint64_t>(rows / 128, 32, 256))),
        curve_cells(std::bit_floor(std::clamp<std::uint64_t>(rows / 96, 8192, 65536))),
        curve_period(std::max<std::uint64_t>(rows * 8, 32768)),
        log_uses(std::clamp<std::uint64_t>(rows / 256, 2048, 16384)),
        changed(std::bit_floor(std::clamp<std::uint64_t>(rows / 64, 64, 4096))) {}

  std::uint64_t buckets;
  std::uint32_t slots;  // beside the capacity, so that updates rarely wait for readers
  std::uint64_t curve_cells;
  std::uint64_t curve_period;  // lookups
  std::uint64_t log_uses;  // a stripe
  std::uint64_t changed;

  static std::size_t paged(std::size_t bytes) { return (bytes + 4095) / 4096 * 4096; }
};

}  // namespace emberline
