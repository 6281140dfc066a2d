// Overlays beside an obvious model: a list of entries for each id, the one staged last in front.
#include <algorithm>
#include <limits>
#include <map>
#include <random>

#include "check.h"
#include "rows.h"
#include "table/overlay.h"

using namespace emberline;

namespace {

constexpr std::int64_t kLeast = std::numeric_limits<std::int64_t>::min(),
                       kMost = std::numeric_limits<std::int64_t>::max();

struct Entry {
  std::uint32_t overlay;
  CoverState state;
  int generation;
};

class Model {
 public:
  OverlayTable table{kDim};

  void stage(std::uint32_t overlay, const std::vector<std::int64_t>& ids, CoverState state, int generation) {
    std::vector<float> rows;
    for (const std::int64_t id : ids) {
      const auto row = make_row(id, generation);
      rows.insert(rows.end(), row.begin(), row.end());
      auto& chain = chains_[id];
      chain.insert(chain.begin(), {overlay, state, generation});
      staged_[overlay].push_back(id);
    }
    table.stage(overlay, ids.data(), ids.size(), state == CoverState::kRow ? rows.data() : nullptr, state);
  }

  bool holds(std::uint32_t overlay, std::int64_t id) const {
    const auto& ids = staged_.at(overlay);
    return std::find(ids.begin(), ids.end(), id) != ids.end();
  }

  void discard(std::uint32_t overlay, std::size_t limit) {
    auto& ids = staged_[overlay];
    const std::size_t count = std::min(limit, ids.size());
    CHECK(table.discard(overlay, limit) == count);
    for (std::size_t i = 0; i < count; ++i) {
      auto chain = chains_.find(ids.back());
      std::erase_if(chain->second, [&](const Entry& entry) { return entry.overlay == overlay; });
      if (chain->second.empty()) chains_.erase(chain);
      ids.pop_back();
    }
  }

  void check(std::uint64_t mask, const std::vector<std::int64_t>& ids) const {
    std::vector<float> out(ids.size() * kDim, -7.0f);
    std::vector<std::uint8_t> states(ids.size(), 99), overlays(ids.size(), 99);
    const std::size_t covered = table.find(mask, ids.data(), ids.size(), out.data(), states.data(), overlays.data());
    std::size_t expected_covered = 0;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      Entry expected{kNoOverlay, CoverState::kNone, 0};
      if (const auto chain = chains_.find(ids[i]); chain != chains_.end()) {
        for (const Entry& entry : chain->second) {
          if (((mask >> entry.overlay) & 1) == 0) continue;
          expected = entry;
          ++expected_covered;
          break;
        }
      }
      CHECK(states[i] == static_cast<std::uint8_t>(expected.state));
      CHECK(overlays[i] == expected.overlay);
      const auto row =
          expected.state == CoverState::kRow ? make_row(ids[i], expected.generation) : std::vector<float>(kDim, 0);
      CHECK(std::equal(row.begin(), row.end(), out.data() + i * kDim));
    }
    CHECK(covered == expected_covered);
  }

  void check_all() const {
    table.check_integrity();
    CHECK(table.size() == chains_.size());
    for (const auto& [overlay, ids] : staged_) {
      CHECK(table.entries(overlay) == ids.size());
      CHECK(table.staged(overlay).ids == ids);
    }
  }

 private:
  std::map<std::int64_t, std::vector<Entry>> chains_;
  std::map<std::uint32_t, std::vector<std::int64_t>> staged_ = [] {
    std::map<std::uint32_t, std::vector<std::int64_t>> all;
    for (std::uint32_t overlay = 0; overlay < kMostOverlays; ++overlay) all[overlay];
    return all;
  }();
};

constexpr CoverState kStates[] = {CoverState::kRow, CoverState::kRow, CoverState::kRemoved, CoverState::kSpilled};

}  // namespace

TEST(the_newest_visible_entry_wins_whatever_came_and_went) {
  Model model;
  std::mt19937_64 random(1);
  const std::vector<std::int64_t> edges = {-1, 0, 1, kMost, kLeast};
  std::vector<std::int64_t> every = edges;
  for (std::int64_t id = 2; id < 400; ++id) every.push_back(id);
  for (int step = 0; step < 3000; ++step) {
    // Few ids and overlays at first, so that chains are long; all numbers are used.
    const auto overlay = static_cast<std::uint32_t>(random() % (step < 1500 ? 8 : kMostOverlays));
    if (random() % 4 != 0) {
      const std::size_t range = step % 2 == 0 ? 30 : every.size();
      std::vector<std::int64_t> ids;
      for (std::size_t i = random() % 40; i > 0; --i) {
        const std::int64_t id = every[random() % range];
        if (!model.holds(overlay, id) && std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(id);
      }
      model.stage(overlay, ids, kStates[random() % 4], step);
    } else {
      model.discard(overlay, random() % 3 == 0 ? random() % 10 : SIZE_MAX);
    }
    if (step % 10 == 0) {
      model.check(random() & ((std::uint64_t{1} << kMostOverlays) - 1), every);
      model.check(std::uint64_t{1} << overlay, every);
      model.check(0, every);
    }
    if (step % 50 == 0) model.check_all();
  }
  for (std::uint32_t overlay = 0; overlay < kMostOverlays; ++overlay) model.discard(overlay, SIZE_MAX);
  model.check_all();
  CHECK(model.table.size() == 0);
}

TEST(many_ids_are_exact_over_many_windows_and_give_their_slots_back) {
  Model model;
  std::vector<std::int64_t> ids(30'000);
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int64_t>(i) * 3 - 500;
  std::size_t once = 0;
  for (int round = 0; round < 6; ++round) {
    for (std::uint32_t overlay = 0; overlay < 3; ++overlay) {
      model.stage(overlay, ids, CoverState::kRow, round * 3 + static_cast<int>(overlay));
    }
    model.check(0b011, ids);
    for (const std::uint32_t overlay : {1u, 0u, 2u})
      model.discard(overlay, SIZE_MAX);  // from the middle, the end, alone
    if (round == 1) once = model.table.memory_bytes();
  }
  CHECK(model.table.memory_bytes() <= once + once / 10);
  model.check_all();
}

TEST(a_call_that_is_refused_changes_nothing) {
  Model model;
  model.stage(3, {10, 11, 12}, CoverState::kRow, 1);
  model.stage(4, {11}, CoverState::kRemoved, 2);
  const std::vector<std::int64_t> twice = {20, 21, 20}, known = {20, 12, 22}, covered = {20, 11};
  const std::vector<float> rows(3 * kDim, 5.0f);
  CHECK_THROWS(model.table.stage(5, twice.data(), 3, rows.data(), CoverState::kRow), std::invalid_argument);
  CHECK_THROWS(model.table.stage(3, known.data(), 3, rows.data(), CoverState::kRow), std::invalid_argument);
  CHECK_THROWS(model.table.stage(3, covered.data(), 2, nullptr, CoverState::kSpilled),
               std::invalid_argument);  // below the head
  CHECK_THROWS(model.table.stage(63, twice.data(), 1, nullptr, CoverState::kRemoved), std::invalid_argument);
  CHECK_THROWS(model.table.stage(5, twice.data(), 1, nullptr, CoverState::kRow), std::invalid_argument);
  CHECK_THROWS(model.table.stage(5, twice.data(), 1, rows.data(), CoverState::kRemoved), std::invalid_argument);
  CHECK_THROWS(model.table.stage(5, twice.data(), 1, nullptr, CoverState::kNone), std::invalid_argument);
  CHECK_THROWS(model.table.discard(63, 1), std::invalid_argument);
  CHECK_THROWS(OverlayTable(0), std::invalid_argument);
  CHECK_THROWS(OverlayTable(4097), std::invalid_argument);
  model.check_all();
  model.check(~std::uint64_t{0} >> 1, {10, 11, 12, 20, 21, 22});
}

TEST(ids_that_crowd_the_index_are_refused_as_a_whole) {
  // Ids whose mixed values agree in all the bits that choose buckets, found by inverting mix.
  const auto unmix = [](std::uint64_t value) {
    value ^= (value >> 31) ^ (value >> 62);
    value *= 0x319642B2D24D8EC3ull;
    value ^= (value >> 27) ^ (value >> 54);
    value *= 0x96DE1B173F119089ull;
    value ^= (value >> 30) ^ (value >> 60);
    return static_cast<std::int64_t>(value - 0x9E3779B97F4A7C15ull);
  };
  std::vector<std::int64_t> crowd;
  for (std::uint64_t i = 0; i < 12; ++i) crowd.push_back(unmix(0x1234567000000000ull + i));
  CHECK(mix_id(crowd[3]) == 0x1234567000000003ull);
  std::vector<std::int64_t> ids = {1, 2, 3, 4, 5};
  ids.insert(ids.end(), crowd.begin(), crowd.end());
  Model model;
  model.stage(0, {2, 4, crowd[0]}, CoverState::kRow, 1);
  const std::vector<float> rows(ids.size() * kDim, 5.0f);
  CHECK_THROWS(model.table.stage(1, ids.data(), ids.size(), rows.data(), CoverState::kRow), CapacityExceeded);
  model.check_all();
  model.check(0b11, ids);
}

RUN_ALL_TESTS()
