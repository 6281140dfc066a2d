// The miss-ratio curve beside the truth: the hit rate of real caches of other sizes on the same traffic.
#include <cstdio>

#include "check.h"
#include "traffic.h"

using namespace emberline;

namespace {

constexpr std::size_t kRows = 10'000;

void traffic_of(Traffic& traffic) {
  traffic.add(0, 60'000, 1.05, 0.7);
  traffic.add(1, 50'000, 0.8, 0.3);
  traffic.ready();
}

std::vector<CacheTable> tables_of(Cache& cache) {
  std::vector<CacheTable> tables;
  for (std::uint32_t t = 0; t < cache.tables(); ++t) tables.emplace_back(cache, t, RowFormat{RowType::kFp32, 1});
  return tables;
}

double measured(std::size_t rows) {
  Traffic traffic;
  traffic_of(traffic);
  Cache cache(4, rows, 2);
  std::vector<CacheTable> tables = tables_of(cache);
  traffic.run(tables, 1'200'000);
  return traffic.run(tables, 300'000);
}

}  // namespace

TEST(predicted_hit_rates_are_within_two_points_of_caches_of_that_size) {
  Traffic traffic;
  traffic_of(traffic);
  Cache cache(4, kRows, 2);
  std::vector<CacheTable> tables = tables_of(cache);
  CHECK(cache.predict(kRows) < 0);
  CHECK(cache.curve().empty());
  traffic.run(tables, 1'500'000);
  for (const std::size_t rows : {kRows / 4, kRows / 2, kRows, kRows * 2, kRows * 4}) {
    const double predicted = cache.predict(rows), truth = measured(rows);
    std::printf("     %zu rows: predicted %.2f, measured %.2f\n", rows, 100 * predicted, 100 * truth);
    CHECK(std::abs(predicted - truth) < 0.02);
  }
}

TEST(a_tables_own_hit_rate_is_predicted_too) {
  Traffic traffic;
  traffic_of(traffic);
  Cache cache(4, kRows, 2);
  std::vector<CacheTable> tables = tables_of(cache);
  traffic.run(tables, 1'500'000);
  for (std::uint32_t table = 0; table < 2; ++table) {
    const std::uint64_t lookups = cache.lookups_of(table), hits = cache.hits_of(table);
    traffic.run(tables, 200'000);
    const double truth =
        static_cast<double>(cache.hits_of(table) - hits) / static_cast<double>(cache.lookups_of(table) - lookups);
    const double predicted = cache.predict_of(table, kRows);
    std::printf("     table %u: predicted %.2f, measured %.2f\n", table, 100 * predicted, 100 * truth);
    CHECK(std::abs(predicted - truth) < 0.03);
  }
}

TEST(a_curve_starts_at_nothing_and_never_falls) {
  Traffic traffic;
  traffic_of(traffic);
  Cache cache(4, kRows, 2);
  std::vector<CacheTable> tables = tables_of(cache);
  traffic.run(tables, 600'000);
  for (const std::vector<CurvePoint>& curve : {cache.curve(), cache.curve_of(0), cache.curve_of(1)}) {
    CHECK(curve.size() > 20);
    CHECK(curve.front().rows == 0 && curve.front().hit_rate == 0);
    for (std::size_t i = 1; i < curve.size(); ++i) {
      CHECK(curve[i].rows > curve[i - 1].rows && curve[i].hit_rate >= curve[i - 1].hit_rate && curve[i].hit_rate <= 1);
    }
  }
  CHECK(cache.curve().back().rows >= 4 * kRows);
}

TEST(the_sample_is_bounded_and_thins_out_evenly) {
  // Far more ids than cells: the mask narrows, and the estimate stays true on average. Half of the lookups go to a
  // tenth of the ids; at the edge between the two a sample of a few hundred rows errs by some points.
  constexpr std::uint64_t kIds = 200'000, kPeriod = 400'000, kSamples = 8;
  double mean = 0;
  for (std::uint64_t sample = 0; sample < kSamples; ++sample) {
    MissRatioCurve curve(8192, 1, kPeriod);
    std::uint64_t state = sample + 3;
    for (std::uint64_t i = 0; i < 4 * kPeriod; ++i) {
      state = mix(state + 1);
      const std::uint64_t id = (state >> 63) != 0 ? (state >> 20) % (kIds / 10) : (state >> 20) % kIds;
      const std::uint64_t mixed = mix(id + 1 + sample * 1'000'003);
      if (MissRatioCurve::sampled(mixed, curve.mask())) curve.add(mixed, 0);
      if (curve.pass(1)) {
        curve.tell(0, kPeriod);
        curve.end_period();
      }
    }
    CHECK(curve.mask() >= 31);
    const double predicted = curve.predict(kIds / 10);
    CHECK(predicted > 0.45 && predicted < 0.62);
    mean += predicted / kSamples;
    CHECK(curve.bytes() <= 8192 * 16 + 48);
  }
  std::printf("     predicted %.3f on average, best 0.55\n", mean);
  CHECK(mean > 0.53 && mean < 0.57);
}

TEST(ids_without_a_row_are_no_hits_at_any_size) {
  // Every fourth lookup is of one of 500 ids that have no row: they are never offered, and no cache ever has them.
  Cache cache(4, 1000, 1);
  CacheTable table(cache, 0, RowFormat{RowType::kFp32, 1});
  std::mt19937_64 random(3);
  std::uniform_int_distribution<std::int64_t> id(1, 2000), absent(1, 500);
  std::vector<float> out(64);
  std::vector<std::uint8_t> found(64);
  for (int batch = 0; batch < 4000; ++batch) {
    std::vector<std::int64_t> ids(64), missing;
    for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = i % 4 == 0 ? -absent(random) : id(random);
    table.find(ids.data(), ids.size(), out.data(), found.data());
    for (std::size_t i = 0; i < ids.size(); ++i) {
      if (!found[i] && ids[i] > 0) missing.push_back(ids[i]);
    }
    const std::vector<float> rows(missing.size());
    table.insert_and_evict(missing.data(), missing.size(), rows.data(), nullptr);
  }
  // Misses are those of ids with a row: at half of them, half of three quarters of all lookups.
  CHECK(std::abs(cache.predict(1000) - (1 - 0.5 * 0.75)) < 0.03);
  CHECK(cache.predict(2000) > 0.99);
}

TEST(large_batches_do_not_hide_the_tables_that_come_last) {
  // A batch asks for 8192 ids of a table that always hits, then for 2048 of another: the log holds a part of them.
  Cache cache(4, 1200, 2);
  std::vector<CacheTable> tables = tables_of(cache);
  std::mt19937_64 random(5);
  std::uniform_int_distribution<std::int64_t> few(1, 200), many(1, 2000);
  const auto ask = [&](CacheTable& table, std::vector<std::int64_t> ids) {
    std::vector<float> out(ids.size());
    std::vector<std::uint8_t> found(ids.size());
    table.find(ids.data(), ids.size(), out.data(), found.data());
    std::vector<std::int64_t> missing;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      if (!found[i]) missing.push_back(ids[i]);
    }
    std::sort(missing.begin(), missing.end());
    missing.erase(std::unique(missing.begin(), missing.end()), missing.end());
    const std::vector<float> rows(missing.size());
    table.insert_and_evict(missing.data(), missing.size(), rows.data(), nullptr);
  };
  for (int batch = 0; batch < 300; ++batch) {
    std::vector<std::int64_t> first(8192), second(2048);
    for (std::int64_t& each : first) each = few(random);
    for (std::int64_t& each : second) each = many(random);
    std::vector<float> out(first.size());
    std::vector<std::uint8_t> found(first.size());
    if (batch < 5) ask(tables[0], first);
    tables[0].find(first.data(), first.size(), out.data(), found.data());
    ask(tables[1], second);
  }
  // 1000 of the second table's 2000 rows fit: half of a fifth of all lookups miss.
  std::printf("     predicted %.3f, 0.9 is true\n", cache.predict(1200));
  CHECK(std::abs(cache.predict(1200) - 0.9) < 0.03);
}

RUN_ALL_TESTS()
