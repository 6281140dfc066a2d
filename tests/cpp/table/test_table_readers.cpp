// Readers beside a writer. Run under ThreadSanitizer these tests are the proof that row bytes need no atomics.
#include <atomic>
#include <functional>
#include <random>
#include <thread>

#include "every_isa.h"
#include "rows.h"
#include "table/lookup.h"
#include "table/table.h"

using namespace emberline;

namespace {

constexpr int kReaders = 3;
constexpr int kRounds = 40;      // what every reader does at least
constexpr int kWrites = 40'000;  // and the writer beside them

struct Watch {
  std::atomic<std::uint64_t> wrong{0}, lost{0}, older{0}, seen{0};
  std::atomic<bool> writing{true};
};

// Finds random ids below `ids`. Those below `always` must be found; generations of one id never fall unless `reborn`.
void read_on(const Table& table, std::int64_t ids, std::int64_t always, bool reborn, unsigned seed, Watch& watch) {
  std::mt19937 random(seed);
  std::vector<std::int64_t> wanted(300);
  std::vector<float> out(wanted.size() * kDim);
  std::vector<std::uint8_t> found(wanted.size());
  std::vector<int> newest(static_cast<std::size_t>(ids), 0);
  for (int round = 0; round < kRounds || watch.writing.load(); ++round) {
    for (std::int64_t& id : wanted) id = static_cast<std::int64_t>(random()) % ids;
    table.find(wanted.data(), wanted.size(), out.data(), found.data());
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      if (!found[i]) {
        watch.lost += wanted[i] < always;
        continue;
      }
      ++watch.seen;
      const int generation = generation_of(out.data() + i * kDim, wanted[i]);
      int& known = newest[static_cast<std::size_t>(wanted[i])];
      watch.wrong += generation < 0;
      watch.older += !reborn && generation < known;
      known = generation;
    }
  }
}

// Calls write(step) kWrites times and more, until the readers have done their rounds too.
void run(const Table& table, std::int64_t ids, std::int64_t always, bool reborn,
         const std::function<void(int)>& write) {
  Watch watch;
  std::atomic<int> reading{kReaders};
  std::vector<std::thread> readers;
  for (int r = 0; r < kReaders; ++r) {
    readers.emplace_back([&, r] {
      read_on(table, ids, always, reborn, static_cast<unsigned>(r), watch);
      --reading;
    });
  }
  int steps = 0;
  for (; steps < kWrites || reading.load() > 0; ++steps) {
    write(steps);
    watch.writing = steps + 1 < kWrites;
  }
  for (std::thread& reader : readers) reader.join();
  std::printf("     %d writes beside %llu rows read\n", steps, static_cast<unsigned long long>(watch.seen.load()));
  CHECK(watch.seen > 1000);
  CHECK(watch.wrong == 0);
  CHECK(watch.lost == 0);
  CHECK(watch.older == 0);
  table.check_integrity();
}

void put(Table& table, std::int64_t id, int generation) {
  table.insert_or_assign(&id, 1, make_row(id, generation).data(), nullptr);
}

}  // namespace

TEST(rows_that_come_go_and_change_are_whole_and_their_own) {
  Table table(kDim, 0, 0);
  std::mt19937 random(1);
  for (std::int64_t id = 0; id < 3000; id += 2) put(table, id, 0);
  run(table, 3000, 0, true, [&](int step) {
    const std::int64_t id = static_cast<std::int64_t>(random() % 3000);
    const auto row = make_row(id, step);
    switch (random() % 3) {
      case 0: table.erase(&id, 1); break;
      case 1: table.assign(&id, 1, row.data()); break;
      default: table.insert_or_assign(&id, 1, row.data(), nullptr);
    }
  });
}

TEST(a_row_that_is_only_updated_is_always_found_and_never_older_than_before) {
  Table table(kDim, 0, 0);
  for (std::int64_t id = 0; id < 500; ++id) put(table, id, 0);
  run(table, 500, 500, false, [&](int step) { put(table, step % 500, step); });
}

TEST(no_row_is_lost_while_its_bucket_fills_and_others_are_displaced) {
  // Full to its capacity, so that buckets overflow; strangers come and go and push the lasting ids from bucket to
  // bucket.
  constexpr std::int64_t kLasting = 300, kStrangers = 100;
  Table table(kDim, 0, static_cast<std::uint64_t>(kLasting + kStrangers));
  for (std::int64_t id = 0; id < kLasting; ++id) put(table, id, 0);
  std::int64_t next = 1000;
  run(table, kLasting, kLasting, false, [&](int) {
    put(table, next, 0);
    const std::int64_t old = next - kStrangers + 1;
    if (old >= 1000) table.erase(&old, 1);
    if (++next > (1 << 24) - 2) next = 1000;
  });
}

TEST(no_row_is_lost_while_the_index_grows) {
  for (int repeat = 0; repeat < 3; ++repeat) {
    Table table(kDim, 0, 0);
    for (std::int64_t id = 0; id < 40; ++id) put(table, id, 0);
    std::int64_t next = 1000;
    run(table, 40, 40, false, [&](int) {
      if (next < 60'000) put(table, next++, 0);
    });
  }
}

TEST(positions_that_change_owner_all_the_time_never_lend_a_row_to_the_old_owner) {
  // Two buckets: every insert takes a position that another id has just left, in the face of readers who look for that
  // id.
  Table table(kDim, 0, 6);
  for (std::int64_t id = 0; id < 6; ++id) put(table, id, 0);
  run(table, 12, 0, true, [&](int step) {
    const std::int64_t leaves = step % 12, comes = (step + 6) % 12;
    table.erase(&leaves, 1);
    put(table, comes, step);
  });
}

TEST(evictions_never_show_a_foreign_or_torn_row) {
  Table table(kDim, 0, 400);
  std::mt19937 random(2);
  run(table, 3000, 0, true, [&](int step) {
    // Few ids at a time, often offered, so that they get in.
    const std::int64_t id = (step / 2000 * 37 + static_cast<std::int64_t>(random() % 200)) % 3000;
    table.insert_and_evict(&id, 1, make_row(id, step).data());
  });
}

TEST(writers_and_an_export_take_turns) {
  Table table(kDim, 0, 0);
  std::atomic<bool> stop{false};
  std::thread exporter([&] {
    while (!stop) {
      for (std::int64_t cursor = 0; cursor >= 0;) {
        const ExportedRows batch = table.export_batch(static_cast<std::uint64_t>(cursor), 100);
        for (std::size_t i = 0; i < batch.ids.size(); ++i) {
          CHECK(generation_of(batch.rows.data() + i * kDim, batch.ids[i]) >= 0);
        }
        cursor = batch.next_cursor;
      }
    }
  });
  std::vector<std::thread> writers;
  for (int w = 0; w < 2; ++w) {
    writers.emplace_back([&table, w] {
      for (int step = 0; step < 3000; ++step) put(table, w * 10'000 + step % 1500, step);
    });
  }
  for (std::thread& writer : writers) writer.join();
  stop = true;
  exporter.join();
  CHECK(table.size() == 3000);
  table.check_integrity();
}

TEST(sessions_pool_whole_rows_of_their_own_ids_while_rows_change) {
  Table table(kDim, 0, 0);
  std::atomic<int> running{2};
  std::atomic<bool> writing{true};
  std::atomic<std::uint64_t> wrong{0};
  const auto session = [&](unsigned seed) {
    Lookup lookup({&table}, {{0, Pooling::kSum, 0}, {0, Pooling::kNone, 4}});
    std::mt19937 random(seed);
    std::vector<std::int64_t> values(40), offsets(11);
    for (std::size_t i = 0; i < offsets.size(); ++i) offsets[i] = static_cast<std::int64_t>(i) * 4;
    std::vector<float> pooled(10 * kDim), out(40 * kDim), rows;
    std::vector<std::uint8_t> mask(40), state;
    for (int round = 0; round < 400 || writing.load(); ++round) {
      for (std::int64_t& id : values) id = static_cast<std::int64_t>(random() % 2000);
      lookup.begin(10, {{values.data(), 40, offsets.data(), pooled.data(), nullptr},
                        {values.data(), 40, offsets.data(), out.data(), mask.data()}});
      rows.clear();
      for (const std::int64_t id : lookup.missing(0)) {
        const auto row = make_row(id, -5);
        rows.insert(rows.end(), row.begin(), row.end());
      }
      state.assign(lookup.missing(0).size(), 1);
      lookup.supply(0, rows.data(), state.data());
      const LookupTotals totals = lookup.finish();
      wrong += totals.dram + totals.supplied != 80;
      for (std::size_t i = 0; i < 40; ++i) wrong += out[i * kDim] != static_cast<float>(values[i]) || mask[i] != 1;
      for (std::size_t b = 0; b < 10; ++b) {
        float sum = 0;
        for (std::size_t i = 0; i < 4; ++i) sum += static_cast<float>(values[b * 4 + i]);
        for (std::uint32_t d = 0; d < kDim; d += 2) wrong += pooled[b * kDim + d] != sum;
      }
    }
    --running;
  };
  std::thread one(session, 1), two(session, 2);
  std::mt19937 random(4);
  for (int step = 0; step < kWrites || running.load() > 0; ++step) {
    writing = step + 1 < kWrites;
    const std::int64_t id = static_cast<std::int64_t>(random() % 2000);
    if (step % 3 == 0) {
      table.erase(&id, 1);
    } else {
      put(table, id, step);
    }
  }
  one.join();
  two.join();
  CHECK(wrong == 0);
  table.check_integrity();
}

RUN_ALL_TESTS_ON_EVERY_ISA()
