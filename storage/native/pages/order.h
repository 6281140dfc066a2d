// The order of ids that come unsorted, without moving their rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace emberline::pages {

bool strictly_ascending(const std::int64_t* ids, std::size_t n);

// Positions in ascending order of ids, equal ones as they came. n below 2^32. 32 bytes of memory an id while it runs.
std::vector<std::uint32_t> order_of(const std::int64_t* ids, std::size_t n);

}  // namespace emberline::pages
