// The hottest ids of an index, in two passes over its entries.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "cache/policy.h"
#include "cache_bucket.cuh"

namespace emberline {

struct HotIds {
  std::vector<std::uint32_t> tables;
  std::vector<std::int64_t> ids;
  std::vector<std::uint8_t> counts;
};

// At most `limit`, hottest first. each(visit) calls visit(id, word) for every entry.
template <class Each>
HotIds hottest(std::size_t limit, const Each& each) {
  struct Hot {
    std::int64_t id;
    std::uint32_t table;
    std::uint8_t count;
  };
  std::array<std::uint64_t, 256> counts{};
  each([&](std::int64_t, std::uint64_t held) { ++counts[word::count(held)]; });
  // The counts of those above the cut fit; of those at it, some.
  std::uint64_t above = 0;
  int cut = 255;
  for (; cut >= 0 && above + counts[static_cast<std::size_t>(cut)] <= limit; --cut) {
    above += counts[static_cast<std::size_t>(cut)];
  }
  std::vector<Hot> hot;
  std::uint64_t at_cut = limit - std::min<std::uint64_t>(limit, above);
  each([&](std::int64_t id, std::uint64_t held) {
    const int count = word::count(held);
    if (count < cut || hot.size() >= limit) return;
    if (count == cut && at_cut == 0) return;
    at_cut -= count == cut;
    hot.push_back({id, word::table(held), word::count(held)});
  });
  std::stable_sort(hot.begin(), hot.end(), [](const Hot& a, const Hot& b) { return a.count > b.count; });
  HotIds out;
  for (const Hot& one : hot) {
    out.tables.push_back(one.table);
    out.ids.push_back(one.id);
    out.counts.push_back(FrequencyPolicy::to_uses(one.count));
  }
  return out;
}

}  // namespace emberline
