// Trained tables: admission, deterministic rows, fused steps, restoring.
#include <cmath>
#include <set>

#include "check.h"
#include "table/training.h"

using namespace emberline;

namespace {

std::vector<float> look(TrainingTable& table, const std::vector<std::int64_t>& ids, bool train) {
  std::vector<float> out(ids.size() * table.dim(), -1.0f);
  table.lookup(ids.data(), ids.size(), out.data(), train, 0.25f);
  return out;
}

}  // namespace

TEST(a_row_appears_when_its_id_was_seen_often_enough_for_all_of_that_call) {
  TrainingTable table(2, 0, 1, 0.5f, 3);
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
  TrainingTable one(8, 0, 42, 0.1f, 1), two(8, 0, 42, 0.1f, 1), other(8, 0, 43, 0.1f, 1);
  look(one, {1, 2, 3}, true);
  CHECK(look(one, {3, -1}, true) == look(two, {3, -1}, true));
  CHECK(look(one, {3}, true) != look(other, {3}, true));
  std::set<float> distinct;
  double sum = 0;
  for (std::int64_t id = 0; id < 2000; ++id) {
    for (std::uint32_t j = 0; j < 8; ++j) {
      const float value = initial_value(7, id, j, 0.5f);
      CHECK(value >= -0.5f && value < 0.5f);
      distinct.insert(value);
      sum += value;
    }
  }
  CHECK(distinct.size() > 15'900);
  CHECK(std::abs(sum / 16'000) < 0.01);
}

TEST(gradients_of_one_id_are_summed_then_stepped_once_and_strangers_dropped) {
  TrainingTable table(1, 1, 3, 0.0f, 1);
  look(table, {5, 6}, true);
  const std::int64_t ids[] = {5, 8, 5, 6};
  const float grads[] = {1, 100, 2, 4};
  CHECK(table.adagrad(ids, 4, grads, 0.5f, 1e-8f) == 2);
  const TrainingRows all = table.export_rows();
  CHECK((all.ids == std::vector<std::int64_t>{5, 6}));
  CHECK(all.slots[0] == 0.25f + 9.0f && all.slots[1] == 0.25f + 16.0f);
  CHECK(all.rows[0] == -(0.5f * 3.0f / (std::sqrt(9.25f) + 1e-8f)));
  CHECK(table.sgd(ids, 4, grads, 1.0f) == 2);
  CHECK(table.export_rows().rows[1] == all.rows[1] - 4.0f);
}

TEST(adagrad_without_slots_is_refused) {
  TrainingTable table(2, 0, 3, 0.1f, 1);
  const std::int64_t id = 1;
  const float grad[] = {1, 1};
  CHECK_THROWS(table.adagrad(&id, 1, grad, 0.1f, 0.0f), std::invalid_argument);
}

TEST(restoring_an_export_gives_the_same_table) {
  TrainingTable table(4, 4, 9, 0.1f, 2), copy(4, 4, 9, 0.1f, 2);
  std::vector<std::int64_t> ids;
  for (std::int64_t i = 0; i < 5000; ++i) ids.push_back(i < 4000 ? i % 1500 - 700 : i * 1'000'000'007);
  look(table, ids, true);
  const std::vector<float> grads(ids.size() * 4, 0.5f);
  table.adagrad(ids.data(), ids.size(), grads.data(), 0.1f, 1e-8f);
  const TrainingRows all = table.export_rows();
  const IdCounts waiting = table.export_counts();
  CHECK(!all.ids.empty() && !waiting.ids.empty());
  copy.set_stamp(table.stamp());
  copy.restore(all.ids.data(), all.ids.size(), all.rows.data(), all.slots.data(), all.counts.data(), all.stamps.data());
  copy.restore_counts(waiting.ids.data(), waiting.ids.size(), waiting.counts.data());
  look(table, ids, true);
  look(copy, ids, true);
  const TrainingRows a = table.export_rows(), b = copy.export_rows();
  CHECK(a.ids == b.ids && a.rows == b.rows && a.slots == b.slots && a.counts == b.counts && a.stamps == b.stamps);
  CHECK(table.export_counts().ids == copy.export_counts().ids);
}

TEST(the_gradient_of_a_bag_goes_to_each_of_its_ids) {
  const std::int64_t offsets[] = {0, 2, 2, 3};
  const float grad[] = {4, 6, 9};
  float sum[3], mean[3];
  pool_backward(offsets, 3, 1, Pooling::kSum, grad, sum);
  pool_backward(offsets, 3, 1, Pooling::kMean, grad, mean);
  CHECK(sum[0] == 4 && sum[1] == 4 && sum[2] == 9);
  CHECK(mean[0] == 2 && mean[1] == 2 && mean[2] == 9);
}

RUN_ALL_TESTS()
