// Trained tables: admission, deterministic rows, fused steps, restoring.
#include <cmath>
#include <set>

#include "check.h"
#include "tables.h"

using namespace emberline;
using namespace emberline::tests;

TEST(a_row_appears_when_its_id_was_seen_often_enough_for_all_of_that_call) {
  TrainingTable table(options({.dim = 2, .rule = Rule::kSgd, .admit_after = 3}));
  CHECK(look(table, {9, 9}, true) == std::vector<float>(4, 0.0f));
  CHECK(table.size() == 0);
  CHECK(look(table, {9}, false) == std::vector<float>(2, 0.0f));  // evaluation counts nothing
  const auto rows = look(table, {9, 9, 4}, true);
  CHECK(table.size() == 1);
  CHECK(rows[0] != 0.0f && rows[0] == rows[2] && rows[1] == rows[3] && rows[4] == 0.0f);
  CHECK(table.export_rows().counts == std::vector<std::uint32_t>{4});
  CHECK(table.export_counts().ids == std::vector<std::int64_t>{4});
}

TEST(a_new_row_depends_on_seed_and_id_alone) {
  TrainingTable one(options({.dim = 8, .seed = 42})), two(options({.dim = 8, .seed = 42}));
  TrainingTable other(options({.dim = 8, .seed = 43}));
  look(one, {1, 2, 3}, true);
  CHECK(look(one, {3, -1}, true) == look(two, {3, -1}, true));
  CHECK(look(one, {3}, true) != look(other, {3}, true));
}

TEST(initial_values_are_spread_as_their_kind_says) {
  struct Expected {
    Initializer initializer;
    float most;
    double deviation;
  };
  for (const auto& [initializer, most, deviation] :
       {Expected{{Initial::kUniform, 0.5f}, 0.5f, 0.5 / std::sqrt(3.0)}, Expected{{Initial::kNormal, 0.5f}, 3.0f, 0.5},
        Expected{{Initial::kTruncatedNormal, 0.5f}, 1.0f, 0.44}}) {
    std::set<float> distinct;
    double sum = 0, squares = 0;
    std::vector<float> row(8);
    for (std::int64_t id = 0; id < 2000; ++id) {
      initial_row(initializer, 7, id, 8, row.data());
      for (const float value : row) {
        CHECK(std::abs(value) <= most);
        distinct.insert(value);
        sum += value;
        squares += value * value;
      }
    }
    CHECK(distinct.size() > 15'900);
    CHECK(std::abs(sum / 16'000) < 0.01);
    CHECK(std::abs(std::sqrt(squares / 16'000) - deviation) < 0.01);
  }
}

TEST(an_id_without_a_row_reads_as_absent) {
  TrainingOptions made = options({.dim = 3, .admit_after = 2});
  made.absent = {Initial::kConstant, 0.75f};
  TrainingTable table(made);
  CHECK(look(table, {1, 2}, true) == std::vector<float>(6, 0.75f));
  made.absent = {Initial::kNormal, 1.0f};
  TrainingTable normal(made);
  std::vector<float> expected(3);
  initial_row(made.absent, made.seed, 5, 3, expected.data());
  CHECK(look(normal, {5}, false) == expected);
}

TEST(gradients_of_one_id_are_summed_then_stepped_once_and_strangers_dropped) {
  TrainingTable table(options({.dim = 1, .scale = 0.0f}));
  look(table, {5, 6}, true);
  CHECK(step(table, {5, 8, 5, 6}, {1, 100, 2, 4}, 0.5f) == 2);
  const TrainingRows all = table.export_rows();
  CHECK((all.ids == std::vector<std::int64_t>{5, 6}));
  CHECK(all.slots[0] == 0.25f + 9.0f && all.slots[1] == 0.25f + 16.0f);
  CHECK(all.rows[0] == -(0.5f * 3.0f / (std::sqrt(9.25f) + 1e-8f)));
}

TEST(a_step_of_another_rule_than_the_table_was_made_for_is_refused) {
  TrainingTable table(options({.rule = Rule::kSgd}));
  TableGradients none = TableGradients::of_rows(table, nullptr, 0, nullptr);
  Step step;
  step.rule = Rule::kAdam;
  CHECK_THROWS(step_tables({{&table, &none}}, step, 1), std::invalid_argument);
}

TEST(restoring_an_export_gives_the_same_table) {
  TrainingTable table(options({.admit_after = 2})), copy(options({.admit_after = 2}));
  std::vector<std::int64_t> ids;
  for (std::int64_t i = 0; i < 5000; ++i) ids.push_back(i < 4000 ? i % 1500 - 700 : i * 1'000'000'007);
  look(table, ids, true);
  step(table, ids, std::vector<float>(ids.size() * 4, 0.5f));
  const TrainingRows all = table.export_rows();
  const IdCounts waiting = table.export_counts();
  CHECK(!all.ids.empty() && !waiting.ids.empty());
  copy.set_stamp(table.stamp());
  copy.restore(all.ids.data(), all.ids.size(), all.rows.data(), all.slots.data(), all.counts.data(), all.stamps.data(),
               all.ticks.data());
  copy.restore_counts(waiting.ids.data(), waiting.ids.size(), waiting.counts.data());
  look(table, ids, true);
  look(copy, ids, true);
  const TrainingRows a = table.export_rows(), b = copy.export_rows();
  CHECK(a.ids == b.ids && a.rows == b.rows && a.slots == b.slots && a.counts == b.counts && a.stamps == b.stamps);
  CHECK(table.export_counts().ids == copy.export_counts().ids);
}

int main() { return check::run_all(); }
