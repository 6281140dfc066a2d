// The set of changed ids beside std::set, then with readers while it grows.
#include <atomic>
#include <random>
#include <set>
#include <thread>

#include "check.h"
#include "pages/change_set.h"

using namespace emberline::pages;

TEST(it_does_what_a_set_does) {
  ChangeSet set;
  std::set<std::int64_t> model;
  std::mt19937_64 random(1);
  // 0x5F3A9C1E77D24B86 is what it marks free places with.
  std::vector<std::int64_t> ids{0, -1, INT64_MIN, INT64_MAX, 0x5F3A9C1E77D24B86};
  for (int i = 0; i < 20'000; ++i) ids.push_back(static_cast<std::int64_t>(random() % 30'000) - 15'000);
  std::vector<std::uint8_t> flags(ids.size());
  CHECK(set.contains(ids.data(), ids.size(), flags.data()) == 0);
  for (std::size_t at = 0; at < ids.size();) {
    const std::size_t n = std::min<std::size_t>(ids.size() - at, random() % 700);
    set.add(ids.data() + at, n);
    model.insert(ids.data() + at, ids.data() + at + n);
    at += n;
    CHECK(set.size() == model.size());
    const std::size_t count = set.contains(ids.data(), ids.size(), flags.data());
    std::size_t expected = 0;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      CHECK(flags[i] == model.count(ids[i]));
      expected += flags[i];
    }
    CHECK(count == expected);
  }
  CHECK(set.sorted() == std::vector<std::int64_t>(model.begin(), model.end()));
}

TEST(readers_see_all_that_was_added_before_they_asked) {
  ChangeSet set;
  constexpr std::int64_t kIds = 60'000;
  std::atomic<std::int64_t> added{0};
  std::atomic<bool> wrong{false};
  std::vector<std::thread> readers;
  for (int reader = 0; reader < 3; ++reader) {
    readers.emplace_back([&, reader] {
      std::mt19937_64 random(static_cast<std::uint64_t>(reader));
      std::vector<std::int64_t> ids(64);
      std::vector<std::uint8_t> flags(64);
      for (std::int64_t known = 0; known < kIds;) {
        known = added.load(std::memory_order_acquire);
        for (std::int64_t& id : ids) id = static_cast<std::int64_t>(random() % (2 * kIds));
        set.contains(ids.data(), ids.size(), flags.data());
        for (std::size_t i = 0; i < ids.size(); ++i) {
          if ((ids[i] < known && flags[i] == 0) || (ids[i] >= kIds && flags[i] != 0)) wrong = true;
        }
      }
    });
  }
  for (std::int64_t id = 0; id < kIds; ++id) {
    set.add(&id, 1);
    added.store(id + 1, std::memory_order_release);
  }
  for (std::thread& reader : readers) reader.join();
  CHECK(!wrong);
  CHECK(set.size() == kIds);
}

RUN_ALL_TESTS()
