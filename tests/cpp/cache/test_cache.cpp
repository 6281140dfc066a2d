// The verbs of a cache, its marks and its counts, with one thread.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <random>
#include <utility>

#include "cache_rows.h"
#include "check.h"
#include "table/table.h"

using namespace emberline;

TEST(equal_ids_of_two_tables_are_two_rows) {
  Cache cache(kDim * 4, 100, 3);
  CacheTable one(cache, 1, format()), two(cache, 2, format());
  for (const std::int64_t id : {std::int64_t{0}, std::int64_t{-1}, std::numeric_limits<std::int64_t>::min(),
                                std::numeric_limits<std::int64_t>::max()}) {
    put(one, id, 1);
    CHECK(ask(one, id) == 1);
    CHECK(ask(two, id) == -2);
    put(two, id, 2);
    CHECK(ask(one, id) == 1);
    CHECK(ask(two, id) == 2);
    CHECK(one.erase(&id, 1) == 1);
    CHECK(ask(one, id) == -2);
    CHECK(ask(two, id) == 2);
  }
  CHECK(cache.rows_of(0) == 0 && cache.rows_of(1) == 0 && cache.rows_of(2) == 4 && cache.size() == 4);
  cache.check_integrity();
}

TEST(a_cache_with_room_is_a_map) {
  Cache cache(kDim * 4, 4000, 4);
  std::vector<CacheTable> tables;
  for (std::uint32_t t = 0; t < 4; ++t) tables.emplace_back(cache, t, format());
  std::map<std::pair<std::uint32_t, std::int64_t>, int> model;
  std::mt19937 random(3);
  for (int step = 0; step < 60'000; ++step) {
    const auto t = static_cast<std::uint32_t>(random() % 4);
    const auto id = static_cast<std::int64_t>(random() % 1000) - 500;
    const auto row = make_row(id, t, step);
    const bool there = model.count({t, id}) > 0;
    switch (random() % 5) {
      case 0:
        CHECK(tables[t].erase(&id, 1) == there);
        model.erase({t, id});
        break;
      case 1:
        CHECK(tables[t].assign(&id, 1, row.data()) == there);
        if (there) model[{t, id}] = step;
        break;
      case 2:
        CHECK(offer(tables[t], id, step) == !there);
        if (!there) model[{t, id}] = step;
        break;
      case 3:
        put(tables[t], id, step);
        model[{t, id}] = step;
        break;
      default: CHECK(ask(tables[t], id) == (there ? model[{t, id}] : -2));
    }
  }
  for (const auto& [owner, generation] : model) CHECK(ask(tables[owner.first], owner.second) == generation);
  CHECK(cache.size() == model.size());
  CHECK(cache.stats().evicted == 0);
  cache.check_integrity();
}

TEST(a_full_cache_takes_what_is_inserted_and_lets_the_coldest_go) {
  Cache cache(kDim * 4, 500, 1);
  CacheTable table(cache, 0, format());
  for (std::int64_t id = 0; id < 500; ++id) put(table, id, 0);
  for (int round = 0; round < 20; ++round) {
    for (std::int64_t id = 0; id < 250; ++id) ask(table, id);
    cache.absorb();
  }
  for (std::int64_t id = 1000; id < 1200; ++id) put(table, id, 1);
  CHECK(cache.size() == 500);
  int hot = 0, fresh = 0;
  for (std::int64_t id = 0; id < 250; ++id) hot += ask(table, id) == 0;
  for (std::int64_t id = 1000; id < 1200; ++id) fresh += ask(table, id) == 1;
  CHECK(hot >= 245);
  CHECK(fresh >= 130);  // as cold as the other cold ones, they displace each other now and then
  CHECK(cache.stats().evicted == 200);
  cache.check_integrity();
}

TEST(a_table_is_complete_until_a_row_of_it_is_let_go) {
  Cache cache(kDim * 4, 60, 2);
  CacheTable small(cache, 0, format()), large(cache, 1, format());
  for (std::int64_t id = 0; id < 20; ++id) put(small, id, 0);
  CHECK(!cache.is_complete(0));
  cache.mark_complete(0);
  CHECK(cache.is_complete(0) && !cache.is_complete(1));
  const std::int64_t gone = 3;
  small.erase(&gone, 1);
  put(small, 100, 0);
  CHECK(cache.is_complete(0));  // what its owner changes is no loss
  for (int round = 0; round < 8; ++round) {
    for (std::int64_t id = 0; id < 100; ++id) {
      offer(large, id);
      ask(large, id);
    }
  }
  CHECK(cache.evicted_of(0) > 0);
  CHECK(!cache.is_complete(0));
  cache.mark_complete(1);
  cache.clear_complete(1);
  CHECK(!cache.is_complete(1));
  cache.check_integrity();
}

TEST(the_hottest_ids_come_first_and_no_more_than_asked_for) {
  Cache cache(kDim * 4, 1000, 2);
  CacheTable one(cache, 0, format()), two(cache, 1, format());
  for (std::int64_t id = 0; id < 300; ++id) {
    for (CacheTable* table : {&one, &two}) {
      const auto uses = static_cast<std::uint8_t>(id < 100 ? 10 + id / 10 + 10 * table->table() : 1);
      table->insert_or_assign(&id, 1, make_row(id, table->table(), 0).data(), &uses);
    }
  }
  const HotIds hot = cache.hot_ids(150);
  CHECK(hot.ids.size() == 150 && hot.tables.size() == 150 && hot.counts.size() == 150);
  CHECK(std::is_sorted(hot.counts.rbegin(), hot.counts.rend()));
  CHECK(hot.tables[0] == 1 && hot.ids[0] >= 90 && hot.ids[0] < 100 && hot.counts[0] == 29);
  for (std::size_t i = 0; i < 150; ++i) CHECK(hot.ids[i] < 100);
  CHECK(cache.hot_ids(0).ids.empty());
  CHECK(cache.hot_ids(10'000).ids.size() == 600);
}

TEST(an_export_gives_every_row_of_its_table_once) {
  Cache cache(kDim * 4, 5000, 2);
  CacheTable one(cache, 0, format()), two(cache, 1, format());
  for (std::int64_t id = 0; id < 2000; ++id) {
    put(one, id, 1);
    put(two, id, 2);
  }
  std::vector<bool> seen(2000);
  for (std::int64_t cursor = 0; cursor >= 0;) {
    const CachedRows batch = two.export_batch(static_cast<std::uint64_t>(cursor), 77);
    CHECK(batch.ids.size() <= 77);
    for (std::size_t i = 0; i < batch.ids.size(); ++i) {
      CHECK(!seen[static_cast<std::size_t>(batch.ids[i])]);
      seen[static_cast<std::size_t>(batch.ids[i])] = true;
      CHECK(generation_of(reinterpret_cast<const float*>(batch.rows.data() + i * kDim * 4), batch.ids[i], 1) == 2);
      CHECK(batch.freq[i] == 4);
    }
    cursor = batch.next_cursor;
  }
  CHECK(std::count(seen.begin(), seen.end(), true) == 2000);
}

TEST(arguments_that_cannot_be_are_refused_by_name) {
  CHECK_THROWS(Cache(0, 10, 1), std::invalid_argument);
  CHECK_THROWS(Cache(6, 10, 1), std::invalid_argument);
  CHECK_THROWS(Cache(4, std::uint64_t{1} << 40, 1), std::invalid_argument);
  CHECK_THROWS(Cache(4, 10, 0), std::invalid_argument);
  Cache cache(kDim * 4, 10, 2);
  CHECK_THROWS(CacheTable(cache, 2, format()), std::invalid_argument);
  CHECK_THROWS(CacheTable(cache, 0, RowFormat{RowType::kFp32, kDim + 1}), std::invalid_argument);
  CHECK_THROWS(cache.resize(std::uint64_t{1} << 40), std::invalid_argument);
}

TEST(a_cache_without_room_takes_nothing_and_says_so) {
  Cache cache(kDim * 4, 0, 1);
  CacheTable table(cache, 0, format());
  CHECK(offer(table, 1) == 0);
  CHECK(offer(table, 1) == 0);
  CHECK_THROWS(put(table, 1, 0), CapacityExceeded);
  CHECK(ask(table, 1) == -2);
  cache.check_integrity();
}

TEST(a_row_costs_at_most_22_bytes_beside_its_own) {
  for (const std::size_t row_bytes : {std::size_t{16}, std::size_t{128}}) {
    constexpr std::uint64_t kRows = 1'000'000;
    Cache cache(row_bytes, kRows, 4);
    CacheTable table(cache, 0, {RowType::kFp32, static_cast<std::uint32_t>(row_bytes / 4)});
    std::vector<std::int64_t> ids(10'000);
    const std::vector<char> rows(ids.size() * row_bytes);
    for (std::uint64_t start = 0; start < kRows + 100'000; start += ids.size()) {
      for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int64_t>(start + i);
      table.insert_or_assign(ids.data(), ids.size(), rows.data(), nullptr);
    }
    CHECK(cache.size() == kRows);
    const std::size_t beside = cache.memory_bytes() - kRows * row_bytes;
    std::printf("     %.2f bytes a row beside %zu\n", static_cast<double>(beside) / kRows, row_bytes);
    CHECK(beside <= 22 * kRows);
    CHECK(cache.memory_bytes() <= Cache::bytes_of(row_bytes, kRows, 4));
    cache.check_integrity();
  }
  const std::uint64_t rows = Cache::capacity_for(128, 100'000'000, 4);
  CHECK(Cache::bytes_of(128, rows, 4) <= 100'000'000 && Cache::bytes_of(128, rows + 1, 4) > 100'000'000);
  CHECK(Cache::capacity_for(128, 1000, 4) == 0);
}

RUN_ALL_TESTS()
