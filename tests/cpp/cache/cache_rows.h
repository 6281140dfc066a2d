// Rows that say whose they are: [id, table, generation, id, table, generation, ...], so that a foreign or torn row is
// seen.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "cache/cache_table.h"

namespace emberline {

constexpr std::uint32_t kDim = 12;  // two cache lines would hide a tear within one
using Row = std::array<float, kDim>;

inline Row make_row(std::int64_t id, std::uint32_t table, int generation) {
  Row row;
  for (std::uint32_t d = 0; d < kDim; d += 3) {
    row[d] = static_cast<float>(id);
    row[d + 1] = static_cast<float>(table);
    row[d + 2] = static_cast<float>(generation);
  }
  return row;
}

// The generation of a row, or -1 if it is not a whole row of this owner.
inline int generation_of(const float* row, std::int64_t id, std::uint32_t table) {
  for (std::uint32_t d = 0; d < kDim; d += 3) {
    if (row[d] != static_cast<float>(id) || row[d + 1] != static_cast<float>(table) || row[d + 2] != row[2]) return -1;
  }
  return static_cast<int>(row[2]);
}

inline RowFormat format() { return {RowType::kFp32, kDim}; }

inline void put(CacheTable& table, std::int64_t id, int generation) {
  table.insert_or_assign(&id, 1, make_row(id, table.table(), generation).data(), nullptr);
}

inline std::size_t offer(CacheTable& table, std::int64_t id, int generation = 0) {
  return table.insert_and_evict(&id, 1, make_row(id, table.table(), generation).data(), nullptr);
}

// Generation, or -2 if the id is not found.
inline int ask(const CacheTable& table, std::int64_t id) {
  Row out;
  std::uint8_t found = 0;
  table.find(&id, 1, out.data(), &found);
  return found ? generation_of(out.data(), id, table.table()) : -2;
}

}  // namespace emberline
