// The map that grows in small steps, beside a map of the library.
#include <map>

#include "check.h"
#include "training/changes.h"
#include "training/id_index.h"

using namespace emberline;

TEST(it_behaves_as_a_map_while_it_grows_and_shrinks) {
  IdIndex index;
  std::map<std::int64_t, std::uint32_t> model;
  std::uint64_t state = 3;
  for (int round = 0; round < 200'000; ++round) {
    const auto id = static_cast<std::int64_t>(mix(++state) % 20'000) - 10'000;
    if (mix(++state) % 3 == 0) {
      CHECK(index.erase(id) == (model.erase(id) == 1));
    } else {
      const auto value = static_cast<std::uint32_t>(mix(++state) | 1);
      index.set(id, value);
      model[id] = value;
    }
    CHECK(index.size() == model.size());
  }
  for (const auto& [id, value] : model) CHECK(index.get(id) == value);
  std::size_t visited = 0;
  index.each([&](std::int64_t id, std::uint32_t value) {
    CHECK(model.at(id) == value);
    ++visited;
  });
  CHECK(visited == model.size());
  CHECK(index.get(10'001) == IdIndex::kAbsent && !index.erase(10'001));
  index.clear();
  CHECK(index.size() == 0 && index.get(model.begin()->first) == IdIndex::kAbsent);
}

TEST(the_whole_range_of_ids_is_taken) {
  IdIndex index;
  for (const std::int64_t id : {INT64_MIN, std::int64_t{-1}, std::int64_t{0}, INT64_MAX}) index.set(id, 7);
  for (const std::int64_t id : {INT64_MIN, std::int64_t{-1}, std::int64_t{0}, INT64_MAX}) CHECK(index.get(id) == 7);
  CHECK(index.get(1) == IdIndex::kAbsent);
}

TEST(a_million_ids_take_little_memory) {
  IdIndex index;
  for (std::int64_t id = 0; id < 1'000'000; ++id) index.set(id, 1);
  CHECK(index.size() == 1'000'000);
  CHECK(index.bytes() < 30'000'000);
}

TEST(changes_are_listed_once_by_their_last_stamp) {
  ChangeLog log;
  std::map<std::int64_t, std::uint32_t> latest;
  const auto of = [&](std::int64_t id) {
    const auto found = latest.find(id);
    return found == latest.end() ? 0 : found->second;
  };
  for (std::uint32_t stamp = 1; stamp <= 40; ++stamp) {
    for (std::int64_t id = 0; id < 1000; id += stamp % 7 + 1) {
      latest[id] = stamp;
      log.note(id, stamp);
    }
    if (stamp == 20) latest.erase(0);
    log.compact(latest.size(), of);
  }
  std::vector<std::int64_t> expected;
  for (const auto& [id, stamp] : latest) {
    if (stamp > 35 && stamp <= 39) expected.push_back(id);
  }
  CHECK(!expected.empty() && log.between(35, 39, of) == expected);
  CHECK(log.bytes() < 200'000);
}

int main() { return check::run_all(); }
