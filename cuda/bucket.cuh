// The arithmetic of a table's index and of its use counters, shared by host and device.
//
// A bucket is 64 bytes: five ids, five 32-bit slots, one 32-bit version. An id may stand in two buckets: its first,
// and, when that one is full, its second. Slot 0 means that the position is empty, so zeroed memory is an empty index
// and no id is reserved.
//
// This file compiles as plain C++ and under NVRTC, so it holds arithmetic only: who loads what, and in which order,
// differs between a CPU and a GPU and stands with the table of each.
#pragma once

#include "host_device.cuh"

namespace emberline {

constexpr int kBucketIds = 5;
constexpr uint32_t kEmptySlot = 0;

// A bucket's version word: bit 0 says that an id of this bucket was ever put into its second bucket; the rest counts
// the moves into this bucket. A reader that found nothing looks again when the word has changed meanwhile.
constexpr uint32_t kOverflowBit = 1;
constexpr uint32_t kVersionStep = 2;

// A bijection of 64 bits with full avalanche (the finaliser of SplitMix64, D. Stafford's variant 13).
EMBERLINE_HD uint64_t mix(uint64_t value) {
  value ^= value >> 30;
  value *= 0xBF58476D1CE4E5B9ull;
  value ^= value >> 27;
  value *= 0x94D049BB133111EBull;
  value ^= value >> 31;
  return value;
}

// Small ids are common, and mix(0) is 0: the offset keeps them apart from it.
EMBERLINE_HD uint64_t mix_id(int64_t id) { return mix(static_cast<uint64_t>(id) + 0x9E3779B97F4A7C15ull); }

EMBERLINE_HD uint64_t multiply_high(uint64_t a, uint64_t b) {
#if defined(__CUDA_ARCH__)
  return __umul64hi(a, b);
#else
  __extension__ typedef unsigned __int128 uint128;
  return static_cast<uint64_t>((static_cast<uint128>(a) * b) >> 64);
#endif
}

// The number of the lowest bit that is set; value is not 0.
EMBERLINE_HD int lowest_bit(uint32_t value) {
#if defined(__CUDA_ARCH__)
  return __ffs(static_cast<int>(value)) - 1;
#else
  return __builtin_ctz(value);
#endif
}

EMBERLINE_HD uint64_t first_bucket(uint64_t mixed, uint64_t buckets) { return multiply_high(mixed, buckets); }

// Never the first bucket again. `buckets` is at least 2 and below 2^32, so the halves of the mixed id choose
// independently.
EMBERLINE_HD uint64_t second_bucket(uint64_t mixed, uint64_t buckets) {
  const uint64_t second = multiply_high((mixed << 32) | (mixed >> 32), buckets);
  if (second != first_bucket(mixed, buckets)) return second;
  return second + 1 == buckets ? 0 : second + 1;
}

// Bit i is set where load(i) is the id.
template <class Load>
EMBERLINE_HD uint32_t match(Load load, int64_t id) {
  uint32_t mask = 0;
  for (int i = 0; i < kBucketIds; ++i) mask |= static_cast<uint32_t>(load(i) == id) << i;
  return mask;
}

// Use counters: eight bits, exact to 32, then floating point with four bits of mantissa, to half a million.
constexpr uint32_t kMaxCount = 31u << 14;

EMBERLINE_HD uint32_t count_value(uint8_t code) { return code < 16 ? code : (16u + (code & 15u)) << ((code >> 4) - 1); }

// The code of a count; what lies between two codes is rounded by chance, so that sums come out right on average.
EMBERLINE_HD uint8_t count_code(uint32_t count, uint32_t random) {
  if (count >= kMaxCount) return 255;
  int shift = 0;
  while ((count >> shift) > 31) ++shift;
  const uint32_t rest = count & ((1u << shift) - 1);
  const uint32_t up = (random & ((1u << shift) - 1)) < rest ? 1 : 0;
  return static_cast<uint8_t>((shift << 4) + (count >> shift) + up);
}

EMBERLINE_HD uint8_t count_add(uint8_t code, uint32_t uses, uint32_t random) {
  return count_code(count_value(code) + uses, random);
}

// Ageing: one half.
EMBERLINE_HD uint8_t count_halve(uint8_t code) {
  return code < 32 ? static_cast<uint8_t>(code >> 1) : static_cast<uint8_t>(code - 16);
}

// A candidate takes the place of a row that was used less. Equal counts leave the row: moving it would gain nothing.
EMBERLINE_HD bool is_victim(uint8_t row_code, uint32_t candidate_count) {
  return count_value(row_code) < candidate_count;
}

}  // namespace emberline
