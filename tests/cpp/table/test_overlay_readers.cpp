// Sessions beside a writer that stages, switches, rolls back and merges. Every answer must be that of exactly one
// snapshot. Run under ThreadSanitizer these tests are the proof that rows, heads and links need no atomics beyond their
// own.
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <thread>

#include "every_isa.h"
#include "rows.h"
#include "table/lookup.h"
#include "table/overlay.h"

using namespace emberline;

namespace {

constexpr std::int64_t kIds = 600;
constexpr int kSessions = 3;
constexpr int kUpdates = 300;  // what the writer does at least
constexpr int kRounds = 100;  // and every session
constexpr std::size_t kRetained = 4;
constexpr int kAbsent = -1;

// What a snapshot shows: the generation of each id, or kAbsent.
struct Snapshot {
  std::vector<int> generations;
  std::uint64_t mask;
  std::uint32_t overlay;  // that leads to it
  std::map<std::int64_t, int> changes;  // by id, what that overlay says
};

// Which snapshot a session is on, and which are there. Lookups themselves run without this mutex.
class History {
 public:
  struct Pin {
    std::shared_ptr<const Snapshot> snapshot;
    std::uint64_t mask = 0;
  };

  explicit History(std::shared_ptr<Snapshot> first) : chain{std::move(first)} {}

  Pin pin(int session, bool newest) {
    const std::lock_guard lock(mutex);
    const auto& snapshot = newest ? chain.back() : chain[chain.size() / 2];
    return pins[session] = {snapshot, snapshot->mask};
  }
  void unpin(int session) {
    const std::lock_guard lock(mutex);
    pins[session] = {};
  }
  // Waits until no session uses what `used` is true for.
  template <class Used>
  void wait(Used used) {
    for (;; std::this_thread::yield()) {
      const std::lock_guard lock(mutex);
      bool any = false;
      for (const Pin& pin : pins) any = any || (pin.snapshot != nullptr && used(pin));
      if (!any) return;
    }
  }

  std::mutex mutex;
  std::vector<std::shared_ptr<Snapshot>> chain;  // the base's snapshot first
  Pin pins[kSessions];
};

struct World {
  Table base{kDim, 0, 0};
  OverlayTable overlay{kDim};
  std::mt19937 random{7};
  int generation = 0;
  std::uint32_t next = 0;
  std::unique_ptr<History> history;

  World() {
    auto first = std::make_shared<Snapshot>();
    for (std::int64_t id = 0; id < kIds; ++id) {
      first->generations.push_back(0);
      base.insert_or_assign(&id, 1, make_row(id, 0).data(), nullptr);
    }
    first->mask = 0;
    history = std::make_unique<History>(std::move(first));
  }

  static std::uint64_t bit(std::uint32_t number) { return std::uint64_t{1} << number; }

  void stage() {
    auto fresh = std::make_shared<Snapshot>(*history->chain.back());
    // Few numbers, so that reuse comes soon. One is free when it has no entries and no mask in use has it.
    do {
      fresh->overlay = next++ % (kRetained + 5);
    } while (overlay.entries(fresh->overlay) > 0);
    history->wait([&](const History::Pin& pin) { return (pin.mask & bit(fresh->overlay)) != 0; });
    fresh->mask |= bit(fresh->overlay);
    fresh->changes.clear();
    ++generation;
    for (int part = 0; part < 2; ++part) {
      std::vector<std::int64_t> ids, removed;
      std::vector<float> rows;
      for (std::int64_t id = part; id < kIds; id += 2) {
        // Some ids change always: their chains are as long as the history.
        if (id >= 40 && random() % 6 != 0) continue;
        const bool gone = random() % 8 == 0;
        fresh->changes[id] = fresh->generations[static_cast<std::size_t>(id)] = gone ? kAbsent : generation;
        (gone ? removed : ids).push_back(id);
        if (gone) continue;
        const auto row = make_row(id, generation);
        rows.insert(rows.end(), row.begin(), row.end());
      }
      overlay.stage(fresh->overlay, ids.data(), ids.size(), rows.data(), CoverState::kRow);
      overlay.stage(fresh->overlay, removed.data(), removed.size(), nullptr, CoverState::kRemoved);
    }
    const std::lock_guard lock(history->mutex);
    history->chain.push_back(std::move(fresh));
  }

  void roll_back() {
    if (history->chain.size() < 2) return;
    const auto top = history->chain.back();
    {
      const std::lock_guard lock(history->mutex);
      history->chain.pop_back();
    }
    history->wait([&](const History::Pin& pin) { return pin.snapshot == top; });
    overlay.discard(top->overlay, SIZE_MAX);
  }

  void merge() {
    if (history->chain.size() <= kRetained) return;
    const auto merged = history->chain[1];
    {
      const std::lock_guard lock(history->mutex);
      history->chain.erase(history->chain.begin());
    }
    history->wait([&](const History::Pin& pin) { return (pin.mask & bit(merged->overlay)) == 0; });
    for (const auto& [id, now] : merged->changes) {
      if (now == kAbsent) {
        base.erase(&id, 1);
      } else {
        base.insert_or_assign(&id, 1, make_row(id, now).data(), nullptr);
      }
    }
    while (overlay.discard(merged->overlay, 17) > 0) {
    }
    const std::lock_guard lock(history->mutex);
    for (const auto& snapshot : history->chain) snapshot->mask &= ~bit(merged->overlay);
  }
};

}  // namespace

TEST(every_answer_is_that_of_one_snapshot_while_deltas_come_are_merged_and_rolled_back) {
  World world;
  std::atomic<bool> writing{true};
  std::atomic<int> running{kSessions};
  std::atomic<std::uint64_t> wrong{0}, lost{0}, risen{0}, from_overlays{0}, from_base{0};
  const auto session = [&](int number) {
    Lookup lookup({&world.base}, {{0, Pooling::kNone, 3}, {0, Pooling::kSum, 0}}, {&world.overlay});
    std::mt19937 random(static_cast<unsigned>(number));
    std::vector<std::int64_t> values(90), offsets(31);
    for (std::size_t i = 0; i < offsets.size(); ++i) offsets[i] = static_cast<std::int64_t>(i) * 3;
    std::vector<float> out(90 * kDim), pooled(30 * kDim), none(90 * kDim);
    std::vector<std::uint8_t> mask(90), state(90, 0);
    for (int round = 0; round < kRounds || writing.load(); ++round) {
      const History::Pin pin = world.history->pin(number, random() % 3 != 0);
      for (std::int64_t& id : values) id = static_cast<std::int64_t>(random() % (random() % 2 == 0 ? 40 : kIds));
      lookup.begin(30,
                   {{values.data(), 90, offsets.data(), out.data(), mask.data()},
                    {values.data(), 90, offsets.data(), pooled.data(), nullptr}},
                   pin.mask);
      lookup.supply(0, none.data(), state.data());  // the base is complete: what it lacks is absent
      const LookupTotals totals = lookup.finish();
      world.history->unpin(number);
      from_overlays += totals.overlay;
      from_base += totals.dram;
      wrong += totals.overlay + totals.dram + totals.absent != 180;
      for (std::size_t b = 0; b < 30; ++b) {
        float sum = 0;
        for (std::size_t i = b * 3; i < b * 3 + 3; ++i) {
          const int expected = pin.snapshot->generations[static_cast<std::size_t>(values[i])];
          sum += expected == kAbsent ? 0.0f : static_cast<float>(expected);
          lost += mask[i] == 0 && expected != kAbsent;
          risen += mask[i] == 1 && expected == kAbsent;
          if (mask[i] == 1 && expected != kAbsent) wrong += generation_of(out.data() + i * kDim, values[i]) != expected;
        }
        wrong += pooled[b * kDim + 1] != sum;
      }
    }
    --running;
  };
  std::vector<std::thread> sessions;
  for (int number = 0; number < kSessions; ++number) sessions.emplace_back(session, number);
  int updates = 0;
  for (; updates < kUpdates || running.load() > 0; ++updates) {
    writing = updates + 1 < kUpdates;
    world.stage();
    if (world.random() % 4 == 0) world.roll_back();
    world.merge();
  }
  for (std::thread& thread : sessions) thread.join();
  std::printf("     %d updates beside %llu rows of overlays and %llu of the base\n", updates,
              static_cast<unsigned long long>(from_overlays.load()), static_cast<unsigned long long>(from_base.load()));
  CHECK(from_overlays > 1000 && from_base > 1000);
  CHECK(wrong == 0);
  CHECK(lost == 0);
  CHECK(risen == 0);
  world.overlay.check_integrity();
  world.base.check_integrity();
}

TEST(readers_under_any_mask_see_whole_rows_of_the_overlay_that_is_named) {
  OverlayTable table(kDim);
  std::atomic<bool> writing{true};
  std::atomic<int> running{kSessions};
  std::atomic<std::uint64_t> wrong{0}, seen{0};
  const auto read = [&](unsigned seed) {
    std::mt19937_64 random(seed);
    std::vector<std::int64_t> ids(300);
    std::vector<float> out(ids.size() * kDim);
    std::vector<std::uint8_t> states(ids.size()), overlays(ids.size());
    for (int round = 0; round < kRounds || writing.load(); ++round) {
      const std::uint64_t mask = random() & random() & 0x7F;
      for (std::int64_t& id : ids) id = static_cast<std::int64_t>(random() % 200);
      table.find(mask, ids.data(), ids.size(), out.data(), states.data(), overlays.data());
      for (std::size_t i = 0; i < ids.size(); ++i) {
        if (states[i] == 0) {
          wrong += overlays[i] != kNoOverlay;
          continue;
        }
        ++seen;
        wrong += ((mask >> overlays[i]) & 1) == 0;
        if (states[i] == 1) wrong += generation_of(out.data() + i * kDim, ids[i]) % 7 != overlays[i];
      }
    }
    --running;
  };
  std::vector<std::thread> readers;
  for (unsigned r = 0; r < kSessions; ++r) readers.emplace_back(read, r);
  std::mt19937 random(5);
  int steps = 0;
  for (; steps < 2000 || running.load() > 0; ++steps) {
    writing = steps + 1 < 2000;
    const std::uint32_t overlay = random() % 7;  // 0 to 6; a row's generation leaves it as the rest of a division by 7
    table.discard(overlay, SIZE_MAX);
    std::vector<std::int64_t> ids;
    std::vector<float> rows;
    for (std::int64_t id = 0; id < 200; ++id) {
      if (random() % 3 == 0) continue;
      ids.push_back(id);
      const auto row = make_row(id, (steps % 1'000'000) * 7 + static_cast<int>(overlay));
      rows.insert(rows.end(), row.begin(), row.end());
    }
    const std::size_t some = ids.size() / 2;
    table.stage(overlay, ids.data(), some, rows.data(), CoverState::kRow);
    table.stage(overlay, ids.data() + some, ids.size() - some, nullptr, CoverState::kSpilled);
  }
  for (std::thread& reader : readers) reader.join();
  std::printf("     %d updates beside %llu entries read\n", steps, static_cast<unsigned long long>(seen.load()));
  CHECK(wrong == 0);
  CHECK(seen > 1000);
  table.check_integrity();
}

RUN_ALL_TESTS_ON_EVERY_ISA()
