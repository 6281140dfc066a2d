// The arithmetic of an index line, shared by host and device: mixing, probe order, score update, victim test.
//
// A line is 64 bytes, one cache line and two GPU sectors: five ids, five row slots, one version. An id has two candidate lines. No id is
// reserved: a position is empty when its slot is kEmptySlot, whatever its id says.
//
// The host reads and writes the fields through std::atomic_ref, the device through cuda::atomic_ref or volatile loads; only plain
// arithmetic lives here, so that both compile it and the CPU tests exercise what the GPU runs.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define EMBERLINE_HD __host__ __device__ __forceinline__
#else
#define EMBERLINE_HD inline
#endif

namespace emberline {

inline constexpr int kWays = 5;
inline constexpr uint32_t kEmptySlot = 0xFFFFFFFFu;

struct alignas(64) Line {
  int64_t ids[kWays];
  uint32_t slots[kWays];
  uint32_t version;
};
static_assert(sizeof(Line) == 64, "a line is one cache line");

// Stafford's variant 13 of the 64-bit finaliser of MurmurHash3: every input bit flips every output bit with probability one half.
EMBERLINE_HD uint64_t mix64(uint64_t x) {
  x ^= x >> 30;
  x *= 0xBF58476D1CE4E5B9ull;
  x ^= x >> 27;
  x *= 0x94D049BB133111EBull;
  x ^= x >> 31;
  return x;
}

EMBERLINE_HD uint64_t mulhi64(uint64_t a, uint64_t b) {
#ifdef __CUDA_ARCH__
  return __umul64hi(a, b);
#else
  __extension__ using uint128 = unsigned __int128;
  return static_cast<uint64_t>((static_cast<uint128>(a) * b) >> 64);
#endif
}

// The two candidate lines of an id among `lines` lines: distinct whenever lines > 1. Lemire's range reduction, no division.
struct Candidates {
  uint64_t first;
  uint64_t second;
};

EMBERLINE_HD Candidates candidate_lines(int64_t id, uint64_t lines) {
  const uint64_t hash = mix64(static_cast<uint64_t>(id) + 0x9E3779B97F4A7C15ull);
  const uint64_t first = mulhi64(hash, lines);
  // The second hash chooses among the other lines, counted from the first one on, so that the two never meet.
  const uint64_t step = lines > 1 ? 1 + mulhi64(mix64(hash), lines - 1) : 0;
  const uint64_t second = first + step < lines ? first + step : first + step - lines;
  return {first, second};
}

// Access scores are 8 bits: linear below 16, then logarithmic (each further step is half as likely as the one before). `random` is any 32
// uniform bits. Morris, "Counting large numbers of events in small registers", 1978.
EMBERLINE_HD uint8_t touch_score(uint8_t score, uint32_t random) {
  if (score < 16) return static_cast<uint8_t>(score + 1);
  if (score == 255) return score;
  const uint32_t shift = (score - 16u) / 8u + 1u;
  return (random & ((1u << (shift < 31u ? shift : 31u)) - 1u)) == 0u ? static_cast<uint8_t>(score + 1) : score;
}

// Ageing halves the count behind a score: halving in the linear part, eight steps down in the logarithmic one.
EMBERLINE_HD uint8_t age_score(uint8_t score) { return score < 24 ? static_cast<uint8_t>(score / 2) : static_cast<uint8_t>(score - 8); }

// A candidate displaces a victim only when it is strictly hotter: ties keep what is in memory, so a scan cannot flush the cache.
EMBERLINE_HD bool displaces(uint8_t candidate_score, uint8_t victim_score) { return candidate_score > victim_score; }

}  // namespace emberline
