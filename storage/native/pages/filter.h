// A Bloom filter for each page: an id that lies between two ids of a page, but is none of them, costs no read.
//
// A filter of its own per page holds exactly as many ids as it was sized for, and both are known when the page is
// written, so a file can be written in one pass without knowing how many rows will come. It is about one cache line.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "rows/mixed.h"

namespace emberline::pages {

// 64 mixed bits of an id. Part of the format.
inline std::uint64_t filter_hash(std::int64_t id) { return mixed(static_cast<std::uint64_t>(id)); }

inline std::size_t filter_bytes_for(std::size_t ids, int bits_per_id) {
  return (ids * static_cast<std::size_t>(bits_per_id) + 63) / 64 * 8;
}

// ln 2 bits set per bit of room is the optimum.
inline std::uint32_t filter_probes_for(int bits_per_id) {
  const int probes = static_cast<int>(std::lround(bits_per_id * 0.693));
  return static_cast<std::uint32_t>(probes < 1 ? 1 : probes > 16 ? 16 : probes);
}

// The places of an id's bits; stops when `visit` says false and returns that.
template <class Visit>
bool each_filter_bit(std::int64_t id, std::size_t bytes, std::uint32_t probes, Visit visit) {
  const std::uint64_t bits = bytes * 8;
  std::uint64_t hash = filter_hash(id);
  for (std::uint32_t probe = 0; probe < probes; ++probe) {
    if (!visit(static_cast<std::size_t>((hash >> 32) * bits >> 32))) return false;
    hash = hash * 0xD1342543DE82EF95u + 0x9E3779B97F4A7C15u;
  }
  return true;
}

inline void filter_add(unsigned char* filter, std::size_t bytes, std::uint32_t probes, std::int64_t id) {
  each_filter_bit(id, bytes, probes, [&](std::size_t bit) {
    filter[bit / 8] |= static_cast<unsigned char>(1u << bit % 8);
    return true;
  });
}

inline bool filter_may_hold(const unsigned char* filter, std::size_t bytes, std::uint32_t probes, std::int64_t id) {
  return each_filter_bit(id, bytes, probes, [&](std::size_t bit) { return (filter[bit / 8] >> bit % 8 & 1) != 0; });
}

}  // namespace emberline::pages
