// Cache mode: admission, eviction, ageing, and what it is all for, the hit rate.
#include <algorithm>
#include <cmath>
#include <random>

#include "check.h"
#include "rows.h"
#include "table/table.h"

using namespace emberline;

namespace {

bool ask(Table& table, std::int64_t id) {
  std::vector<float> out(kDim);
  std::uint8_t found = 0;
  table.find(&id, 1, out.data(), &found);
  if (found) CHECK(generation_of(out.data(), id) == 0);
  return found != 0;
}

std::size_t offer(Table& table, std::int64_t id) { return table.insert_and_evict(&id, 1, make_row(id, 0).data()); }

}  // namespace

TEST(free_space_admits_everything_and_what_is_there_is_left) {
  Table table(kDim, 0, 50);
  for (std::int64_t id = 0; id < 50; ++id) CHECK(offer(table, id) == 1);
  const std::int64_t id = 3;
  CHECK(table.insert_and_evict(&id, 1, make_row(3, 77).data()) == 0);
  CHECK(ask(table, 3));
  CHECK(table.size() == 50);
  table.check_integrity();
}

TEST(a_scan_of_ids_seen_once_does_not_flush_rows_that_are_used) {
  Table table(kDim, 0, 200);
  for (std::int64_t id = 0; id < 200; ++id) offer(table, id);
  for (int round = 0; round < 200; ++round) {
    for (std::int64_t id = 0; id < 200; ++id) ask(table, id);
  }
  std::size_t admitted = 0;
  for (std::int64_t id = 1000; id < 1400; ++id) admitted += offer(table, id);
  int kept = 0;
  for (std::int64_t id = 0; id < 200; ++id) kept += ask(table, id);
  CHECK(kept > 190);
  CHECK(table.size() == 200);
  CHECK(admitted == static_cast<std::size_t>(200 - kept));
  table.check_integrity();
}

TEST(an_id_asked_for_again_and_again_gets_in) {
  Table table(kDim, 0, 100);
  for (std::int64_t id = 0; id < 100; ++id) offer(table, id);
  std::size_t admitted = 0;
  for (int i = 0; i < 20 && admitted == 0; ++i) admitted = offer(table, 5000);
  CHECK(admitted == 1);
  CHECK(ask(table, 5000));
}

TEST(rows_that_were_hot_long_ago_make_place_in_the_end) {
  Table table(kDim, 0, 100);
  for (std::int64_t id = 0; id < 100; ++id) offer(table, id);
  for (int round = 0; round < 100; ++round) {
    for (std::int64_t id = 0; id < 100; ++id) ask(table, id);
  }
  // The world has changed: only new ids are asked for.
  for (int round = 0; round < 300; ++round) {
    for (std::int64_t id = 1000; id < 1050; ++id) {
      if (!ask(table, id)) offer(table, id);
    }
  }
  int in = 0;
  for (std::int64_t id = 1000; id < 1050; ++id) in += ask(table, id);
  CHECK(in >= 45);
}

TEST(the_hit_rate_under_zipf_comes_near_the_ideal_frequency_cache) {
  constexpr int kIds = 20'000, kCapacity = 2000, kRequests = 400'000;
  std::vector<double> cumulative(kIds);
  double sum = 0, ideal = 0;
  for (int rank = 0; rank < kIds; ++rank) {
    sum += 1.0 / std::pow(rank + 1.0, 1.05);
    if (rank < kCapacity) ideal = sum;
    cumulative[static_cast<std::size_t>(rank)] = sum;
  }
  ideal /= sum;
  Table table(kDim, 0, kCapacity);
  std::mt19937_64 random(5);
  std::uniform_real_distribution<double> uniform(0, sum);
  int hits = 0;
  for (int request = 0; request < kRequests; ++request) {
    const auto id = std::lower_bound(cumulative.begin(), cumulative.end(), uniform(random)) - cumulative.begin();
    const bool hit = ask(table, id);
    if (!hit) offer(table, id);
    if (request >= kRequests / 2) hits += hit;
  }
  const double rate = hits / (kRequests / 2.0);
  std::printf("     hit rate %.4f, ideal %.4f\n", rate, ideal);
  CHECK(rate > 0.92 * ideal);
  table.check_integrity();
}

RUN_ALL_TESTS()
