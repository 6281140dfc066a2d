// The hash of raw features. docs/features.md defines it and tests/unit/features/reference.py writes it down a second
// time; a published version depends on every bit of it, so it never changes: a new hash gets a new op.
#pragma once

#include <cstdint>
#include <cstring>
#include <string_view>

namespace emberline::features {

// Small functions are always inlined: loops over them are compiled for several instruction sets, and a copy of one
// set's must not be what runs where there is only another.

inline constexpr std::uint64_t kStep = 0x9E3779B97F4A7C15ull;

// The finalizer of SplitMix64 (Stafford's variant 13): a bijection of 64 bits with full avalanche.
[[gnu::always_inline]] inline std::uint64_t mix(std::uint64_t x) {
  x ^= x >> 30;
  x *= 0xBF58476D1CE4E5B9ull;
  x ^= x >> 27;
  x *= 0x94D049BB133111EBull;
  x ^= x >> 31;
  return x;
}

[[gnu::always_inline]] inline std::uint64_t absorb(std::uint64_t state, std::uint64_t word) {
  return mix((state ^ word) + kStep);
}

[[gnu::always_inline]] inline std::uint64_t hash_int(std::int64_t value, std::uint64_t key) {
  return mix(absorb(key, static_cast<std::uint64_t>(value)) + key);
}

// Eight bytes at a time, little-endian, the last word filled up with zeros; the length goes in first.
inline std::uint64_t hash_bytes(std::string_view bytes, std::uint64_t key) {
  static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "words are read as they lie in memory");
  std::uint64_t state = key + bytes.size() * kStep;
  const char* at = bytes.data();
  std::size_t left = bytes.size();
  for (; left >= 8; at += 8, left -= 8) {
    std::uint64_t word;
    std::memcpy(&word, at, 8);
    state = absorb(state, word);
  }
  if (left > 0) {
    std::uint64_t word = 0;
    std::memcpy(&word, at, left);
    state = absorb(state, word);
  }
  return mix(state + key);
}

inline std::uint64_t hash_key(std::uint64_t seed, std::string_view salt) { return hash_bytes(salt, mix(seed + kStep)); }

// buckets 0: 63 bits. Else multiply-shift, [0, buckets): no division, and it uses the high bits.
[[gnu::always_inline]] inline std::int64_t to_id(std::uint64_t hash, std::uint64_t buckets) {
  if (buckets == 0) return static_cast<std::int64_t>(hash >> 1);
  __extension__ using Wide = unsigned __int128;
  return static_cast<std::int64_t>((static_cast<Wide>(hash) * buckets) >> 64);
}

}  // namespace emberline::features
