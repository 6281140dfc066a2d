// Rows that carry their id and a generation in every float, so that a torn, recycled or foreign row shows at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

constexpr std::uint32_t kDim = 16;

// Ids below 2^24 are exact in a float.
inline std::vector<float> make_row(std::int64_t id, int generation) {
  std::vector<float> row(kDim);
  for (std::uint32_t d = 0; d < kDim; d += 2) {
    row[d] = static_cast<float>(id);
    row[d + 1] = static_cast<float>(generation);
  }
  return row;
}

// The generation of a row, or -1 when it is not a whole row of this id.
inline int generation_of(const float* row, std::int64_t id) {
  for (std::uint32_t d = 0; d < kDim; d += 2) {
    if (row[d] != static_cast<float>(id) || row[d + 1] != row[1]) return -1;
  }
  return static_cast<int>(row[1]);
}
