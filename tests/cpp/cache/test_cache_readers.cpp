// Readers beside writers. Run under ThreadSanitizer these tests are the proof that row bytes need no atomics.
#include <atomic>
#include <cstdio>
#include <functional>
#include <memory>
#include <random>
#include <thread>

#include "cache_rows.h"
#include "check.h"
#include "table/lookup.h"

using namespace emberline;

namespace {

constexpr int kReaders = 3;
constexpr int kRounds = 40;      // what every reader does at least
constexpr int kWrites = 30'000;  // and the writer beside them

struct Watch {
  std::atomic<std::uint64_t> wrong{0}, lost{0}, older{0}, seen{0};
  std::atomic<bool> writing{true};
};

// Finds random ids below `ids` of two tables. Those below `always` must be found; generations never fall unless
// `reborn`.
void read_on(Cache& cache, std::int64_t ids, std::int64_t always, bool reborn, unsigned seed, Watch& watch) {
  std::mt19937 random(seed);
  std::vector<std::int64_t> wanted(300);
  std::vector<float> out(wanted.size() * kDim);
  std::vector<std::uint8_t> found(wanted.size());
  std::vector<int> newest(static_cast<std::size_t>(ids) * 2, 0);
  for (int round = 0; round < kRounds || watch.writing.load(); ++round) {
    const CacheTable table(cache, random() % 2, format());
    for (std::int64_t& id : wanted) id = static_cast<std::int64_t>(random()) % ids;
    table.find(wanted.data(), wanted.size(), out.data(), found.data());
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      if (!found[i]) {
        watch.lost += wanted[i] < always;
        continue;
      }
      ++watch.seen;
      const int generation = generation_of(out.data() + i * kDim, wanted[i], table.table());
      int& known = newest[static_cast<std::size_t>(wanted[i]) * 2 + table.table()];
      watch.wrong += generation < 0;
      watch.older += !reborn && generation < known;
      known = generation;
    }
  }
}

// Calls write(step) kWrites times and more, until the readers have done their rounds too.
void run(Cache& cache, std::int64_t ids, std::int64_t always, bool reborn, const std::function<void(int)>& write) {
  Watch watch;
  std::atomic<int> reading{kReaders};
  std::vector<std::thread> readers;
  for (int r = 0; r < kReaders; ++r) {
    readers.emplace_back([&, r] {
      read_on(cache, ids, always, reborn, static_cast<unsigned>(r), watch);
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
  cache.check_integrity();
}

}  // namespace

TEST(rows_that_come_go_and_change_are_whole_and_their_own) {
  Cache cache(kDim * 4, 4000, 2);
  CacheTable tables[2] = {{cache, 0, format()}, {cache, 1, format()}};
  std::mt19937 random(1);
  run(cache, 1500, 0, true, [&](int step) {
    const auto id = static_cast<std::int64_t>(random() % 1500);
    CacheTable& table = tables[random() % 2];
    const auto row = make_row(id, table.table(), step);
    switch (random() % 3) {
      case 0: table.erase(&id, 1); break;
      case 1: table.assign(&id, 1, row.data()); break;
      default: put(table, id, step);
    }
  });
}

TEST(a_row_that_is_only_updated_is_always_found_and_never_older_than_before) {
  Cache cache(kDim * 4, 1000, 2);
  CacheTable tables[2] = {{cache, 0, format()}, {cache, 1, format()}};
  for (std::int64_t id = 0; id < 500; ++id) {
    for (CacheTable& table : tables) put(table, id, 0);
  }
  run(cache, 500, 500, false, [&](int step) { put(tables[step % 2], step / 2 % 500, step); });
}

TEST(positions_that_change_owner_all_the_time_never_lend_a_row_to_the_old_owner) {
  // Few buckets: every insert takes a position that another owner has just left, in the face of readers who look for
  // that one.
  Cache cache(kDim * 4, 6, 2);
  CacheTable tables[2] = {{cache, 0, format()}, {cache, 1, format()}};
  run(cache, 6, 0, true, [&](int step) {
    const std::int64_t leaves = step % 6, comes = (step + 3) % 6;
    tables[step / 6 % 2].erase(&leaves, 1);
    put(tables[(step + 1) % 2], comes, step);
  });
}

TEST(evictions_never_show_a_foreign_or_torn_row) {
  Cache cache(kDim * 4, 400, 2);
  CacheTable tables[2] = {{cache, 0, format()}, {cache, 1, format()}};
  std::mt19937 random(2);
  run(cache, 3000, 0, true, [&](int step) {
    const std::int64_t id = (step / 2000 * 37 + static_cast<std::int64_t>(random() % 200)) % 3000;
    // Rows that readers use more than an offered id is offered stay; what is put in takes the place of one in any case.
    if (step % 4 == 0) {
      put(tables[step % 2], id, step);
    } else {
      offer(tables[step % 2], id, step);
    }
  });
  CHECK(cache.stats().evicted > 100);
}

TEST(no_row_is_lost_while_others_push_it_from_bucket_to_bucket) {
  // Full to the capacity, so that buckets overflow; strangers come and go.
  constexpr std::int64_t kLasting = 150, kStrangers = 100;
  Cache cache(kDim * 4, 2 * kLasting + kStrangers, 2);
  CacheTable tables[2] = {{cache, 0, format()}, {cache, 1, format()}};
  for (std::int64_t id = 0; id < kLasting; ++id) {
    for (CacheTable& table : tables) put(table, id, 0);
  }
  std::int64_t next = 1000;
  run(cache, kLasting, kLasting, false, [&](int) {
    if (const std::int64_t old = next - kStrangers + 1; old >= 1000) tables[0].erase(&old, 1);
    put(tables[0], next, 0);
    if (++next > (1 << 24) - 2) next = 1000;
  });
  CHECK(cache.stats().evicted == 0);
}

TEST(who_misses_a_row_that_was_let_go_finds_its_table_incomplete) {
  int incomplete = 0;
  for (int repeat = 0; repeat < 200; ++repeat) {
    Cache cache(kDim * 4, 64, 2);
    CacheTable small(cache, 0, format()), large(cache, 1, format());
    for (std::int64_t id = 0; id < 32; ++id) put(small, id, 0);
    cache.mark_complete(0);
    std::atomic<bool> go{false}, wrong{false};
    std::thread reader([&] {
      while (!go) std::this_thread::yield();
      for (int round = 0; round < 200 && cache.is_complete(0); ++round) {
        for (std::int64_t id = 0; id < 32; ++id) {
          if (ask(small, id) == -2 && cache.is_complete(0)) wrong = true;
        }
      }
    });
    go = true;
    for (std::int64_t id = 0; id < 64; ++id) put(large, id, 0);
    reader.join();
    CHECK(!wrong);
    incomplete += !cache.is_complete(0);
  }
  CHECK(incomplete > 20);  // not always: what the reader asks for becomes hot
}

TEST(sessions_pool_rows_of_a_cache_while_they_change) {
  Cache cache(kDim * 4, 600, 2);
  CacheTable one(cache, 0, format()), two(cache, 1, format());
  std::atomic<int> running{2};
  std::atomic<bool> writing{true};
  std::atomic<std::uint64_t> wrong{0};
  const auto session = [&](unsigned seed) {
    Lookup lookup({&one, &two}, {{0, Pooling::kSum, 0}, {1, Pooling::kNone, 4}});
    std::mt19937 random(seed);
    std::vector<std::int64_t> values(40), offsets(11);
    for (std::size_t i = 0; i < offsets.size(); ++i) offsets[i] = static_cast<std::int64_t>(i) * 4;
    std::vector<float> pooled(10 * kDim), out(40 * kDim), rows;
    std::vector<std::uint8_t> mask(40), state;
    for (int round = 0; round < 300 || writing.load(); ++round) {
      for (std::int64_t& id : values) id = static_cast<std::int64_t>(random() % 1000);
      lookup.begin(10, {{values.data(), 40, offsets.data(), pooled.data(), nullptr},
                        {values.data(), 40, offsets.data(), out.data(), mask.data()}});
      for (const std::uint32_t table : {0u, 1u}) {
        rows.clear();
        for (const std::int64_t id : lookup.missing(table)) {
          const auto row = make_row(id, table, -5);
          rows.insert(rows.end(), row.begin(), row.end());
        }
        state.assign(lookup.missing(table).size(), 1);
        lookup.supply(table, rows.data(), state.data());
      }
      lookup.finish();
      for (std::size_t i = 0; i < 40; ++i)
        wrong += out[i * kDim] != static_cast<float>(values[i]) || out[i * kDim + 1] != 1.0f;
      for (std::size_t b = 0; b < 10; ++b) {
        float sum = 0;
        for (std::size_t i = 0; i < 4; ++i) sum += static_cast<float>(values[b * 4 + i]);
        wrong += pooled[b * kDim] != sum || pooled[b * kDim + 1] != 0.0f;
      }
    }
    --running;
  };
  std::thread first(session, 1), second(session, 2);
  std::mt19937 random(4);
  for (int step = 0; step < kWrites || running.load() > 0; ++step) {
    writing = step + 1 < kWrites;
    const auto id = static_cast<std::int64_t>(random() % 1000);
    offer(step % 2 == 0 ? one : two, id, step);
    if (step % 7 == 0) one.erase(&id, 1);
  }
  first.join();
  second.join();
  CHECK(wrong == 0);
  cache.check_integrity();
}

RUN_ALL_TESTS()
