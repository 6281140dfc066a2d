// Rows that are idle, by the tick of their last use: found a part at a time, against a plain map.
#include <cmath>
#include <map>
#include <random>
#include <stdexcept>

#include "check.h"
#include "training/training_table.h"

using namespace emberline;

namespace {

TrainingTable table_of() {
  TrainingOptions options;
  options.dim = 2;
  options.evicts = true;
  return TrainingTable(options);
}

void look(TrainingTable& table, const std::vector<std::int64_t>& ids, bool train = true) {
  std::vector<float> out(ids.size() * table.dim());
  table.lookup(ids.data(), ids.size(), out.data(), train);
}

std::vector<std::int64_t> idle(TrainingTable& table, const IdleRows& wanted) {
  std::vector<std::int64_t> all;
  for (std::uint32_t part = 0; part < RowParts::kParts; ++part) {
    const std::vector<std::int64_t> ids = table.idle(part, wanted);
    CHECK(std::is_sorted(ids.begin(), ids.end()));
    for (const std::int64_t id : ids) CHECK(RowParts::part_of(id) == part);
    all.insert(all.end(), ids.begin(), ids.end());
  }
  std::sort(all.begin(), all.end());
  return all;
}

}  // namespace

TEST(a_row_has_the_tick_of_its_last_use_in_training) {
  TrainingTable table = table_of();
  CHECK(table.tick() == 1);
  look(table, {1, 2, 3});
  table.set_tick(4);
  look(table, {2});
  look(table, {3}, false);  // evaluation is no use
  CHECK((table.export_rows().ticks == std::vector<std::uint32_t>{1, 4, 1}));
  CHECK((idle(table, {1, 0, 0, 0.0f}) == std::vector<std::int64_t>{1, 3}));
  CHECK(idle(table, {0, 0, 0, 0.0f}).empty());
  CHECK_THROWS(table.set_tick(3), std::invalid_argument);
}

TEST(ids_that_go_and_come_back_are_found_once) {
  TrainingTable table = table_of();
  for (int round = 0; round < 50; ++round) {
    std::vector<std::int64_t> ids;
    for (std::int64_t id = 0; id < 2000; ++id) ids.push_back(id * 31 - 999);
    look(table, ids);
    table.erase(ids.data() + 1, ids.size() - 1);
  }
  look(table, {5, 5, 6});
  CHECK((idle(table, {1, 0, 0, 0.0f}) == std::vector<std::int64_t>{-999, 5, 6}));
}

TEST(random_uses_erasures_and_norms_agree_with_a_map) {
  TrainingTable table = table_of();
  std::map<std::int64_t, std::uint32_t> ticks;
  std::mt19937_64 random(3);
  for (std::uint32_t tick = 2; tick < 30; ++tick) {
    table.set_tick(tick);
    std::vector<std::int64_t> ids(200);
    for (std::int64_t& id : ids) id = static_cast<std::int64_t>(random() % 3000) - 1500;
    look(table, ids);
    for (const std::int64_t id : ids) ticks[id] = tick;
    const std::uint32_t unused = tick > 8 ? tick - 8 : 0;
    const IdleRows wanted{unused, tick - 3, tick - 1, 0.03f};
    std::vector<std::int64_t> expected;
    for (const auto& [id, used] : ticks) {
      const std::vector<float> row = table.export_ids(&id, 1).rows;
      const bool small = row[0] * row[0] + row[1] * row[1] < 0.03f * 0.03f;
      if (used <= unused || (used > tick - 3 && used <= tick - 1 && small)) expected.push_back(id);
    }
    const std::vector<std::int64_t> found = idle(table, wanted);
    CHECK(found == expected);
    CHECK(tick < 12 || !found.empty());
    table.erase(found.data(), found.size());
    for (const std::int64_t id : found) ticks.erase(id);
    CHECK(table.size() == ticks.size());
  }
}

TEST(what_is_impossible_is_refused) {
  TrainingOptions options;
  options.dim = 2;
  TrainingTable plain(options), evicting = table_of();
  CHECK_THROWS(plain.idle(0, {}), std::invalid_argument);
  CHECK_THROWS(evicting.idle(RowParts::kParts, {}), std::invalid_argument);
}

RUN_ALL_TESTS()
