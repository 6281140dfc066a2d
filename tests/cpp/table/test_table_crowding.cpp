// Placement when many ids want the same buckets: displacement, growth, and ids chosen by an enemy.
#include <random>

#include "every_isa.h"
#include "rows.h"
#include "table/table.h"

using namespace emberline;

namespace {

std::uint64_t inverse_of_odd(std::uint64_t value) {
  std::uint64_t inverse = value;
  for (int i = 0; i < 6; ++i) inverse *= 2 - value * inverse;
  return inverse;
}

std::uint64_t unshift(std::uint64_t value, int shift) {
  std::uint64_t result = value;
  for (int i = shift; i < 64; i += shift) result = value ^ (result >> shift);
  return result;
}

// The id that mix_id turns into `mixed`.
std::int64_t unmix(std::uint64_t mixed) {
  std::uint64_t value = unshift(mixed, 31);
  value = unshift(value * inverse_of_odd(0x94D049BB133111EBull), 27);
  value = unshift(value * inverse_of_odd(0xBF58476D1CE4E5B9ull), 30);
  return static_cast<std::int64_t>(value - 0x9E3779B97F4A7C15ull);
}

// Ids that share both buckets in every index of fewer than a million buckets.
std::vector<std::int64_t> crowding_ids(std::uint64_t count) {
  std::vector<std::int64_t> ids;
  for (std::uint64_t i = 0; i < count; ++i) ids.push_back(unmix(0x1234500067890000ull + (i & 63) + ((i >> 6) << 32)));
  return ids;
}

}  // namespace

TEST(unmix_undoes_mix) {
  for (const std::uint64_t mixed : {0ull, 1ull, 0x1234500067890007ull, ~0ull}) CHECK(mix_id(unmix(mixed)) == mixed);
}

TEST(a_full_capacity_is_placed_by_displacement_without_growing_the_index) {
  // Four fifths full with two buckets of five to choose from: some ids find both full and others must move.
  constexpr std::uint64_t kRows = 40'000;
  Table table(1, 0, kRows);
  const std::size_t before = table.memory_bytes();
  std::mt19937_64 random(3);
  std::vector<std::int64_t> ids;
  for (std::uint64_t i = 0; i < kRows; ++i) ids.push_back(static_cast<std::int64_t>(random()));
  const std::vector<float> rows(kRows, 1.0f);
  table.insert_or_assign(ids.data(), kRows, rows.data(), nullptr);
  table.check_integrity();
  std::vector<float> out(kRows);
  std::vector<std::uint8_t> found(kRows);
  CHECK(table.find(ids.data(), kRows, out.data(), found.data()) == kRows);
  CHECK(table.memory_bytes() <= before + kRows * 5 + 64);  // rows and counters only
}

TEST(ids_that_all_choose_the_same_two_buckets_are_refused_and_the_rest_stays) {
  Table table(1, 0, 0);
  const auto ids = crowding_ids(200);
  const std::vector<float> rows(ids.size(), 2.0f);
  CHECK_THROWS(table.insert_or_assign(ids.data(), ids.size(), rows.data(), nullptr), CapacityExceeded);
  table.check_integrity();
  CHECK(table.size() == 2 * kBucketIds);
  std::vector<float> out(ids.size());
  std::vector<std::uint8_t> found(ids.size());
  CHECK(table.find(ids.data(), ids.size(), out.data(), found.data()) == 2 * kBucketIds);
  CHECK(table.memory_bytes() < 200'000);  // growth stopped where it could not help
}

TEST(a_cache_does_not_grow_its_index_for_crowding_ids) {
  Table table(1, 0, 1000);
  const std::size_t before = table.memory_bytes();
  const auto ids = crowding_ids(200);
  const std::vector<float> rows(ids.size(), 2.0f);
  CHECK(table.insert_and_evict(ids.data(), ids.size(), rows.data()) == 2 * kBucketIds);
  CHECK(table.memory_bytes() <= before + 200 * 16);
  table.check_integrity();
}

TEST(the_smallest_capacities_fill_up_and_no_further) {
  for (std::uint64_t capacity = 1; capacity < 40; ++capacity) {
    Table table(1, 0, capacity);
    std::int64_t id = 0;
    const float row = 1;
    for (; id < static_cast<std::int64_t>(capacity); ++id) table.insert_or_assign(&id, 1, &row, nullptr);
    CHECK_THROWS(table.insert_or_assign(&id, 1, &row, nullptr), CapacityExceeded);
    CHECK(table.size() == capacity);
    for (int round = 0; round < 300; ++round) {  // updates fit always
      const std::int64_t known = round % static_cast<std::int64_t>(capacity);
      table.insert_or_assign(&known, 1, &row, nullptr);
    }
    table.check_integrity();
  }
}

RUN_ALL_TESTS_ON_EVERY_ISA()
