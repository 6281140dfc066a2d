// The filter that counts ids without a row: counts are never too small, and too large as rarely as configured.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <random>
#include <stdexcept>

#include "check.h"
#include "training/counting_bloom.h"
#include "training/owners.h"
#include "training/training_table.h"

using namespace emberline;

namespace {

// The share of unseen ids that have a count, after n distinct ids.
double measured_rate(CountingBloom& bloom, std::int64_t n) {
  for (std::int64_t id = 0; id < n; ++id) bloom.add(id, 1, 1);
  constexpr std::int64_t kAsked = 400'000;
  std::int64_t found = 0;
  for (std::int64_t id = 0; id < kAsked; ++id) found += bloom.count(-1 - id) > 0;
  return static_cast<double>(found) / kAsked;
}

std::vector<std::uint8_t> content_of(const CountingBloom& bloom) {
  return {bloom.page(0), bloom.page(0) + bloom.pages() * CountingBloom::kPageBytes};
}

void copy_to(const CountingBloom& from, CountingBloom& to, std::uint32_t since, std::uint32_t stamp) {
  for (const std::uint32_t page : from.pages_since(since)) to.restore(&page, 1, from.page(page), from.bits(), stamp);
}

}  // namespace

TEST(the_false_rate_is_that_of_the_configuration_at_the_expected_number_of_ids) {
  constexpr std::int64_t kIds = 500'000;
  for (const double rate : {0.3, 0.1, 0.01, 0.001}) {
    CountingBloom bloom({kIds, rate}, 1, 42);
    const double measured = measured_rate(bloom, kIds);
    // Of 400,000 questions, four standard deviations; and a twentieth for the formula of the moments.
    const double slack = 4.0 * std::sqrt(rate * (1.0 - rate) / 400'000) + 0.05 * rate;
    std::printf("rate %.4f measured %.5f, %.2f counters an id, %u probes\n", rate, measured,
                static_cast<double>(bloom.shape().blocks) * CountingBloom::kBlock / kIds, bloom.shape().probes);
    CHECK(measured < rate + slack);
    // The filter is rounded up to as many blocks for each bucket.
    const double predicted = CountingBloom::false_rate(bloom.shape(), kIds);
    CHECK(predicted < 1.01 * rate);
    CHECK(std::abs(measured - predicted) < 0.05 * predicted + slack);
    CHECK(std::abs(bloom.ids() - kIds) < 0.01 * kIds);
  }
}

TEST(a_billion_ids_at_one_percent_take_less_than_two_gib) {
  const BloomShape shape = CountingBloom::shape_of({1'000'000'000, 0.01});
  CHECK(shape.blocks * CountingBloom::kBlock / 8 < (std::uint64_t{2} << 30));
  const CountingBloom bloom({1'000'000'000, 0.01}, 1, 1);
  CHECK(bloom.bytes() < (std::size_t{2} << 30));
}

TEST(early_counts_stay_below_the_false_rate_for_every_threshold) {
  // Ids that come 1 to 40 times each, mixed: how many reach a threshold before they should.
  constexpr std::int64_t kIds = 60'000;
  for (const std::uint32_t threshold : {3u, 4u, 9u, 30u}) {
    CountingBloom bloom({kIds, 0.05}, threshold - 1, 5);
    std::mt19937_64 random(threshold);
    std::vector<std::int64_t> stream;
    for (std::int64_t id = 0; id < kIds; ++id) {
      const auto times = static_cast<std::size_t>(std::min(40.0, 1.0 / std::sqrt((random() % 100'000 + 1) / 1e5)));
      stream.insert(stream.end(), times, id);
    }
    std::shuffle(stream.begin(), stream.end(), random);
    std::map<std::int64_t, std::uint32_t> exact;
    std::map<std::int64_t, bool> early;
    for (const std::int64_t id : stream) {
      const std::uint32_t count = bloom.add(id, 1, 1);
      const std::uint32_t wanted = ++exact[id];
      CHECK(count >= std::min(wanted, threshold));
      if (count >= threshold && wanted < threshold) early[id] = true;
    }
    CHECK(static_cast<double>(early.size()) < 0.05 * kIds);
  }
}

TEST(counters_are_as_narrow_as_the_threshold_allows_and_saturate) {
  const std::uint32_t bits[] = {1, 2, 2, 4, 4, 8, 8};
  const std::uint32_t most[] = {1, 2, 3, 4, 15, 16, 255};
  for (std::size_t i = 0; i < 7; ++i) {
    CountingBloom bloom({1000, 0.01}, most[i], 1);
    CHECK(bloom.bits() == bits[i]);
    CHECK(bloom.add(7, 1, 1) == 1);
    CHECK(bloom.add(7, 4'000'000'000u, 1) == 4'000'000'001u);
    CHECK(bloom.count(7) == bloom.most());
    CHECK(bloom.add(7, 4'294'967'295u, 1) == 4'294'967'295u);
    CHECK(bloom.count(7) == bloom.most());
  }
  CHECK_THROWS(CountingBloom({1000, 0.01}, 256, 1), std::invalid_argument);
  CHECK_THROWS(CountingBloom({1000, 0.01}, 0, 1), std::invalid_argument);
  CHECK_THROWS(CountingBloom({1000, 0.6}, 1, 1), std::invalid_argument);
  CHECK_THROWS(CountingBloom({1000, std::nan("")}, 1, 1), std::invalid_argument);
  CHECK_THROWS(CountingBloom({0, 0.1}, 1, 1), std::invalid_argument);
}

TEST(pages_that_changed_carry_a_filter_to_another_one) {
  CountingBloom bloom({200'000, 0.01}, 3, 9), copy({200'000, 0.01}, 3, 9), other({200'000, 0.01}, 3, 10);
  for (std::int64_t id = 0; id < 1000; ++id) bloom.add(id * 977, 1 + id % 3, 4);
  copy_to(bloom, copy, 0, 4);
  CHECK(content_of(bloom) == content_of(copy));
  const std::size_t before = bloom.pages_since(0).size();
  CHECK(before < bloom.pages());
  for (std::int64_t id = 0; id < 10; ++id) bloom.add(-id, 1, 5);
  bloom.add(0, 1, 5);
  CHECK(bloom.pages_since(4).size() <= 11);
  CHECK(bloom.pages_since(5).empty());
  copy_to(bloom, copy, 4, 5);
  CHECK(content_of(bloom) == content_of(copy));
  CHECK(copy.ids() == bloom.ids());
  CHECK(copy.pages_since(4) == bloom.pages_since(4));
  for (std::int64_t id = 0; id < 1000; ++id) other.add(id * 977, 1 + id % 3, 4);
  CHECK(content_of(other) != content_of(bloom));  // the seed is part of the hash
}

TEST(ranks_count_as_one_process_does_and_any_number_of_them_goes_on) {
  for (const std::uint32_t most : {1u, 3u, 200u}) {
    CountingBloom one({30'000, 0.01}, most, 9);
    std::vector<CountingBloom> three, five;
    for (std::uint32_t rank = 0; rank < 3; ++rank) three.emplace_back(BloomOptions{30'000, 0.01, rank, 3}, most, 9);
    for (std::uint32_t rank = 0; rank < 5; ++rank) five.emplace_back(BloomOptions{30'000, 0.01, rank, 5}, most, 9);
    std::mt19937_64 random(most);
    const auto seen = [&](std::vector<CountingBloom>& ranks, std::uint32_t stamp) {
      for (int i = 0; i < 20'000; ++i) {
        const auto id = static_cast<std::int64_t>(random() % 15'000);
        CountingBloom& owner = ranks[owner_of(id, static_cast<std::uint32_t>(ranks.size()))];
        CHECK(owner.add(id, 1, stamp) == one.add(id, 1, stamp));
      }
    };
    seen(three, 1);
    seen(three, 2);
    double ids = 0.0;
    for (const CountingBloom& from : three) {
      ids += from.ids();
      CHECK(from.bytes() < one.bytes() / 2);
      for (CountingBloom& to : five) copy_to(from, to, 0, 2);  // a page may lie in those of two ranks
    }
    CHECK(std::abs(ids - one.ids()) < 0.01 * ids);
    seen(five, 3);
    CountingBloom again({30'000, 0.01}, most, 9);
    for (const CountingBloom& from : five) copy_to(from, again, 0, 3);
    CHECK(content_of(again) == content_of(one));
    CHECK(again.ids() == one.ids());
  }
  CHECK_THROWS(CountingBloom({1000, 0.01, 2, 2}, 1, 1), std::invalid_argument);
}

TEST(a_filter_is_restored_with_wider_and_narrower_counters) {
  CountingBloom bloom({5000, 0.01}, 3, 9), wide({5000, 0.01}, 200, 9), narrow({5000, 0.01}, 1, 9);
  for (std::int64_t id = 0; id < 3000; ++id) bloom.add(id, 1 + id % 3, 1);
  copy_to(bloom, wide, 0, 1);
  copy_to(bloom, narrow, 0, 1);
  for (std::int64_t id = -2000; id < 3000; ++id) {
    CHECK(wide.count(id) == bloom.count(id));
    CHECK(narrow.count(id) == std::min(1u, bloom.count(id)));
  }
  CHECK(wide.ids() == bloom.ids());
  const std::uint32_t page = static_cast<std::uint32_t>(bloom.pages());
  CHECK_THROWS(bloom.restore(&page, 1, bloom.page(0), 2, 1), std::invalid_argument);
  CHECK_THROWS(bloom.restore(&page, 0, bloom.page(0), 3, 1), std::invalid_argument);
}

TEST(a_table_with_a_filter_gives_rows_at_the_threshold_and_forgets_nothing_of_erased_ids) {
  TrainingOptions options;
  options.dim = 2;
  options.admit_after = 3;
  options.bloom = {10'000, 0.001};
  TrainingTable table(options);
  std::vector<float> out(8);
  const std::int64_t ids[] = {5, 5, 6, 7};
  CHECK(table.lookup(ids, 4, out.data(), true) == 0);
  CHECK(table.lookup(ids, 4, out.data(), false) == 0);  // evaluation counts nothing
  CHECK(table.lookup(ids, 3, out.data(), true) == 2);
  CHECK(table.export_rows().ids == std::vector<std::int64_t>{5});
  CHECK(table.export_rows().counts == std::vector<std::uint32_t>{4});
  CHECK(table.export_counts().ids.empty());
  CHECK(table.waiting_size() == 2);
  CHECK(table.erase(ids, 3) == 1);
  CHECK(table.lookup(ids, 1, out.data(), true) == 1);  // its counters say that it was seen often
  CHECK(table.lookup(ids + 2, 1, out.data(), true) == 1);
  table.set_admit_after(2);
  CHECK(table.lookup(ids + 3, 1, out.data(), true) == 1);
  CHECK_THROWS(table.set_admit_after(1), std::invalid_argument);
  CHECK_THROWS(table.set_admit_after(5), std::invalid_argument);
  options.admit_after = 257;
  CHECK_THROWS(TrainingTable(options), std::invalid_argument);
}

RUN_ALL_TESTS()
