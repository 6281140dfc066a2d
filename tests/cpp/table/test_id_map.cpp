// The map of ids to small values, beside std::unordered_map.
#include <random>
#include <unordered_map>

#include "check.h"
#include "table/id_map.h"

using namespace emberline;

TEST(it_does_what_a_map_does_while_ids_come_and_go) {
  IdMap map;
  std::unordered_map<std::int64_t, std::uint32_t> model;
  std::mt19937_64 random(7);
  for (int step = 0; step < 200'000; ++step) {
    const auto id = static_cast<std::int64_t>(random() % 700) - 350;
    switch (random() % 4) {
      case 0:
        map.erase(id);
        model.erase(id);
        break;
      case 1: {
        const std::uint32_t* value = map.find(id);
        const auto known = model.find(id);
        CHECK((value == nullptr) == (known == model.end()));
        CHECK(value == nullptr || *value == known->second);
        break;
      }
      default: CHECK(++map[id] == ++model[id]);
    }
    if (step % 50'000 == 49'999) {
      map.clear();
      model.clear();
    }
    CHECK(map.size() == model.size());
  }
  std::size_t seen = 0;
  map.each([&](std::int64_t id, std::uint32_t value) {
    CHECK(model.at(id) == value);
    ++seen;
  });
  CHECK(seen == model.size());
}

RUN_ALL_TESTS()
