// Trained tables with rows in a file: they are what they are with every row in DRAM, and stay within their budget.
#include <atomic>
#include <thread>

#include "check.h"
#include "tables.h"

using namespace emberline;
using namespace emberline::tests;

namespace {

using Ids = std::vector<std::int64_t>;

Ids range(std::int64_t first, std::int64_t last) {
  Ids ids;
  for (std::int64_t id = first; id < last; ++id) ids.push_back(id);
  return ids;
}

// A table with room for so many rows, and one without bounds.
struct Both {
  explicit Both(const Made& made, std::size_t rows) : part(options(made)), whole(options(made)) {
    const std::size_t row_bytes = part.record_bytes() - sizeof(RecordHead) + 80;
    part.attach("items", std::make_shared<RowBudget>(rows * row_bytes), folder.path + "/rows");
  }

  Ids outside(std::uint32_t after = 0) const {
    Ids ids;
    std::size_t page = 0;
    do {
      const OutsideRows found = part.outside_rows(page, after, UINT32_MAX, false);
      ids.insert(ids.end(), found.ids.begin(), found.ids.end());
      page = found.next;
    } while (page > 0);
    return ids;
  }

  Ids all(Ids here, const Ids& there) const {
    here.insert(here.end(), there.begin(), there.end());
    std::sort(here.begin(), here.end());
    return here;
  }

  void check() const {
    CHECK(part.size() == whole.size());
    const TrainingRows other = whole.export_rows();
    CHECK(all(part.row_ids(), outside()) == other.ids);
    const TrainingRows mine = part.export_ids(other.ids.data(), other.ids.size());
    CHECK(mine.rows == other.rows && mine.slots == other.slots && mine.counts == other.counts);
    CHECK(mine.stamps == other.stamps && mine.ticks == other.ticks);
    for (std::uint32_t stamp = 0; stamp < whole.stamp(); ++stamp) {
      CHECK(all(part.changed_since(stamp), outside(stamp)) == whole.changed_since(stamp));
    }
  }

  Folder folder;
  TrainingTable part, whole;
};

}  // namespace

TEST(rows_that_leave_and_come_back_train_as_if_they_had_stayed) {
  Both both({.evicts = true}, 40);
  std::uint64_t state = 1;
  for (int step = 0; step < 400; ++step) {
    Ids ids;
    for (int i = 0; i < 12; ++i) ids.push_back(static_cast<std::int64_t>(mix(++state) % 200) - 100);
    std::vector<float> grads(ids.size() * 4);
    for (float& grad : grads) grad = static_cast<float>(mix(++state) % 100) / 50.0f - 1.0f;
    both.part.begin();
    CHECK(look(both.part, ids, true) == look(both.whole, ids, true));
    CHECK(tests::step(both.part, ids, grads) == tests::step(both.whole, ids, grads));
    CHECK(both.part.figures().rows_in_dram <= 40);
    CHECK(look(both.part, range(-120, 120), false) == look(both.whole, range(-120, 120), false));
    if (step % 50 == 0) CHECK(both.part.advance() == both.whole.advance());
    if (step % 20 == 0) {
      const Ids gone = {ids[0], ids[5], 1000};
      CHECK(both.part.erase(gone.data(), 3) == both.whole.erase(gone.data(), 3));
      const auto tick = static_cast<std::uint32_t>(step / 20 + 2);
      both.part.set_tick(tick);
      both.whole.set_tick(tick);
      for (std::uint32_t part = 0; part < RowParts::kParts; ++part) {
        const IdleRows wanted{tick - 2, tick - 2, tick - 1, 0.5f};
        CHECK(both.part.idle(part, wanted) == both.whole.idle(part, wanted));
      }
      both.check();
    }
  }
  const TierFigures figures = both.part.figures();
  CHECK(figures.rows_outside > 100 && figures.fetched > 1000 && figures.written > 1000);
}

TEST(what_the_batch_uses_stays_and_the_least_used_leave_first) {
  Both both({.dim = 1, .rule = Rule::kSgd}, 100);
  const Ids hot = range(0, 10);
  look(both.part, range(0, 100), true);
  for (int step = 0; step < 5; ++step) {
    both.part.begin();
    look(both.part, hot, true);
  }
  both.part.begin();
  look(both.part, range(50, 60), true);
  look(both.part, range(200, 270), true);
  const Ids here = both.part.row_ids();
  CHECK(here.size() <= 100);
  for (const Ids& kept : {hot, range(50, 60), range(200, 270)}) {
    CHECK(std::includes(here.begin(), here.end(), kept.begin(), kept.end()));
  }
}

TEST(a_batch_that_the_budget_does_not_hold_is_refused_and_loses_nothing) {
  Both both({}, 50);
  for (TrainingTable* table : {&both.part, &both.whole}) look(*table, range(0, 50), true);
  bool refused = false;
  try {
    look(both.part, range(100, 160), true);
  } catch (const BudgetExceeded& error) {
    refused = std::string(error.what()).find("table 'items' may take") != std::string::npos;
  }
  CHECK(refused);
  both.check();
}

TEST(ids_without_a_row_leave_and_come_back) {
  Both both({.dim = 2, .admit_after = 3}, 20);
  std::uint64_t state = 7;
  bool any_outside = false;
  for (int step = 0; step < 600; ++step) {
    Ids ids;
    for (int i = 0; i < 6; ++i) ids.push_back(static_cast<std::int64_t>(mix(++state) % 300));
    both.part.begin();
    CHECK(look(both.part, ids, true) == look(both.whole, ids, true));
    if (step % 9 == 0) CHECK(both.part.erase(ids.data(), 2) == both.whole.erase(ids.data(), 2));
    if (step % 30 == 0) {
      CHECK(both.part.advance() == both.whole.advance());
      both.part.forget_removed(static_cast<std::uint32_t>(step / 60));
      both.whole.forget_removed(static_cast<std::uint32_t>(step / 60));
    }
    CHECK(both.part.waiting_size() == both.whole.waiting_size());
    const OutsideBare bare = both.part.outside_bare(0, 0, 0, true);
    any_outside = any_outside || !bare.ids.empty();
    Ids removed;
    for (std::size_t i = 0; i < bare.ids.size(); ++i) {
      if (bare.removed[i] > 0) removed.push_back(bare.ids[i]);
    }
    CHECK(both.all(both.part.removed().ids, removed) == both.whole.removed().ids);
  }
  CHECK(any_outside);
  both.check();
}

TEST(rows_are_restored_to_the_file_when_there_is_no_room_for_them) {
  Both both({}, 30);
  const Ids ids = range(0, 500);
  look(both.whole, ids, true);
  const TrainingRows all = both.whole.export_rows();
  both.part.restore(all.ids.data(), all.ids.size(), all.rows.data(), all.slots.data(), all.counts.data(),
                    all.stamps.data(), all.ticks.data());
  CHECK(both.part.figures().rows_in_dram == 0);
  both.check();
  const Ids twice = {3, 3};  // the last one counts
  std::vector<float> rows(8, 1.0f), slots(8, 2.0f);
  rows[7] = 5.0f;
  const std::uint32_t words[] = {1, 1};
  for (TrainingTable* table : {&both.part, &both.whole}) {
    table->restore(twice.data(), 2, rows.data(), slots.data(), words, words, words);
  }
  both.check();
}

TEST(another_thread_may_read_ahead_while_one_trains) {
  Both both({}, 100);
  std::atomic<bool> stop{false};
  std::thread reader([&] {
    std::uint64_t state = 99;
    while (!stop.load()) {
      Ids ids;
      for (int i = 0; i < 50; ++i) ids.push_back(static_cast<std::int64_t>(mix(++state) % 300));
      both.part.read_ahead(ids.data(), ids.size());
    }
  });
  std::uint64_t state = 1;
  for (int step = 0; step < 300; ++step) {
    Ids ids;
    for (int i = 0; i < 30; ++i) ids.push_back(static_cast<std::int64_t>(mix(++state) % 3000));
    both.part.begin();
    CHECK(look(both.part, ids, true) == look(both.whole, ids, true));
  }
  stop = true;
  reader.join();
  both.check();
}

TEST(batches_that_waited_are_read_ahead_for_a_while) {
  RowBudget budget(1000);
  CHECK(!budget.begin_batch());
  budget.add_waits(1);  // once is not worth a system call for every page
  CHECK(!budget.begin_batch());
  budget.add_waits(100);
  int ahead = 0;
  while (budget.begin_batch() && ahead < 1000) ++ahead;
  CHECK(ahead >= 32 && ahead < 1000 && !budget.reads_disk());
}

int main() { return check::run_all(); }
