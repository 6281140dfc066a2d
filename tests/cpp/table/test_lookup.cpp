// Batch lookups: every pooling, with rows in the table, supplied late, absent and unresolved.
#include <map>
#include <numeric>

#include "every_isa.h"
#include "table/lookup.h"

using namespace emberline;

namespace {

constexpr std::uint32_t kWidth = 2;

struct Result {
  std::vector<float> out;
  std::vector<std::uint8_t> mask;
  LookupTotals totals;
  std::vector<std::int64_t> asked;
};

// Ids below 100 have rows; those in `resident` are in the table, the others come late. 77 stays unresolved.
Result look_up(const std::vector<std::int64_t>& resident, Pooling pooling, std::uint32_t length,
               const std::vector<std::int64_t>& values, const std::vector<std::int64_t>& offsets) {
  const auto row_of = [](std::int64_t id) {
    return std::vector<float>{static_cast<float>(id) * 0.1f, 1.0f / static_cast<float>(id + 3)};
  };
  Table table(kWidth, 0, 0);
  for (const std::int64_t id : resident) table.insert_or_assign(&id, 1, row_of(id).data(), nullptr);
  Lookup lookup({&table}, {{0, pooling, length}});
  const std::size_t batch = offsets.size() - 1;
  const std::size_t width = pooling == Pooling::kNone ? length : 1;
  Result result;
  result.out.assign(batch * kWidth * width, -7.0f);
  result.mask.assign(batch * length, 9);
  lookup.begin(batch, {{values.data(), values.size(), offsets.data(), result.out.data(), result.mask.data()}});
  result.asked = lookup.missing(0);
  std::vector<float> rows;
  std::vector<std::uint8_t> state;
  for (const std::int64_t id : result.asked) {
    const auto row = row_of(id);
    rows.insert(rows.end(), row.begin(), row.end());
    state.push_back(id == 77 ? 2 : id < 100 ? 1 : 0);
  }
  lookup.supply(0, rows.data(), state.data());
  result.totals = lookup.finish();
  return result;
}

}  // namespace

TEST(a_missed_row_changes_no_bit_of_the_result) {
  std::vector<std::int64_t> values;
  for (int i = 0; i < 3000; ++i) values.push_back(i * 37 % 71);
  const std::vector<std::int64_t> offsets = {0, 3, 3, 8, 1500, 1501, 2999, 3000};  // empty bags, bags beyond a window
  std::vector<std::int64_t> all(71);
  std::iota(all.begin(), all.end(), 0);
  for (const Pooling pooling : {Pooling::kSum, Pooling::kMean, Pooling::kNone}) {
    const Result early = look_up(all, pooling, 5, values, offsets);
    const Result half = look_up({3, 7, 58, 60}, pooling, 5, values, offsets);
    const Result late = look_up({}, pooling, 5, values, offsets);
    CHECK(early.asked.empty());
    CHECK(early.out == half.out && early.out == late.out);
    CHECK(pooling != Pooling::kNone || (early.mask == half.mask && early.mask == late.mask));
    CHECK(early.totals.dram == half.totals.dram + half.totals.supplied);
    CHECK(early.totals.dram == late.totals.supplied && late.totals.dram == 0);
    CHECK(pooling == Pooling::kNone || early.totals.dram == 3000);
  }
}

TEST(bags_that_lie_apart_get_the_same_rows_early_and_late_and_nothing_between_them_is_written) {
  constexpr std::size_t kBatch = 700, kStride = 3 * kWidth;
  Table table(kWidth, 0, 0);
  for (std::int64_t id = 0; id < 90; ++id) {
    const float row[kWidth] = {static_cast<float>(id), 0.5f};
    table.insert_or_assign(&id, 1, row, nullptr);
  }
  Lookup lookup({&table}, {{0, Pooling::kSum, 0}, {0, Pooling::kMean, 0}});
  std::vector<std::int64_t> ones, pairs, one_ends = {0}, pair_ends = {0};
  for (std::size_t b = 0; b < kBatch; ++b) {
    ones.push_back(static_cast<std::int64_t>(b % 95));  // 90 to 94 come late
    one_ends.push_back(static_cast<std::int64_t>(b + 1));
    pairs.insert(pairs.end(), {static_cast<std::int64_t>(b % 93), 7});
    pair_ends.push_back(static_cast<std::int64_t>(2 * b + 2));
  }
  std::vector<float> out(kBatch * kStride, -7.0f);
  lookup.begin(kBatch,
               {{ones.data(), ones.size(), one_ends.data(), out.data(), nullptr, nullptr, kStride},
                {pairs.data(), pairs.size(), pair_ends.data(), out.data() + kWidth, nullptr, nullptr, kStride}});
  std::vector<float> rows;
  for (const std::int64_t id : lookup.missing(0)) rows.insert(rows.end(), {static_cast<float>(id), 0.5f});
  const std::vector<std::uint8_t> found(rows.size() / kWidth, 1);
  CHECK(found.size() == 5);
  lookup.supply(0, rows.data(), found.data());
  lookup.finish();
  for (std::size_t b = 0; b < kBatch; ++b) {
    const float* bag = out.data() + b * kStride;
    CHECK(bag[0] == static_cast<float>(b % 95) && bag[1] == 0.5f);
    CHECK(bag[2] == (static_cast<float>(b % 93) + 7.0f) / 2 && bag[3] == 0.5f);
    CHECK(bag[4] == -7.0f && bag[5] == -7.0f);
  }
}

TEST(absent_and_unresolved_ids_add_zero_divide_a_mean_and_are_counted_apart) {
  const Result result = look_up({10}, Pooling::kMean, 0, {10, 500, 77, 77}, {0, 4});
  CHECK(result.out[0] == 1.0f / 4.0f);
  CHECK(result.totals.dram == 1 && result.totals.absent == 1 && result.totals.unresolved == 2);
}

TEST(empty_bags_and_empty_batches_are_zero) {
  CHECK(look_up({1}, Pooling::kSum, 0, {}, {0, 0, 0}).out == std::vector<float>(4, 0.0f));
  CHECK(look_up({1}, Pooling::kMean, 0, {}, {0, 0}).out == std::vector<float>(2, 0.0f));
  CHECK(look_up({1}, Pooling::kNone, 3, {}, {0}).out.empty());
}

TEST(rows_are_cut_and_padded_and_the_mask_says_which_were_found) {
  const Result result = look_up({10, 20}, Pooling::kNone, 3, {10, 500, 20, 30, 77, 10}, {0, 4, 6});
  CHECK((result.mask == std::vector<std::uint8_t>{1, 0, 1, 0, 1, 0}));
  CHECK(result.out[0] == 1.0f && result.out[2] == 0.0f && result.out[4] == 2.0f);
  CHECK(result.out[6] == 0.0f && result.out[8] == 1.0f && result.out[10] == 0.0f);
  CHECK((result.asked == std::vector<std::int64_t>{500, 77}));  // 30 is beyond the length and not asked for
  CHECK(result.totals.dram == 3 && result.totals.absent == 1 && result.totals.unresolved == 1);
}

TEST(an_id_missing_in_two_features_is_asked_for_once) {
  Table table(kWidth, 0, 0);
  Lookup lookup({&table}, {{0, Pooling::kSum, 0}, {0, Pooling::kSum, 0}});
  const std::vector<std::int64_t> values = {5, 5, 6}, offsets = {0, 3};
  std::vector<float> a(kWidth), b(kWidth);
  const std::vector<LookupInput> inputs = {{values.data(), 3, offsets.data(), a.data(), nullptr},
                                           {values.data(), 3, offsets.data(), b.data(), nullptr}};
  CHECK(lookup.begin(1, inputs) == 2);
  CHECK((lookup.missing(0) == std::vector<std::int64_t>{5, 6}));
  CHECK_THROWS(lookup.finish(), std::invalid_argument);
  const std::vector<float> rows = {1, 2, 10, 20};
  const std::vector<std::uint8_t> bad = {1, 3}, good = {1, 1};
  CHECK_THROWS(lookup.supply(0, rows.data(), bad.data()), std::invalid_argument);
  lookup.supply(0, rows.data(), good.data());
  CHECK(lookup.finish().supplied == 6);
  CHECK(a == b && a[0] == 12.0f && a[1] == 24.0f);
}

TEST(offsets_that_do_not_fit_the_values_are_refused) {
  Table table(kWidth, 0, 0);
  Lookup lookup({&table}, {{0, Pooling::kSum, 0}});
  const std::vector<std::int64_t> values = {5, 6};
  std::vector<float> out(2 * kWidth);
  for (const std::vector<std::int64_t>& offsets :
       {std::vector<std::int64_t>{0, 1, 3}, {0, 1, 1}, {1, 1, 2}, {0, 3, 2}, {0, -1, 2}}) {
    CHECK_THROWS(lookup.begin(2, {{values.data(), 2, offsets.data(), out.data(), nullptr}}), std::invalid_argument);
  }
}

RUN_ALL_TESTS_ON_EVERY_ISA()
