// Batch lookups of features that fall back: the caller is asked for rows of the absent ids, and of no others.
#include "every_isa.h"
#include "table/lookup.h"

using namespace emberline;

namespace {

constexpr std::uint32_t kWidth = 3;
constexpr SeededInitializer kConstant{{Initial::kConstant, 2.0f}, 0};

using Places = std::vector<std::int64_t>;

void fill(Table& table, std::int64_t end, std::int64_t step) {
  for (std::int64_t id = 1; id < end; id += step) {
    const std::vector<float> row(kWidth, static_cast<float>(id));
    table.insert_or_assign(&id, 1, row.data(), nullptr);
  }
}

// Supplies the missing ids: those from 100 on are unresolved, the others are absent.
void supply(Lookup& lookup) {
  const std::vector<std::int64_t>& ids = lookup.missing(0);
  if (ids.empty()) return;
  const std::vector<float> rows(ids.size() * kWidth);
  std::vector<std::uint8_t> states;
  for (const std::int64_t id : ids) states.push_back(id >= 100 ? 2 : 0);
  lookup.supply(0, rows.data(), states.data());
}

}  // namespace

TEST(absent_ids_read_the_rows_that_are_given_for_them) {
  Table table(kWidth, 0, 0);
  fill(table, 6, 1);
  OverlayTable overlay(kWidth);
  const std::int64_t gone = 2;
  overlay.stage(0, &gone, 1, nullptr, CoverState::kRemoved);
  Lookup lookup{{&table},
                {{0, Pooling::kSum, 0, kConstant, true},
                 {0, Pooling::kNone, 5, kConstant, true},
                 {0, Pooling::kSum, 0, kConstant}},
                {&overlay}};
  const std::vector<std::int64_t> ids = {1, 50, 2, 100, 60}, offsets = {0, 5};
  std::vector<float> sum(kWidth), rows(5 * kWidth), plain(kWidth);
  std::vector<std::uint8_t> mask(5);
  lookup.begin(1,
               {{ids.data(), 5, offsets.data(), sum.data(), nullptr},
                {ids.data(), 5, offsets.data(), rows.data(), mask.data()},
                {ids.data(), 5, offsets.data(), plain.data(), nullptr}},
               1);
  supply(lookup);
  CHECK(lookup.settle() == 6);
  CHECK((lookup.fallback(0).absent == Places{1, 2, 4} && lookup.fallback(0).unresolved == Places{3}));
  CHECK((lookup.fallback(1).absent == Places{1, 2, 4}));
  std::vector<float> given(3 * kWidth, 10.0f);
  std::fill(given.begin() + kWidth, given.end(), 20.0f);
  const std::vector<std::uint8_t> has_row = {1, 1, 0};
  lookup.fall_back(0, given.data(), has_row.data());
  lookup.fall_back(1, given.data(), has_row.data());
  lookup.finish();
  // 1 has a row, 50 and 2 read what was given, 60 what its feature says, and 100 is not known to be absent.
  CHECK(sum[0] == 1.0f + 10.0f + 20.0f + 0.0f + 2.0f);
  CHECK((rows[0] == 1.0f && rows[kWidth] == 10.0f && rows[2 * kWidth] == 20.0f && rows[3 * kWidth] == 0.0f));
  CHECK(rows[4 * kWidth] == 2.0f);
  CHECK(plain[0] == 1.0f + 2.0f + 2.0f + 0.0f + 2.0f);
}

TEST(a_caller_who_gives_no_rows_reads_what_the_feature_says) {
  Table table(kWidth, 0, 0);
  fill(table, 6, 1);
  Lookup lookup{{&table}, {{0, Pooling::kSum, 0, kConstant, true}}};
  const std::vector<std::int64_t> ids = {1, 50}, offsets = {0, 2};
  std::vector<float> sum(kWidth);
  lookup.begin(1, {{ids.data(), 2, offsets.data(), sum.data(), nullptr}});
  supply(lookup);
  lookup.finish();
  CHECK(sum[0] == 3.0f);
}

TEST(several_threads_fall_back_as_one_does) {
  Table table(kWidth, 0, 0);
  fill(table, 90, 2);
  constexpr std::size_t kBatch = 4000;
  std::vector<std::int64_t> ids, offsets = {0};
  for (std::size_t b = 0; b < kBatch; ++b) {
    for (std::size_t i = 0; i < b % 5; ++i) ids.push_back(static_cast<std::int64_t>((b * 7 + i * 13) % 103));
    offsets.push_back(static_cast<std::int64_t>(ids.size()));
  }
  std::vector<std::vector<float>> results;
  for (const std::size_t threads : {1, 4}) {
    Lookup lookup{{&table}, {{0, Pooling::kMean, 0, kConstant, true}}};
    std::vector<float> means(kBatch * kWidth);
    lookup.begin(kBatch, {{ids.data(), ids.size(), offsets.data(), means.data(), nullptr}}, 0, threads);
    supply(lookup);
    const std::size_t count = lookup.settle();
    const Places& absent = lookup.fallback(0).absent;
    CHECK(count > 0 && count == absent.size());
    std::vector<float> given;
    std::vector<std::uint8_t> has_row;
    for (const std::int64_t place : absent) {
      const std::int64_t id = ids[static_cast<std::size_t>(place)];
      given.insert(given.end(), kWidth, static_cast<float>(-id));
      has_row.push_back(id % 3 != 0);
    }
    lookup.fall_back(0, given.data(), has_row.data());
    lookup.finish();
    results.push_back(means);
  }
  CHECK((results[0] == results[1]));
  // Bag 1 has the id 7 alone, and bag 6 the id 42, whose chain has no row.
  CHECK(results[0][kWidth] == 7.0f && results[0][6 * kWidth] == 2.0f);
}

RUN_ALL_TESTS_ON_EVERY_ISA()
