// Which page an id is sought in, the filters, and the order of unsorted ids, each beside the plain way.
#include <algorithm>
#include <random>
#include <set>

#include "check.h"
#include "pages/directory.h"
#include "pages/filter.h"
#include "pages/order.h"

using namespace emberline::pages;

namespace {

std::uint64_t plain(const std::vector<std::int64_t>& firsts, std::int64_t id) {
  const auto after = std::upper_bound(firsts.begin(), firsts.end(), id);
  return after == firsts.begin() ? Directory::kNoPage : static_cast<std::uint64_t>(after - firsts.begin() - 1);
}

}  // namespace

TEST(the_directory_is_a_binary_search_however_ids_are_distributed) {
  std::mt19937_64 random(1);
  for (const std::size_t n : {0, 1, 2, 15, 16, 17, 255, 256, 257, 4095, 4096, 4097, 70'000}) {
    for (const int shape : {0, 1, 2}) {
      std::set<std::int64_t> chosen;
      while (chosen.size() < n) {
        const std::uint64_t any = random();
        if (shape == 0) chosen.insert(static_cast<std::int64_t>(any));
        if (shape == 1) chosen.insert(static_cast<std::int64_t>(chosen.size()));               // dense
        if (shape == 2) chosen.insert(static_cast<std::int64_t>(any >> (any % 60)));           // powers
      }
      const std::vector<std::int64_t> firsts(chosen.begin(), chosen.end());
      const Directory directory{std::vector<std::int64_t>(firsts)};
      CHECK(directory.pages() == n);
      std::vector<std::int64_t> ids{INT64_MIN, INT64_MAX, 0, -1};
      for (int i = 0; i < 3000; ++i) {
        ids.push_back(n > 0 && i % 2 == 0 ? firsts[random() % n] + static_cast<std::int64_t>(random() % 3) - 1
                                          : static_cast<std::int64_t>(random()));
      }
      std::vector<std::uint64_t> pages(ids.size());
      directory.find(ids.data(), ids.size(), pages.data());
      for (std::size_t i = 0; i < ids.size(); ++i) CHECK(pages[i] == plain(firsts, ids[i]));
    }
  }
}

TEST(a_filter_knows_every_id_of_its_page_and_few_others) {
  std::mt19937_64 random(2);
  for (const std::size_t per_page : {1, 7, 30, 200}) {
    const std::size_t bytes = filter_bytes_for(per_page, 10);
    const std::uint32_t probes = filter_probes_for(10);
    std::size_t wrong = 0, asked = 0;
    for (int page = 0; page < 300; ++page) {
      std::vector<unsigned char> filter(bytes);
      std::vector<std::int64_t> ids(per_page);
      for (std::int64_t& id : ids) filter_add(filter.data(), bytes, probes, id = static_cast<std::int64_t>(random()));
      for (const std::int64_t id : ids) CHECK(filter_may_hold(filter.data(), bytes, probes, id));
      for (int i = 0; i < 300; ++i, ++asked) {
        wrong += filter_may_hold(filter.data(), bytes, probes, static_cast<std::int64_t>(random()));
      }
    }
    CHECK(wrong * 50 < asked);  // 10 bits an id: about one in a hundred
  }
}

TEST(the_order_of_ids_is_that_of_a_stable_sort) {
  std::mt19937_64 random(3);
  for (const std::size_t n : {0, 1, 2, 1000, 100'000}) {
    for (const std::uint64_t range : {std::uint64_t{3}, std::uint64_t{1} << 20, ~std::uint64_t{0}}) {
      std::vector<std::int64_t> ids(n);
      for (std::int64_t& id : ids) id = static_cast<std::int64_t>(random() % range - range / 2);
      std::vector<std::uint32_t> expected(n);
      for (std::size_t i = 0; i < n; ++i) expected[i] = static_cast<std::uint32_t>(i);
      std::stable_sort(expected.begin(), expected.end(), [&](auto a, auto b) { return ids[a] < ids[b]; });
      CHECK(order_of(ids.data(), n) == expected);
    }
  }
  const std::int64_t ids[] = {INT64_MIN, -1, 0, INT64_MAX, INT64_MAX};
  CHECK(strictly_ascending(ids, 4));
  CHECK(!strictly_ascending(ids, 5));
}

RUN_ALL_TESTS()
