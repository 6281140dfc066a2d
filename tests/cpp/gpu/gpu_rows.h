// Rows that say whose they are and when they were written: {id, stamp, id, stamp, ...}.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <vector>

#include "gpu/gpu_cache.h"

namespace emberline {

constexpr std::size_t kGpuRowBytes = 48;

inline std::vector<std::uint8_t> gpu_row(std::int64_t id, std::int64_t stamp) {
  std::vector<std::uint8_t> row(kGpuRowBytes);
  for (std::size_t at = 0; at < kGpuRowBytes; at += 16) {
    std::memcpy(row.data() + at, &id, 8);
    std::memcpy(row.data() + at + 8, &stamp, 8);
  }
  return row;
}

// The stamp of a row, or -1 if it is not a whole row of this id.
inline std::int64_t stamp_of(const std::uint8_t* row, std::int64_t id) {
  std::int64_t stamp;
  std::memcpy(&stamp, row + 8, 8);
  return std::memcmp(row, gpu_row(id, stamp).data(), kGpuRowBytes) == 0 ? stamp : -1;
}

inline bool insert(GpuCache& cache, std::uint32_t table, std::int64_t id, std::int64_t stamp, bool pinned = false) {
  bool in = false;
  cache.insert(table, &id, 1, gpu_row(id, stamp).data(), nullptr, pinned, &in);
  return in;
}
inline bool offer(GpuCache& cache, std::uint32_t table, std::int64_t id, std::int64_t stamp) {
  return cache.offer(table, &id, 1, gpu_row(id, stamp).data(), nullptr, false) == 1;
}
inline bool assign(GpuCache& cache, std::uint32_t table, std::int64_t id, std::int64_t stamp) {
  return cache.assign(table, &id, 1, gpu_row(id, stamp).data()) == 1;
}
inline bool insert_ask_host(GpuCache& cache, std::uint32_t table, std::int64_t id) {
  bool in = false;
  cache.insert_ask_host(table, &id, 1, &in);
  return in;
}
inline std::uint32_t find(const GpuCache& cache, std::uint32_t table, std::int64_t id) {
  std::uint32_t slot = 0;
  cache.find(table, &id, 1, &slot);
  return slot;
}
// Rows of a set by their numbers, wherever they lie.
inline std::vector<std::uint8_t> staged_of(const GpuSet& set) {
  if (set.lent == nullptr) return set.staged;
  std::vector<std::uint8_t> rows;
  for (std::size_t number = 0; number < set.rows.size() / 2; ++number) {
    const std::uint8_t* const row = set.lent + number * set.stride;
    rows.insert(rows.end(), row, row + kGpuRowBytes);
  }
  return rows;
}
inline void publish(GpuCache& cache) {
  cache.take_set();
  cache.complete_set();
}

}  // namespace emberline
