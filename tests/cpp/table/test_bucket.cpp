// The arithmetic that host and device share.
#include <cmath>
#include <random>

#include "bucket.cuh"
#include "check.h"

using namespace emberline;

TEST(the_two_buckets_of_an_id_differ_and_are_in_range) {
  for (const std::uint64_t buckets : {2ull, 3ull, 7ull, 1000ull, 0xFFFFFFFFull}) {
    for (std::int64_t id = -500; id < 500; ++id) {
      const std::uint64_t mixed = mix_id(id);
      const std::uint64_t first = first_bucket(mixed, buckets), second = second_bucket(mixed, buckets);
      CHECK(first < buckets && second < buckets && first != second);
    }
  }
}

TEST(first_and_second_buckets_are_even_and_independent) {
  constexpr std::uint64_t kBuckets = 16;
  int counts[kBuckets][kBuckets] = {};
  constexpr int kEach = 200;
  for (std::int64_t id = 0; id < static_cast<std::int64_t>(kBuckets * kBuckets) * kEach; ++id) {
    ++counts[first_bucket(mix_id(id), kBuckets)][second_bucket(mix_id(id), kBuckets)];
  }
  for (std::uint64_t a = 0; a < kBuckets; ++a) {
    for (std::uint64_t b = 0; b < kBuckets; ++b) {
      // What would have met its first bucket goes one further: that pair gets both shares.
      const int expected = a == b ? 0 : (b == (a + 1) % kBuckets ? 2 * kEach : kEach);
      CHECK(std::abs(counts[a][b] - expected) <= 6 * std::sqrt(expected + 1.0));
    }
  }
}

TEST(match_sets_a_bit_for_every_equal_id) {
  const std::int64_t ids[kBucketIds] = {7, -1, 7, 0, 7};
  CHECK(match([&](int i) { return ids[i]; }, 7) == 0b10101u);
  CHECK(match([&](int i) { return ids[i]; }, 0) == 0b01000u);
  CHECK(match([&](int i) { return ids[i]; }, 5) == 0u);
}

TEST(counts_are_exact_to_32_and_codes_survive_a_round_trip) {
  for (std::uint32_t count = 0; count < 32; ++count) CHECK(count_value(count_code(count, 0xFFFFFFFFu)) == count);
  for (int code = 0; code < 256; ++code) {
    const std::uint32_t value = count_value(static_cast<std::uint8_t>(code));
    CHECK(count_code(value, 12345) == code);
    CHECK(code == 0 || value > count_value(static_cast<std::uint8_t>(code - 1)));
  }
  CHECK(count_code(0xFFFFFFFFu, 0) == 255);
  CHECK(count_value(255) == kMaxCount);
}

TEST(counting_one_by_one_comes_out_right_on_average) {
  std::mt19937 random(1);
  double sum = 0;
  constexpr int kTrials = 400, kUses = 1000;
  for (int trial = 0; trial < kTrials; ++trial) {
    std::uint8_t code = 0;
    for (int use = 0; use < kUses; ++use) code = count_add(code, 1, static_cast<std::uint32_t>(random()));
    sum += count_value(code);
  }
  CHECK(std::abs(sum / kTrials - kUses) < 0.03 * kUses);
}

TEST(ageing_halves) {
  for (int code = 0; code < 256; ++code) {
    const auto aged = count_value(count_halve(static_cast<std::uint8_t>(code)));
    CHECK(aged == count_value(static_cast<std::uint8_t>(code)) / 2);
  }
}

TEST(a_tie_keeps_the_row_that_is_there) {
  CHECK(!is_victim(3, 3));
  CHECK(is_victim(3, 4));
  CHECK(!is_victim(0, 0));
}

RUN_ALL_TESTS()
