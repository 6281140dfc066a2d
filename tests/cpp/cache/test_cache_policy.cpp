// What the policy is for: the hit rate, counted in lookups. The bounds leave room for the small sizes here (some tenths
// of a point more than at ten million ids, where docs/decisions/0015 has the figures). All is seeded.
#include <cstdio>
#include <numeric>

#include "check.h"
#include "traffic.h"

using namespace emberline;

namespace {

std::vector<CacheTable> tables_of(Cache& cache) {
  std::vector<CacheTable> tables;
  for (std::uint32_t t = 0; t < cache.tables(); ++t) tables.emplace_back(cache, t, RowFormat{RowType::kFp32, 1});
  return tables;
}

// Runs until the counts are full, then measures; prints and checks in points of the best static choice.
double steady(Traffic& traffic, std::vector<CacheTable>& tables, double rows, double most_points) {
  traffic.run(tables, 120 * rows);
  const double rate = traffic.run(tables, 20 * rows);
  const double best = traffic.best(static_cast<std::size_t>(rows));
  std::printf("     hit rate %.2f, best static %.2f\n", 100 * rate, 100 * best);
  CHECK(rate > best - most_points / 100);
  return rate;
}

}  // namespace

TEST(zipf_with_a_tenth_of_the_rows_is_near_the_best_choice) {
  Traffic traffic;
  traffic.add(0, 100'000, 1.05, 1);
  traffic.ready();
  Cache cache(4, 10'000, 1);
  std::vector<CacheTable> tables = tables_of(cache);
  steady(traffic, tables, 10'000, 1.0);
  CHECK(cache.stats().changes == 0);
  cache.check_integrity();
}

TEST(zipf_with_a_hundredth_of_the_rows_is_near_the_best_choice) {
  Traffic traffic;
  traffic.add(0, 400'000, 1.05, 1);
  traffic.ready();
  Cache cache(4, 4'000, 1);
  std::vector<CacheTable> tables = tables_of(cache);
  steady(traffic, tables, 4'000, 1.2);
}

TEST(ids_that_come_as_often_as_in_a_batch_of_real_lookups_are_near_the_best_choice) {
  // Share of ids, uses of each: the classes of the published reuse histogram of ads models, each at its mean.
  Traffic traffic;
  traffic.add_reuse(0, 100'000,
                    {{0.342, 1},
                     {0.144, 2},
                     {0.149, 3.4},
                     {0.138, 6.3},
                     {0.112, 11.9},
                     {0.068, 22.4},
                     {0.029, 43.4},
                     {0.010, 88.9},
                     {0.004, 187},
                     {0.002, 343},
                     {0.001, 508},
                     {0.001, 914},
                     {0.0003, 2700},
                     {0.0001, 6000}});
  traffic.ready();
  Cache cache(4, 10'000, 1);
  std::vector<CacheTable> tables = tables_of(cache);
  steady(traffic, tables, 10'000, 1.2);
  CHECK(cache.stats().changes == 0);
}

TEST(a_hot_set_that_is_replaced_at_once_is_learned_within_thirty_times_the_capacity) {
  Traffic traffic;
  traffic.add(0, 100'000, 1.05, 1);
  traffic.ready();
  Cache cache(4, 10'000, 1);
  std::vector<CacheTable> tables = tables_of(cache);
  traffic.run(tables, 1'000'000);
  traffic.shuffle();
  const double first = traffic.run(tables, 10'000);
  traffic.run(tables, 290'000);
  const double rate = traffic.run(tables, 50'000);
  const double best = traffic.best(10'000);
  std::printf("     first %.2f, then %.2f, best static %.2f\n", 100 * first, 100 * rate, 100 * best);
  CHECK(first < best - 0.2);
  CHECK(rate > best - 0.02);
  CHECK(cache.stats().changes == 1);
  cache.check_integrity();
}

TEST(a_scan_over_all_ids_costs_at_most_a_point) {
  for (const std::size_t rows : {std::size_t{10'000}, std::size_t{30'000}}) {
    Traffic traffic;
    traffic.add(0, 100'000, 1.05, 1);
    traffic.ready();
    Cache cache(4, rows, 1);
    std::vector<CacheTable> tables = tables_of(cache);
    traffic.run(tables, 50.0 * static_cast<double>(rows));
    const double before = traffic.run(tables, 200'000);
    traffic.scan(tables);
    const double after = traffic.run(tables, 60'000);
    std::printf("     before %.2f, after %.2f\n", 100 * before, 100 * after);
    CHECK(after > before - 0.01);
    CHECK(cache.stats().changes == 0);
  }
}

TEST(tables_of_different_size_and_heat_share_the_rows_as_the_best_choice_would) {
  Traffic traffic;
  traffic.add(0, 80'000, 1.05, 0.5);
  traffic.add(1, 30'000, 0.9, 0.3);
  traffic.add(2, 2'000, 1.2, 0.15);
  traffic.add(3, 60'000, 0.6, 0.05);  // large and cold
  traffic.ready();
  Cache cache(4, 12'000, 4);
  std::vector<CacheTable> tables = tables_of(cache);
  steady(traffic, tables, 12'000, 1.3);
  for (std::uint32_t t = 0; t < 4; ++t) {
    const auto best = static_cast<double>(traffic.best_of(t, 12'000)), has = static_cast<double>(cache.rows_of(t));
    std::printf("     table %u: %.0f rows, %.0f in the best choice\n", t, has, best);
    CHECK(has > 0.7 * best - 100 && has < 1.4 * best + 400);
  }
  cache.check_integrity();
}

TEST(counts_known_before_make_the_order_of_a_warm_up_unimportant) {
  Cache cache(4, 1'000, 1);
  std::vector<CacheTable> tables = tables_of(cache);
  std::vector<std::int64_t> ids(5'000);
  std::vector<std::uint8_t> freq(ids.size());
  for (std::size_t i = 0; i < ids.size(); ++i) {
    ids[i] = static_cast<std::int64_t>(i);
    freq[i] = i >= 4'000 ? 40 : 3;  // the hottest come last
  }
  const std::vector<float> rows(ids.size());
  tables[0].insert_and_evict(ids.data(), ids.size(), rows.data(), freq.data());
  std::vector<float> out(1'000);
  std::vector<std::uint8_t> found(1'000);
  CHECK(tables[0].find(ids.data() + 4'000, 1'000, out.data(), found.data()) >
        930);  // one of 28 rows is displaced, the coldest
}

TEST(counts_step_as_often_as_rows_are_used) {
  // A logarithmic counter that is stepped only when `reported` says so still counts uses, on average.
  std::uint64_t state = 1;
  const auto random = [&] {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    return static_cast<std::uint32_t>(state >> 32);
  };
  for (const int uses : {5, 20, 200, 3'000}) {
    double sum = 0;
    constexpr int kRepeats = 400;
    for (int repeat = 0; repeat < kRepeats; ++repeat) {
      std::uint8_t code = 0;
      for (int use = 0; use < uses; ++use) {
        if (FrequencyPolicy::reported(code, random())) code = FrequencyPolicy::stepped(code);
      }
      sum += count_value(code);
    }
    const double mean = sum / kRepeats / FrequencyPolicy::kUse;
    CHECK(mean > 0.97 * uses && mean < 1.03 * uses);
  }
}

TEST(uses_that_no_writer_learns_of_age_nothing) {
  constexpr std::int64_t kRows = 32'000;
  Cache cache(4, kRows, 1);
  CacheTable table(cache, 0, {RowType::kFp32, 1});
  std::vector<std::int64_t> ids(kRows);
  std::iota(ids.begin(), ids.end(), 0);
  std::vector<float> out(kRows);
  std::vector<std::uint8_t> found(kRows), uses(kRows, 80);
  table.insert_or_assign(ids.data(), ids.size(), out.data(), uses.data());
  // Far more lookups than are written down between two turns of a writer.
  for (int round = 0; round < 24; ++round) {
    for (int pass = 0; pass < 20; ++pass) table.find(ids.data(), ids.size(), out.data(), found.data());
    cache.absorb();
  }
  const HotIds hot = cache.hot_ids(kRows);
  const std::uint64_t least = count_value(hot.counts.back());
  std::uint64_t sum = 0;
  for (const std::uint8_t code : hot.counts) sum += count_value(code);
  std::printf("     used 480 times each; counts are %.0f on average, at least %llu\n", static_cast<double>(sum) / kRows,
              static_cast<unsigned long long>(least));
  CHECK(hot.ids.size() == kRows);
  CHECK(sum / kRows > count_value(uses[0]) / 2);
  CHECK(least > count_value(uses[0]) / 4);
}

TEST(ghosts_remember_what_is_asked_for_often_and_forget_strangers) {
  Ghosts ghosts(1'600);
  std::uint64_t state = 5;
  const auto random = [&] { return static_cast<std::uint32_t>((state = mix(state + 1)) >> 32); };
  for (std::uint64_t round = 0; round < 8; ++round) {
    for (std::uint64_t id = 0; id < 500; ++id) ghosts.add(mix(id + 1), 2, 0, random());
    for (std::uint64_t id = 0; id < 500; ++id) ghosts.add(mix(1'000'000 + round * 1'000 + id), 2, 0, random());
  }
  int remembered = 0, strangers = 0;
  for (std::uint64_t id = 0; id < 500; ++id) {
    remembered += ghosts.add(mix(id + 1), 2, 1, random()).units >= 12;
    strangers += ghosts.add(mix(2'000'000 + id), 2, 1, random()).units > 2;
  }
  CHECK(remembered > 450);
  CHECK(strangers < 40);
}

TEST(a_change_is_seen_when_ids_come_in_large_batches_too) {
  Traffic traffic;
  traffic.add(0, 100'000, 1.05, 1);
  traffic.ready();
  Cache cache(4, 10'000, 1);
  std::vector<CacheTable> tables = tables_of(cache);
  traffic.run(tables, 600'000, 4'096);
  CHECK(cache.stats().changes == 0);
  traffic.shuffle();
  traffic.run(tables, 300'000, 4'096);
  const double rate = traffic.run(tables, 50'000, 4'096);
  std::printf("     after 30 times %.2f, best static %.2f\n", 100 * rate, 100 * traffic.best(10'000));
  CHECK(cache.stats().changes == 1);
  CHECK(rate > traffic.best(10'000) - 0.03);
}

RUN_ALL_TESTS()
