// Another capacity while readers and writers are at work.
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <random>
#include <thread>

#include "cache_rows.h"
#include "check.h"

using namespace emberline;

namespace {

// Resident bytes of this process.
std::size_t resident() {
  std::FILE* file = std::fopen("/proc/self/statm", "r");
  if (file == nullptr) return 0;
  unsigned long total = 0, pages = 0;
  const int read = std::fscanf(file, "%lu %lu", &total, &pages);
  std::fclose(file);
  return read == 2 ? pages * static_cast<std::size_t>(sysconf(_SC_PAGESIZE)) : 0;
}

}  // namespace

TEST(a_smaller_cache_keeps_the_hottest_and_a_larger_one_keeps_all) {
  Cache cache(kDim * 4, 4000, 2);
  CacheTable one(cache, 0, format()), two(cache, 1, format());
  for (std::int64_t id = 0; id < 2000; ++id) {
    const std::uint8_t hot = 30, cold = 3;
    one.insert_or_assign(&id, 1, make_row(id, 0, 1).data(), id < 500 ? &hot : &cold);
    two.insert_or_assign(&id, 1, make_row(id, 1, 1).data(), id >= 1500 ? &hot : &cold);
  }
  CHECK(cache.size() == 4000);
  cache.mark_complete(0);
  cache.resize(1000);
  CHECK(cache.capacity_rows() == 1000);
  CHECK(cache.size() <= 1000 && cache.size() > 980);
  CHECK(!cache.is_complete(0));
  cache.check_integrity();
  int kept = 0;
  for (std::int64_t id = 0; id < 500; ++id) kept += (ask(one, id) == 1) + (ask(two, 1500 + id) == 1);
  CHECK(kept > 980);
  cache.resize(8000);
  cache.check_integrity();
  for (std::int64_t id = 10'000; id < 17'000; ++id) put(one, id, 2);
  CHECK(cache.size() == 7000 + static_cast<std::uint64_t>(kept));
  int still = 0;
  for (std::int64_t id = 0; id < 500; ++id) still += (ask(one, id) == 1) + (ask(two, 1500 + id) == 1);
  CHECK(still == kept);
  for (std::int64_t id = 10'000; id < 17'000; ++id) CHECK(ask(one, id) == 2);
  cache.check_integrity();
}

TEST(a_cache_may_shrink_to_nothing_and_come_back) {
  Cache cache(kDim * 4, 500, 1);
  CacheTable table(cache, 0, format());
  for (std::int64_t id = 0; id < 500; ++id) put(table, id, 0);
  cache.resize(1);
  CHECK(cache.size() <= 1);
  cache.resize(0);
  CHECK(cache.size() == 0);
  CHECK(offer(table, 3) == 0);
  cache.check_integrity();
  cache.resize(300);
  for (std::int64_t id = 0; id < 300; ++id) put(table, id, 7);
  int found = 0;
  for (std::int64_t id = 0; id < 300; ++id) found += ask(table, id) == 7;
  CHECK(found >= 299);
  cache.check_integrity();
}

TEST(memory_goes_back_to_the_system) {
  constexpr std::uint64_t kRows = 400'000;
  Cache cache(256, kRows, 1);
  CacheTable table(cache, 0, {RowType::kFp32, 64});
  std::vector<std::int64_t> ids(1000);
  const std::vector<float> rows(ids.size() * 64, 1.0f);
  for (std::uint64_t start = 0; start < kRows; start += ids.size()) {
    for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int64_t>(start + i);
    table.insert_or_assign(ids.data(), ids.size(), rows.data(), nullptr);
  }
  const std::size_t before = resident(), said = cache.memory_bytes();
  cache.resize(kRows / 8);
  const std::size_t after = resident();
  std::printf("     resident %zu MB, then %zu MB\n", before >> 20, after >> 20);
  CHECK(cache.memory_bytes() < said / 7);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  CHECK(before - after > (said - said / 8) * 9 / 10);
#endif
  cache.check_integrity();
}

TEST(readers_see_no_wrong_row_while_the_cache_grows_and_shrinks_around_them) {
  constexpr std::int64_t kLasting = 400;
  Cache cache(kDim * 4, 3000, 2);
  CacheTable one(cache, 0, format()), two(cache, 1, format());
  for (std::int64_t id = 0; id < kLasting; ++id) {
    const std::uint8_t hot = 200;  // they stay at any of the sizes below
    one.insert_or_assign(&id, 1, make_row(id, 0, 0).data(), &hot);
  }
  std::atomic<bool> stop{false};
  std::atomic<std::uint64_t> wrong{0}, lost{0}, seen{0};
  std::vector<std::thread> threads;
  for (unsigned r = 0; r < 2; ++r) {
    threads.emplace_back([&, r] {
      std::mt19937 random(r);
      std::vector<std::int64_t> wanted(256);
      std::vector<float> out(wanted.size() * kDim);
      std::vector<std::uint8_t> found(wanted.size());
      while (!stop) {
        const bool lasting = random() % 2 == 0;
        const CacheTable& table = lasting ? one : two;
        for (std::int64_t& id : wanted) id = static_cast<std::int64_t>(random() % (lasting ? kLasting : 5000));
        seen += table.find(wanted.data(), wanted.size(), out.data(), found.data());
        for (std::size_t i = 0; i < wanted.size(); ++i) {
          if (!found[i]) {
            lost += lasting;
          } else {
            wrong += generation_of(out.data() + i * kDim, wanted[i], table.table()) < 0;
          }
        }
      }
    });
  }
  threads.emplace_back([&] {  // a writer beside the one who resizes
    std::mt19937 random(9);
    for (int step = 1; !stop; ++step) {
      const auto id = static_cast<std::int64_t>(random() % 5000);
      if (step % 3 == 0) {
        const std::int64_t lasting = id % kLasting;
        one.assign(&lasting, 1, make_row(lasting, 0, step).data());
      } else {
        offer(two, id, step);
      }
      if (step % 97 == 0) two.erase(&id, 1);
    }
  });
  std::mt19937 random(5);
  for (int round = 0; round < 60; ++round) cache.resize(1000 + random() % 9000);
  stop = true;
  for (std::thread& thread : threads) thread.join();
  std::printf("     %llu rows read beside 60 resizes\n", static_cast<unsigned long long>(seen.load()));
  CHECK(seen > 1000);
  CHECK(wrong == 0);
  std::printf("     %llu looks at a lasting row missed, %llu of %lld are left, %llu changes of traffic seen\n",
              static_cast<unsigned long long>(lost.load()), static_cast<unsigned long long>(cache.rows_of(0)),
              static_cast<long long>(kLasting), static_cast<unsigned long long>(cache.stats().changes));
  CHECK(lost == 0);
  CHECK(cache.rows_of(0) == kLasting);
  cache.check_integrity();
}

RUN_ALL_TESTS()
