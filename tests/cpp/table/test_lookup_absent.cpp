// Batch lookups whose ids without a row read as something else than zeros: for every pooling, whichever way an id turns
// out to be absent, on one thread and on several.
#include <cmath>

#include "every_isa.h"
#include "table/lookup.h"

using namespace emberline;

namespace {

constexpr std::uint32_t kWidth = 3;
constexpr SeededInitializer kNormal{{Initial::kNormal, 0.5f}, 99};
constexpr SeededInitializer kConstant{{Initial::kConstant, 2.0f}, 0};

std::vector<float> normal_row(std::int64_t id) {
  std::vector<float> row(kWidth);
  initial_row(kNormal.initializer, kNormal.seed, id, kWidth, row.data());
  return row;
}

// The base has 1 to 5 with rows (id, id, id). Overlay 0: 2 is removed, 9 has a row.
struct Fixture {
  Table table{kWidth, 0, 0};
  OverlayTable overlay{kWidth};
  Lookup lookup{{&table},
                {{0, Pooling::kSum, 0, kNormal},
                 {0, Pooling::kMean, 0, kConstant},
                 {0, Pooling::kWeighted, 0, kNormal},
                 {0, Pooling::kNone, 4, kNormal},
                 {0, Pooling::kSum, 0}},
                {&overlay}};
  std::vector<float> sum = std::vector<float>(kWidth), mean = sum, weighted = sum, plain = sum;
  std::vector<float> rows = std::vector<float>(4 * kWidth);
  std::vector<std::uint8_t> mask = std::vector<std::uint8_t>(4);
  LookupTotals totals;

  Fixture() {
    for (std::int64_t id = 1; id <= 5; ++id) {
      const std::vector<float> row(kWidth, static_cast<float>(id));
      table.insert_or_assign(&id, 1, row.data(), nullptr);
    }
    const std::int64_t gone = 2, fresh = 9;
    const std::vector<float> row(kWidth, 90.0f);
    overlay.stage(0, &gone, 1, nullptr, CoverState::kRemoved);
    overlay.stage(0, &fresh, 1, row.data(), CoverState::kRow);
  }

  // One bag of every feature; state_of: what the caller finds of an id that the table does not have.
  void look_up(const std::vector<std::int64_t>& ids, std::uint64_t visible, std::uint8_t state) {
    const std::vector<std::int64_t> offsets = {0, static_cast<std::int64_t>(ids.size())};
    const std::vector<float> weights(ids.size(), 0.25f);
    const std::size_t n = ids.size();
    lookup.begin(1,
                 {{ids.data(), n, offsets.data(), sum.data(), nullptr},
                  {ids.data(), n, offsets.data(), mean.data(), nullptr},
                  {ids.data(), n, offsets.data(), weighted.data(), nullptr, weights.data()},
                  {ids.data(), n, offsets.data(), rows.data(), mask.data()},
                  {ids.data(), n, offsets.data(), plain.data(), nullptr}},
                 visible);
    const std::vector<float> none(lookup.missing(0).size() * kWidth, -7.0f);
    const std::vector<std::uint8_t> states(lookup.missing(0).size(), state);
    if (!states.empty()) lookup.supply(0, none.data(), states.data());
    totals = lookup.finish();
  }

  std::vector<float> row_at(std::size_t place) const {
    return {rows.begin() + static_cast<std::ptrdiff_t>(place * kWidth),
            rows.begin() + static_cast<std::ptrdiff_t>((place + 1) * kWidth)};
  }
};

}  // namespace

TEST(an_absent_id_reads_as_its_feature_says_and_padding_stays_zero) {
  Fixture world;
  world.look_up({1, 77, 3}, 0, 0);
  const std::vector<float> absent = normal_row(77);
  for (std::uint32_t d = 0; d < kWidth; ++d) {
    CHECK(world.sum[d] == (0.0f + 1.0f + absent[d]) + 3.0f);
    CHECK(world.mean[d] == 2.0f);  // (1 + 2 + 3) / 3
    CHECK(world.weighted[d] == (0.25f * 1.0f + 0.25f * absent[d]) + 0.25f * 3.0f);
    CHECK(world.plain[d] == 4.0f);
  }
  CHECK((world.row_at(1) == absent && world.row_at(3) == std::vector<float>(kWidth, 0.0f)));
  CHECK((world.mask == std::vector<std::uint8_t>{1, 0, 1, 0}));
  CHECK(world.totals.absent == 5 && world.totals.dram == 2 * 5);
}

TEST(an_id_that_an_overlay_removed_is_absent_and_one_that_it_added_is_not) {
  Fixture world;
  world.look_up({2, 9}, 1, 0);
  const std::vector<float> absent = normal_row(2);
  for (std::uint32_t d = 0; d < kWidth; ++d) {
    CHECK(world.sum[d] == absent[d] + 90.0f);
    CHECK(world.mean[d] == 46.0f);
    CHECK(world.plain[d] == 90.0f);
  }
  CHECK((world.row_at(0) == absent && world.row_at(2) == std::vector<float>(kWidth, 0.0f)));
  CHECK((world.mask == std::vector<std::uint8_t>{0, 1, 0, 0}));
  CHECK(world.totals.absent == 5 && world.totals.overlay == 5 && world.totals.supplied == 0);
  world.look_up({2, 9}, 0, 0);  // without the overlay it is the other way round
  CHECK((world.row_at(0) == std::vector<float>(kWidth, 2.0f) && world.row_at(1) == normal_row(9)));
}

TEST(an_id_whose_tier_did_not_answer_reads_as_zeros) {
  Fixture world;
  world.look_up({77}, 0, 2);
  const std::vector<float> zeros(kWidth, 0.0f);
  CHECK((world.sum == zeros && world.mean == zeros && world.weighted == zeros && world.row_at(0) == zeros));
  CHECK(world.totals.unresolved == 5 && world.totals.absent == 0);
}

TEST(several_threads_read_what_one_does) {
  Table table(kWidth, 0, 0, RowType::kInt8);
  for (std::int64_t id = 0; id < 3000; id += 2) {
    const std::vector<float> row(kWidth, static_cast<float>(id % 100));
    table.insert_or_assign(&id, 1, row.data(), nullptr);
  }
  constexpr std::size_t kBatch = 4000;
  std::vector<std::int64_t> ids, offsets = {0};
  for (std::size_t b = 0; b < kBatch; ++b) {
    for (std::size_t i = 0; i < b % 5; ++i) ids.push_back(static_cast<std::int64_t>((b * 7 + i * 13) % 3000));
    offsets.push_back(static_cast<std::int64_t>(ids.size()));
  }
  std::vector<std::vector<float>> results;
  for (const std::size_t threads : {1, 4}) {
    Lookup lookup{{&table}, {{0, Pooling::kSum, 0, kNormal}, {0, Pooling::kMean, 0, kConstant}}};
    std::vector<float> sums(kBatch * kWidth), means(kBatch * kWidth);
    lookup.begin(kBatch,
                 {{ids.data(), ids.size(), offsets.data(), sums.data(), nullptr},
                  {ids.data(), ids.size(), offsets.data(), means.data(), nullptr}},
                 0, threads);
    const std::size_t missing = lookup.missing(0).size();
    CHECK(missing > 0);
    const std::vector<float> rows(missing * kWidth);
    const std::vector<std::uint8_t> states(missing, 0);
    lookup.supply(0, rows.data(), states.data());
    lookup.finish();
    sums.insert(sums.end(), means.begin(), means.end());
    results.push_back(sums);
  }
  CHECK((results[0] == results[1]));
  const float first = results[0][kWidth];  // bag 1: id 7 alone, which has no row
  std::vector<float> expected(kWidth);
  AbsentRows(kNormal, {RowType::kInt8, kWidth}).write(7, expected.data());
  CHECK(first == expected[0] && results[0][(kBatch + 1) * kWidth] == 2.0f);
}

RUN_ALL_TESTS_ON_EVERY_ISA()
