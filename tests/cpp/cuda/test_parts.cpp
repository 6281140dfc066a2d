// Whose part an id is where several GPUs share rows: evenly, whatever the ids, and whatever buckets the rows stand in.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <random>
#include <utility>
#include <vector>

#include "cache_bucket.cuh"
#include "check.h"

namespace {

std::uint64_t mixed_of(std::int64_t id, std::uint32_t table) {
  return emberline::mix_owner(id, emberline::table_salt(table));
}

// How far counts are from even, in standard deviations of what chance does: chi-square, made normal by the cube root of
// E. B. Wilson and M. M. Hilferty (1931), close enough also for two counts.
double unevenness(const std::vector<std::int64_t>& counts) {
  double total = 0, squares = 0;
  for (const std::int64_t count : counts) total += static_cast<double>(count);
  const double mean = total / static_cast<double>(counts.size());
  for (const std::int64_t count : counts)
    squares += (static_cast<double>(count) - mean) * (static_cast<double>(count) - mean);
  const auto freedom = static_cast<double>(counts.size() - 1);
  const double variance = 2 / (9 * freedom);
  return (std::cbrt(squares / mean / freedom) - (1 - variance)) / std::sqrt(variance);
}

// Chance alone passes them once in 10^9 counts. Ids and mixing are fixed, so what holds now holds always. Far below 0
// counts are more even than chance makes them.
constexpr double kMost = 6, kLeast = -6;

using Ids = std::pair<const char*, std::function<std::int64_t(std::int64_t)>>;

const std::vector<Ids> kIds{
    {"consecutive", [](std::int64_t i) { return i; }},
    {"negative", [](std::int64_t i) { return -i; }},
    {"around the ends", [](std::int64_t i) { return i % 2 == 0 ? INT64_MIN + i : INT64_MAX - i; }},
    {"by 2", [](std::int64_t i) { return 2 * i; }},
    {"by 3", [](std::int64_t i) { return 3 * i; }},
    {"by 16", [](std::int64_t i) { return 16 * i + 5; }},
    {"by 1000", [](std::int64_t i) { return 1000 * i - 7; }},
    {"by 2^16", [](std::int64_t i) { return i << 16; }},
    {"by 2^32", [](std::int64_t i) { return i << 32; }},
    {"by 2^40 and one", [](std::int64_t i) { return i * ((std::int64_t{1} << 40) + 1); }},
};
constexpr std::int64_t kCount = 20000;

bool is_even(const std::vector<std::int64_t>& counts, const char* ids, std::uint32_t parts, const char* what) {
  const double far = unevenness(counts);
  if (far < kMost && far > kLeast) return true;
  std::printf("  %s of ids %s, %u parts: %.1f\n", what, ids, parts, far);
  return false;
}

}  // namespace

TEST(parts_are_even) {
  for (std::uint32_t parts = 2; parts <= 16; ++parts) {
    for (const auto& [name, id_of] : kIds) {
      for (const std::uint32_t table : {0u, 1u, 7u, 65535u}) {
        std::vector<std::int64_t> counts(parts);
        for (std::int64_t i = 0; i < kCount; ++i) {
          const std::uint32_t part = emberline::part_of(mixed_of(id_of(i), table), parts);
          CHECK(part < parts);
          ++counts[part];
        }
        CHECK(is_even(counts, name, parts, "parts"));
      }
    }
  }
}

TEST(one_part_has_everything) {
  for (std::int64_t id = -100; id < 100; ++id) CHECK(emberline::part_of(mixed_of(id, 3), 1) == 0);
}

// The rows of a part stand on one GPU: were their buckets a share of all, most of its index would be empty.
TEST(rows_of_a_part_are_even_over_first_and_second_buckets) {
  for (std::uint32_t parts = 2; parts <= 16; ++parts) {
    for (const auto& [name, id_of] : kIds) {
      for (const std::uint64_t buckets :
           {std::uint64_t{2}, std::uint64_t{parts}, std::uint64_t{100}, std::uint64_t{128}}) {
        std::vector<std::vector<std::int64_t>> first(parts, std::vector<std::int64_t>(buckets)), second = first;
        for (std::int64_t i = 0; i < kCount; ++i) {
          const std::uint64_t mixed = mixed_of(id_of(i), 3);
          const std::uint32_t part = emberline::part_of(mixed, parts);
          ++first[part][emberline::first_bucket(mixed, buckets)];
          ++second[part][emberline::second_bucket(mixed, buckets)];
        }
        for (std::uint32_t part = 0; part < parts; ++part) {
          CHECK(is_even(first[part], name, parts, "first buckets"));
          CHECK(is_even(second[part], name, parts, "second buckets"));
        }
      }
    }
  }
}

// Two tables with the same ids, as two features of one item: a GPU that has an id in one has its share in the other.
TEST(tables_divide_equal_ids_each_for_itself) {
  for (std::uint32_t parts = 2; parts <= 16; ++parts) {
    std::vector<std::int64_t> both(parts * parts);
    for (std::int64_t id = 0; id < kCount; ++id) {
      ++both[emberline::part_of(mixed_of(id, 1), parts) * parts + emberline::part_of(mixed_of(id, 2), parts)];
    }
    CHECK(is_even(both, "consecutive", parts, "parts in two tables"));
  }
}

RUN_ALL_TESTS()
