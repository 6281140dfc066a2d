// Batch lookups under a mask: what overlays say overrides the table, for every pooling, and costs nothing without a
// mask.
#include "every_isa.h"
#include "table/lookup.h"

using namespace emberline;

namespace {

constexpr std::uint32_t kWidth = 2;

struct Fixture {
  Table table{kWidth, 0, 0};
  OverlayTable overlay{kWidth};
  Lookup lookup{{&table}, {{0, Pooling::kMean, 0}, {0, Pooling::kNone, 3}}, {&overlay}};
  std::vector<float> pooled, out;
  std::vector<std::uint8_t> mask;
  LookupTotals totals;

  // The base has 1 to 5 with rows (id, 10 id). Overlay 0: 2 and 9 get rows, 3 is removed, 4 is spilled. Overlay 1: 3 is
  // back, 2 removed, 1 spilled.
  Fixture() {
    for (std::int64_t id = 1; id <= 5; ++id) put(id);
    stage(0, {2, 9}, {200, 2000, 900, 9000});
    stage(0, {3}, CoverState::kRemoved);
    stage(0, {4}, CoverState::kSpilled);
    stage(1, {3}, {300, 3000});
    stage(1, {2}, CoverState::kRemoved);
    stage(1, {1}, CoverState::kSpilled);
  }

  void put(std::int64_t id) {
    const float row[] = {static_cast<float>(id), static_cast<float>(id) * 10};
    table.insert_or_assign(&id, 1, row, nullptr);
  }
  void stage(std::uint32_t number, const std::vector<std::int64_t>& ids, const std::vector<float>& rows) {
    overlay.stage(number, ids.data(), ids.size(), rows.data(), CoverState::kRow);
  }
  void stage(std::uint32_t number, const std::vector<std::int64_t>& ids, CoverState state) {
    overlay.stage(number, ids.data(), ids.size(), nullptr, state);
  }

  // One bag. Missing ids come with the row (1000 + id, source).
  std::vector<std::int64_t> look_up(const std::vector<std::int64_t>& ids, std::uint64_t visible) {
    const std::vector<std::int64_t> offsets = {0, static_cast<std::int64_t>(ids.size())};
    pooled.assign(kWidth, -7);
    out.assign(3 * kWidth, -7);
    mask.assign(3, 9);
    lookup.begin(1,
                 {{ids.data(), ids.size(), offsets.data(), pooled.data(), nullptr},
                  {ids.data(), ids.size(), offsets.data(), out.data(), mask.data()}},
                 visible);
    const std::vector<std::int64_t> missing = lookup.missing(0);
    std::vector<float> rows;
    for (std::size_t i = 0; i < missing.size(); ++i) {
      rows.push_back(static_cast<float>(1000 + missing[i]));
      rows.push_back(lookup.missing_sources(0)[i]);
    }
    const std::vector<std::uint8_t> states(missing.size(), 1);
    if (!missing.empty()) lookup.supply(0, rows.data(), states.data());
    totals = lookup.finish();
    return missing;
  }
};

}  // namespace

TEST(without_a_mask_the_table_alone_answers) {
  Fixture world;
  CHECK((world.look_up({2, 3, 4}, 0).empty()));
  CHECK((world.pooled == std::vector<float>{3, 30}));
  CHECK((world.out == std::vector<float>{2, 20, 3, 30, 4, 40}));
  CHECK(world.totals.dram == 6 && world.totals.overlay == 0);
}

TEST(rows_cover_removed_ids_are_absent_and_asked_of_nobody_and_spilled_ones_name_their_overlay) {
  Fixture world;
  CHECK((world.look_up({2, 3, 4}, 0b01) == std::vector<std::int64_t>{4}));
  CHECK((world.pooled == std::vector<float>{(200.0f + 1004.0f) / 3, 2000.0f / 3}));
  CHECK((world.out == std::vector<float>{200, 2000, 0, 0, 1004, 0}));
  CHECK((world.mask == std::vector<std::uint8_t>{1, 0, 1}));
  CHECK(world.totals.overlay == 2 && world.totals.absent == 2 && world.totals.supplied == 2 && world.totals.dram == 0);

  CHECK((world.look_up({1, 2, 3}, 0b11) == std::vector<std::int64_t>{1}));
  CHECK((world.out == std::vector<float>{1001, 1, 0, 0, 300, 3000}));
  CHECK((world.look_up({9, 5, 7}, 0b10) == std::vector<std::int64_t>{9, 7}));  // of the base: overlay 0 is not visible
  CHECK((world.out == std::vector<float>{1009, 255, 5, 50, 1007, 255}));
  CHECK(world.totals.dram == 2 && world.totals.supplied == 4);
}

TEST(a_bag_of_removed_ids_alone_waits_for_nobody) {
  Fixture world;
  CHECK(world.look_up({3, 3}, 0b01).empty());
  CHECK((world.pooled == std::vector<float>{0, 0}));
  CHECK((world.mask == std::vector<std::uint8_t>{0, 0, 0}));
  CHECK(world.totals.absent == 4);
}

TEST(bags_beyond_a_window_are_covered_throughout) {
  Fixture world;
  const std::vector<std::int64_t> ids(5000, 9);
  CHECK(world.look_up(ids, 0b11).empty());
  CHECK((world.pooled == std::vector<float>{900, 9000}));
  CHECK(world.totals.overlay == 5003);
}

TEST(overlays_that_do_not_fit_are_refused) {
  Table table(kWidth, 0, 0);
  OverlayTable narrow(1), right(kWidth);
  CHECK_THROWS(Lookup({&table}, {}, {&narrow}), std::invalid_argument);
  CHECK_THROWS(Lookup({&table}, {}, {&right, &right}), std::invalid_argument);
  CHECK_THROWS(Lookup({&table}, {}).begin(0, {}, 1), std::invalid_argument);
  CHECK_THROWS(Lookup({&table}, {}, {&right}).begin(0, {}, std::uint64_t{1} << 63), std::invalid_argument);
}

RUN_ALL_TESTS_ON_EVERY_ISA()
