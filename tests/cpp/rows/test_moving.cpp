// Rows that are moved, and sums over them, beside the plain loops that they stand for.
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "check.h"
#include "rows/moving.h"

using namespace emberline;

TEST(moved_rows_are_those_of_a_plain_loop_for_every_dim) {
  std::mt19937_64 random(3);
  for (const std::size_t dim : {1, 3, 4, 16, 17, 64, 129}) {
    const std::size_t n = 50;
    std::vector<float> from(80 * dim), to(n * dim, -1.0f);
    for (float& value : from) value = static_cast<float>(random() % 1000);
    std::vector<std::int64_t> places(n), targets(n);
    for (std::size_t i = 0; i < n; ++i) {
      places[i] = static_cast<std::int64_t>(random() % 80);
      targets[i] = static_cast<std::int64_t>((i * 7) % n);
    }
    CHECK(move_rows(from.data(), places.data(), to.data(), targets.data(), n, dim) == n);
    bool same = true;
    for (std::size_t i = 0; i < n; ++i) {
      same = same && std::memcmp(to.data() + targets[i] * dim, from.data() + places[i] * dim, dim * 4) == 0;
    }
    CHECK(same);
  }
}

TEST(the_first_row_that_is_not_finite_is_found_wherever_its_value_stands) {
  const float bad[] = {std::nanf(""), -std::nanf(""), std::numeric_limits<float>::infinity(),
                       -std::numeric_limits<float>::infinity()};
  for (const std::size_t dim : {1, 5, 16, 33}) {
    std::vector<float> rows(6 * dim, std::numeric_limits<float>::max());
    rows[0] = -std::numeric_limits<float>::denorm_min();
    CHECK(first_not_finite(rows.data(), 6, dim) == 6);
    for (const float value : bad) {
      for (std::size_t place = 0; place < rows.size(); ++place) {
        std::vector<float> wrong = rows;
        wrong[place] = value;
        wrong[5 * dim] = value;
        CHECK(first_not_finite(wrong.data(), 6, dim) == place / dim);
        std::vector<std::int64_t> order = {5, 4, 3, 2, 1, 0};
        std::vector<float> to(wrong.size());
        CHECK(move_rows(wrong.data(), order.data(), to.data(), order.data(), 6, dim) == 0);
      }
    }
  }
  CHECK(first_not_finite(nullptr, 0, 4) == 0);
}

TEST(nan_and_infinity_are_told_apart_wherever_they_stand) {
  for (const std::size_t n : {1u, 7u, 4096u, 4097u, 9000u}) {
    for (const std::size_t place : {std::size_t{0}, n / 2, n - 1}) {
      std::vector<float> values(n, -std::numeric_limits<float>::max());
      CHECK(!not_finite(values.data(), n).nan && !not_finite(values.data(), n).infinity);
      values[place] = -std::numeric_limits<float>::infinity();
      CHECK(!not_finite(values.data(), n).nan && not_finite(values.data(), n).infinity);
      values[place] = -std::nanf("");
      CHECK(not_finite(values.data(), n).nan && !not_finite(values.data(), n).infinity);
      std::vector<std::uint16_t> halves(n, 0xFF7F);
      CHECK(!not_finite_bf16(halves.data(), n).nan && !not_finite_bf16(halves.data(), n).infinity);
      halves[place] = 0xFF80;
      CHECK(!not_finite_bf16(halves.data(), n).nan && not_finite_bf16(halves.data(), n).infinity);
      halves[place] = 0x7F81;
      CHECK(not_finite_bf16(halves.data(), n).nan && !not_finite_bf16(halves.data(), n).infinity);
    }
  }
  CHECK(!not_finite(nullptr, 0).nan);
}

TEST(a_fingerprint_is_a_sum_over_parts_and_changes_with_a_bit) {
  std::mt19937_64 random(4);
  const std::size_t n = 40, words = 9;
  std::vector<std::int64_t> ids(n);
  std::vector<char> rows(n * words * 4);
  std::vector<std::uint64_t> keys(words);
  for (auto& id : ids) id = static_cast<std::int64_t>(random());
  for (auto& byte : rows) byte = static_cast<char>(random());
  for (auto& key : keys) key = random() | 1;
  const std::uint64_t whole = rows_fingerprint(ids.data(), rows.data(), n, keys.data(), words);
  const std::uint64_t parts =
      rows_fingerprint(ids.data(), rows.data(), 13, keys.data(), words) +
      rows_fingerprint(ids.data() + 13, rows.data() + 13 * words * 4, n - 13, keys.data(), words);
  CHECK(whole == parts);
  for (std::size_t byte = 0; byte < rows.size(); ++byte) {
    std::vector<char> other = rows;
    other[byte] = static_cast<char>(other[byte] ^ 1);
    CHECK(rows_fingerprint(ids.data(), other.data(), n, keys.data(), words) != whole);
  }
  CHECK(rows_fingerprint(nullptr, nullptr, 0, keys.data(), words) == 0);
}

RUN_ALL_TESTS()
