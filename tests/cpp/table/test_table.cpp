// The verbs of a table beside std::map, one thread.
#include <algorithm>
#include <limits>
#include <map>
#include <random>

#include "every_isa.h"
#include "rows.h"
#include "table/table.h"

using namespace emberline;

namespace {

int find_generation(const Table& table, std::int64_t id) {
  std::vector<float> out(kDim, -1.0f);
  std::uint8_t found = 9;
  table.find(&id, 1, out.data(), &found);
  if (found == 0) {
    for (const float value : out) CHECK(value == 0.0f);
    return -1;
  }
  CHECK(found == 1);
  return generation_of(out.data(), id);
}

void put(Table& table, std::int64_t id, int generation) {
  table.insert_or_assign(&id, 1, make_row(id, generation).data(), nullptr);
}

}  // namespace

TEST(every_int64_is_an_id) {
  Table table(1, 0, 0);
  const std::vector<std::int64_t> ids = {0, -1, 1, std::numeric_limits<std::int64_t>::max(),
                                         std::numeric_limits<std::int64_t>::min()};
  std::vector<float> out(ids.size());
  std::vector<std::uint8_t> found(ids.size());
  CHECK(table.find(ids.data(), ids.size(), out.data(), found.data()) == 0);
  const std::vector<float> rows = {1, 2, 3, 4, 5};
  table.insert_or_assign(ids.data(), ids.size(), rows.data(), nullptr);
  CHECK(table.find(ids.data(), ids.size(), out.data(), found.data()) == ids.size());
  CHECK(out == rows);
  table.check_integrity();
}

TEST(it_does_what_a_map_does_while_it_grows_and_shrinks) {
  Table table(kDim, 0, 0);
  std::map<std::int64_t, int> model;
  std::mt19937_64 random(11);
  for (int step = 0; step < 60'000; ++step) {
    const auto id = static_cast<std::int64_t>(random() % 4000) - 2000;
    switch (random() % 5) {
      case 0: {
        CHECK(table.erase(&id, 1) == model.erase(id));
        break;
      }
      case 1: {
        const bool known = model.count(id) > 0;
        CHECK(table.assign(&id, 1, make_row(id, step).data()) == (known ? 1u : 0u));
        if (known) model[id] = step;
        break;
      }
      case 2: CHECK(find_generation(table, id) == (model.count(id) ? model[id] : -1)); break;
      default: put(table, id, step); model[id] = step;
    }
    if (step % 10'000 == 0) table.check_integrity();
  }
  table.check_integrity();
  CHECK(table.size() == model.size());
  for (const auto& [id, generation] : model) CHECK(find_generation(table, id) == generation);
}

TEST(the_last_of_equal_ids_in_one_call_wins) {
  Table table(1, 0, 0);
  const std::int64_t ids[] = {4, 4, 4};
  const float rows[] = {1, 2, 3};
  table.insert_or_assign(ids, 3, rows, nullptr);
  float out = 0;
  std::uint8_t found = 0;
  table.find(ids, 1, &out, &found);
  CHECK(out == 3.0f && table.size() == 1);
}

TEST(extra_values_are_kept_and_exported_but_not_looked_up) {
  Table table(2, 3, 0);
  const std::int64_t id = 8;
  const float row[] = {1, 2, 3, 4, 5};
  table.insert_or_assign(&id, 1, row, nullptr);
  float out[2] = {};
  std::uint8_t found = 0;
  CHECK(table.find(&id, 1, out, &found) == 1 && out[0] == 1 && out[1] == 2);
  CHECK(table.export_batch(0, 10).rows == std::vector<float>(row, row + 5));
}

TEST(export_gives_every_row_once_whatever_the_limit) {
  Table table(kDim, 0, 0);
  for (int id = 0; id < 1000; ++id) put(table, id, id + 1);
  for (const std::size_t limit : {std::size_t{1}, std::size_t{7}, std::size_t{1000}, std::size_t{5000}}) {
    std::map<std::int64_t, int> all;
    for (std::int64_t cursor = 0; cursor >= 0;) {
      const ExportedRows batch = table.export_batch(static_cast<std::uint64_t>(cursor), limit);
      CHECK(batch.ids.size() <= limit);
      for (std::size_t i = 0; i < batch.ids.size(); ++i) {
        CHECK(all.emplace(batch.ids[i], generation_of(batch.rows.data() + i * kDim, batch.ids[i])).second);
      }
      cursor = batch.next_cursor;
    }
    CHECK(all.size() == 1000);
    for (const auto& [id, generation] : all) CHECK(generation == id + 1);
  }
}

TEST(updates_reuse_the_memory_of_old_rows) {
  Table table(kDim, 0, 0);
  for (int id = 0; id < 100; ++id) put(table, id, 0);
  for (int round = 1; round < 500; ++round) {
    for (int id = 0; id < 100; ++id) put(table, id, round);
  }
  CHECK(table.memory_bytes() <
        (100 + 3000) * (kDim * 4 + 1) + 100'000);  // 50,000 updates, a bounded number of old rows
  table.check_integrity();
}

TEST(index_and_counters_cost_at_most_22_bytes_a_row_also_right_after_growth) {
  Table table(1, 0, 0);
  const std::size_t fixed = table.memory_bytes();
  constexpr double kPageRounding = (2 << 20) / 600'000.0;
  constexpr std::int64_t kStep = 1000;
  const std::vector<float> rows(kStep, 1.0f);
  std::vector<std::int64_t> ids(kStep);
  double most = 0;
  for (std::int64_t start = 0; start < 1'000'000; start += kStep) {
    for (std::int64_t i = 0; i < kStep; ++i) ids[static_cast<std::size_t>(i)] = start + i;
    table.insert_or_assign(ids.data(), ids.size(), rows.data(), nullptr);
    if (start < 600'000) continue;
    const auto bytes = static_cast<double>(table.memory_bytes() - fixed);
    most = std::max(most, bytes / static_cast<double>(table.size()) - sizeof(float));
  }
  CHECK(most > 10 && most < 22 + kPageRounding);
}

RUN_ALL_TESTS_ON_EVERY_ISA()
