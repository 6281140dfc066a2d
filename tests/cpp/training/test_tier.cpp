// Trained tables with rows outside: what leaves comes back as it was, and what only a store can tell is said.
#include <atomic>
#include <map>
#include <thread>

#include "check.h"
#include "tables.h"

using namespace emberline;
using namespace emberline::tests;

namespace {

using Ids = std::vector<std::int64_t>;

Ids unknown(TrainingTable& table, const Ids& ids, bool hold = false) {
  return table.unknown(ids.data(), ids.size(), hold, nullptr);
}

Ids range(std::int64_t first, std::int64_t last) {
  Ids ids;
  for (std::int64_t id = first; id < last; ++id) ids.push_back(id);
  return ids;
}

// What a caller does: packs the coldest, keeps their records, lets them go.
struct Outside {
  std::map<std::int64_t, std::vector<std::uint8_t>> records;

  void take(TrainingTable& table, std::size_t n) {
    const Ids ids = table.coldest(n);
    const PackedRows all = table.pack(ids.data(), ids.size());
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const auto at = all.records.begin() + static_cast<std::ptrdiff_t>(i * table.record_bytes());
      if (all.dirty[i] != 0) {
        records[ids[i]].assign(at, at + static_cast<std::ptrdiff_t>(table.record_bytes()));
      } else {
        CHECK(records[ids[i]] == std::vector<std::uint8_t>(at, at + static_cast<std::ptrdiff_t>(table.record_bytes())));
      }
    }
    table.let_go(ids.data(), ids.size());
  }

  void give(TrainingTable& table, const Ids& ids) {
    for (const std::int64_t id : unknown(table, ids, true)) {
      const auto found = records.find(id);
      if (found == records.end()) {
        table.settle(&id, 1);
      } else {
        table.bring(&id, 1, found->second.data());
      }
    }
  }
};

}  // namespace

TEST(rows_that_leave_and_come_back_train_as_if_they_had_stayed) {
  TrainingTable part(options({.tiered = true})), whole(options({}));
  Outside outside;
  std::uint64_t state = 1;
  for (int step = 0; step < 400; ++step) {
    Ids ids;
    for (int i = 0; i < 12; ++i) ids.push_back(static_cast<std::int64_t>(mix(++state) % 200) - 100);
    std::vector<float> grads(ids.size() * 4);
    for (float& grad : grads) grad = static_cast<float>(mix(++state) % 100) / 50.0f - 1.0f;
    part.begin();
    outside.give(part, ids);
    CHECK(unknown(part, ids).empty());
    CHECK(look(part, ids, true) == look(whole, ids, true));
    CHECK(tests::step(part, ids, grads) == tests::step(whole, ids, grads));
    part.begin();
    if (part.size() > 40) outside.take(part, part.size() - 40);
    CHECK(part.size() <= 40);
    if (step % 50 == 0) CHECK(part.advance() == whole.advance());
  }
  outside.give(part, range(-100, 100));
  const TrainingRows mine = part.export_rows(), other = whole.export_rows();
  CHECK(mine.ids == other.ids && mine.rows == other.rows && mine.slots == other.slots);
  CHECK(mine.counts == other.counts && mine.stamps == other.stamps);
}

TEST(what_is_held_stays_and_the_least_used_leave_first) {
  TrainingTable table(options({.dim = 1, .rule = Rule::kSgd, .tiered = true}));
  const Ids all = range(0, 100), hot = range(0, 10), held = range(50, 60);
  table.settle(all.data(), all.size());
  look(table, all, true);
  for (int step = 0; step < 5; ++step) {
    table.begin();
    unknown(table, hot, true);
  }
  table.begin();
  unknown(table, held, true);
  CHECK(table.held() == 10);
  const Ids gone = table.coldest(80);
  CHECK(gone.size() == 80);
  for (const std::int64_t id : gone) CHECK(id >= 10 && (id < 50 || id >= 60));
  CHECK(table.coldest(1000).size() == 90);
  CHECK(table.coldest(0).empty());
}

TEST(ids_without_a_row_leave_and_come_back) {
  TrainingTable table(options({.dim = 2, .admit_after = 3, .tiered = true}));
  look(table, {7, 7, 8}, true);
  BareIds bare = table.pack_bare();
  CHECK((bare.ids == Ids{7, 8}) && (bare.counts == std::vector<std::uint32_t>{2, 1}));
  CHECK((bare.waiting == std::vector<std::uint32_t>{1, 1}));
  table.drop_bare();
  CHECK(table.bare_size() == 0 && (unknown(table, {7, 8, 7}) == Ids{7, 8}));
  table.bring_bare(bare.ids.data(), 2, bare.counts.data(), bare.waiting.data(), bare.removed.data());
  CHECK(unknown(table, {7, 8}).empty());
  CHECK((table.waiting_since(0).ids == Ids{7, 8}));
  look(table, {7}, true);
  CHECK(table.size() == 1);
  table.erase(Ids{7}.data(), 1);
  bare = table.pack_bare();  // 7 was erased and lost its count, 8 waits
  CHECK((bare.ids == Ids{7, 8}) && bare.removed[0] == 1 && bare.counts[0] == 0 && bare.counts[1] == 1);
}

TEST(rows_beside_the_table_are_read_and_move_nothing) {
  TrainingTable table(options({.dim = 2, .tiered = true}));
  look(table, {1}, true);
  const Ids side = {5, 6};
  const float rows[] = {1, 2, 3, 4};
  const auto out = look(table, {6, 1, 9, 5}, false, {side.data(), 2, rows});
  CHECK(out[0] == 3 && out[1] == 4 && out[4] == 0 && out[6] == 1 && out[7] == 2);
  float first[2];
  initial_row({Initial::kUniform, 0.5f}, 1, 1, 2, first);
  CHECK(out[2] == first[0]);
  CHECK(table.size() == 1);
}

TEST(another_thread_may_ask_what_is_unknown_while_one_trains) {
  TrainingTable table(options({.tiered = true}));
  Outside outside;
  std::atomic<bool> stop{false};
  std::size_t asked = 0;
  std::thread reader([&] {
    std::uint64_t state = 99;
    while (!stop.load()) {
      Ids ids;
      for (int i = 0; i < 50; ++i) ids.push_back(static_cast<std::int64_t>(mix(++state) % 300));
      asked += unknown(table, ids).size() + 1;
    }
  });
  std::uint64_t state = 1;
  for (int step = 0; step < 300; ++step) {
    Ids ids;
    for (int i = 0; i < 30; ++i) ids.push_back(static_cast<std::int64_t>(mix(++state) % 300));
    table.begin();
    outside.give(table, ids);
    look(table, ids, true);
    if (table.size() > 100) outside.take(table, table.size() - 100);
  }
  stop = true;
  reader.join();
  CHECK(asked > 0);
}

int main() { return check::run_all(); }
