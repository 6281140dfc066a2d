// Sets of changes, brought to a GPU step by step as publish.cuh says, with lookups in every gap: what is on the GPU
// after a set is what the cache says, and no lookup gets another owner's row, half of one, or one that is out of date.
#include <algorithm>
#include <map>
#include <random>
#include <utility>

#include "check.h"
#include "gpu_rows.h"
#include "lookup.cuh"
#include "publish.cuh"

using namespace emberline;

namespace {

constexpr std::uint32_t kTables = 6;  // the first three are the base, the others pinned
constexpr std::int64_t kIds = 40;

struct Stored {
  std::uint32_t slot;
  std::int64_t stamp;
};

// A GPU: lists are applied entry by entry, in any order within one.
class Gpu {
 public:
  explicit Gpu(const GpuCache& cache)
      : slots(cache.slots()),
        bucket_count(static_cast<std::int64_t>(cache.bucket_count())),
        buckets(cache.bucket_count() * 8, 0),
        slab((std::size_t{slots} + 1) * kGpuRowBytes, 0xFF) {}

  void copy(const std::int64_t* entry, const std::vector<std::uint8_t>& staged) {
    const std::int64_t one = 1;
    const auto rows = static_cast<std::int64_t>(staged.size() / kGpuRowBytes);
    publish_rows_share(entry, &one, 1, staged.data(), rows, slab.data(), slots, kGpuRowBytes, 0, 1);
  }
  void store(const std::int64_t* entry) {
    const std::int64_t one = 1;
    publish_stores_share(entry, &one, 1, buckets.data(), bucket_count, 0, 1);
  }

  std::uint32_t slots;
  std::int64_t bucket_count;
  std::vector<uint64_t> buckets;
  std::vector<std::uint8_t> slab;
};

// What the GPU's rows may be: by owner, the stamps of its rows in turn; 0: it was taken out.
class History {
 public:
  using Owner = std::pair<std::uint32_t, std::int64_t>;

  void write(Owner owner, std::int64_t stamp) { all_[owner].push_back(stamp); }
  std::size_t length(Owner owner) { return all_[owner].size(); }
  std::int64_t last(Owner owner) { return all_[owner].empty() ? 0 : all_[owner].back(); }
  bool has(Owner owner, std::size_t from, std::int64_t stamp) {
    const std::vector<std::int64_t>& stamps = all_[owner];
    return std::find(stamps.begin() + static_cast<std::ptrdiff_t>(from), stamps.end(), stamp) != stamps.end();
  }

 private:
  std::map<Owner, std::vector<std::int64_t>> all_;
};

class World {
 public:
  World(std::uint64_t capacity, unsigned seed) : cache(kGpuRowBytes, capacity, kTables), gpu_(cache), random_(seed) {}

  void change() {
    const std::uint32_t table = random_() % kTables;
    const bool pinned = table >= 3;
    const std::int64_t id = any_id();
    const History::Owner owner{table, id};
    const std::int64_t stamp = ++stamps_;
    const std::uint32_t before = find(cache, table, id);
    switch (random_() % 7) {
      case 0:
      case 1:
        if (pinned && before == 0) {
          bool in = false;
          const auto row = std::make_shared<std::vector<std::uint8_t>>(gpu_row(id, stamp));
          cache.insert_absent(table, &id, 1, row->data(), kGpuRowBytes, row, 1, &in);
        } else {
          insert(cache, table, id, stamp, pinned);
        }
        history_.write(owner, stamp);
        break;
      case 2:
        if (pinned) return;
        offer(cache, table, id, stamp);
        if (before == 0) history_.write(owner, stamp);
        break;
      case 3:
        if (before != 0 && before != GpuCache::kAskHost) history_.write(owner, stamp);
        assign(cache, table, id, stamp);
        break;
      case 4:
        if (before != 0) history_.write(owner, 0);
        if (before != 0 && pinned) erased_[owner] = collecting_;
        cache.erase(table, &id, 1);
        break;
      case 5:
        if (!pinned) return;
        insert_ask_host(cache, table, id);
        history_.write(owner, 0);
        break;
      default: {
        if (pinned) return;
        const std::uint32_t source = table + 3;
        const std::uint32_t there = find(cache, source, id);
        if (there == 0 || (before == 0 && there == GpuCache::kAskHost)) return;
        if (cache.adopt(source, table, &id, 1) == 0 && before == 0) return;
        history_.write(owner, there == GpuCache::kAskHost ? 0 : history_.last({source, id}));
      }
    }
    if (pinned && before == 0 && find(cache, table, id) != 0) arrived_[owner] = collecting_;
  }

  // One entry of the set under way, or the next step. False at the grace period while a lookup has to end first.
  bool step() {
    switch (step_) {
      case 0:
        set_ = cache.take_set();
        lent += set_.lent != nullptr;
        set_.staged = staged_of(set_);
        expected_.clear();
        for (std::uint32_t table = 0; table < kTables; ++table) {
          for (std::int64_t id = 0; id < kIds; ++id) {
            expected_[{table, id}] = {find(cache, table, id), history_.last({table, id})};
          }
        }
        for (const auto& [owner, stored] : expected_) coming_[owner] = history_.length(owner);
        CHECK(set_.ids.size() == set_.words.size());
        CHECK(set_.staged.size() == set_.rows.size() / 2 * kGpuRowBytes);
        ++collecting_;
        return begin(1, set_.rows);
      case 1:
        if (const std::int64_t* entry = next(set_.rows)) return gpu_.copy(entry, set_.staged), true;
        return begin(2, set_.emptied);
      case 2:
        if (must_leave_) return false;
        if (const std::int64_t* entry = next(set_.emptied)) return gpu_.store(entry), true;
        for (const auto& [owner, length] : coming_) floor_[owner] = length;
        ++begun_;
        return begin(3, set_.ids);
      case 3:
        if (must_leave_) return false;
        if (const std::int64_t* entry = next(set_.ids)) return gpu_.store(entry), true;
        return begin(4, set_.words);
      default:
        if (must_leave_) return false;
        if (const std::int64_t* entry = next(set_.words)) return gpu_.store(entry), true;
        cache.complete_set();
        ++complete_;
        compare();
        step_ = 0;
        return true;
    }
  }

  void look_up() {
    const std::uint32_t table = random_() % kTables;
    const std::int64_t id = any_id();
    const History::Owner owner{table, id};
    const std::size_t floor = floor_[owner];
    const std::int64_t complete = complete_;
    entered_ = passed_;
    inside_ = true;
    const Match match = find_unless_moving(Index{*this}, id, table, mix_owner(id, table_salt(table)));
    const std::uint32_t slot = match.at < 0 ? 0 : word::slot(match.word);
    ++lookups;
    // Pinned: from the set that brought it until the one that takes it away.
    const bool erased = erased_.contains(owner) && erased_[owner] >= arrived_[owner];
    if (arrived_.contains(owner) && arrived_[owner] < complete && !erased) {
      CHECK(slot != 0);
      ++certain;
    }
    if (slot != 0 && slot != GpuCache::kAskHost) {
      CHECK(slot <= gpu_.slots);
      std::vector<std::uint8_t> row(kGpuRowBytes);
      for (std::size_t at = 0; at < kGpuRowBytes; at += 16) {
        meanwhile();
        std::memcpy(row.data() + at, gpu_.slab.data() + slot * kGpuRowBytes + at, 16);
      }
      const std::int64_t stamp = stamp_of(row.data(), id);
      CHECK(stamp > 0);
      // No older than what the GPU was told of when the lookup began.
      CHECK(history_.has(owner, floor == 0 ? 0 : floor - 1, stamp));
      ++hits;
    }
    inside_ = must_leave_ = false;
  }

  void finish() {
    while (step_ != 0) step();
  }

  GpuCache cache;
  std::int64_t lookups = 0, hits = 0, certain = 0, moved = 0, lent = 0;

 private:
  // The buckets as a lookup sees them: anything that is allowed to may happen before every load.
  struct Loads {
    World& world;
    const uint64_t* bucket;
    std::int64_t ids[kCacheBucketIds];

    std::int64_t id(int at) const { return ids[at]; }
    std::uint64_t word(int at) const {
      world.meanwhile();
      return bucket[kCacheBucketIds + at];
    }
  };
  struct Index {
    World& world;

    std::uint64_t count() const { return static_cast<std::uint64_t>(world.gpu_.bucket_count); }
    Loads loads(std::uint64_t index) const {
      Loads loads{world, world.gpu_.buckets.data() + index * 8, {}};
      for (int at = 0; at < kCacheBucketIds; ++at) {
        world.meanwhile();
        loads.ids[at] = static_cast<std::int64_t>(loads.bucket[at]);
      }
      return loads;
    }
  };

  std::int64_t any_id() { return static_cast<std::int64_t>(random_() % kIds); }

  void meanwhile() {
    if (random_() % 4 == 0) change();
    for (int steps = static_cast<int>(random_() % 24) - 12; steps > 0; --steps) {
      const std::int64_t begun = begun_;
      if (inside_ && passed_ > entered_ && follows_grace()) must_leave_ = true;
      if (!step()) return;
      moved += begun_ != begun;
    }
  }

  // Whether the step under way may not begin while a lookup is inside that began before what comes before it was there.
  bool follows_grace() const {
    if (step_ == 2) return !set_.rows.empty() && !set_.emptied.empty();
    return step_ == 3 || (step_ == 4 && !set_.ids.empty());
  }

  bool begin(int next_step, std::vector<std::int64_t>& list) {
    step_ = next_step;
    ++passed_;
    order_.clear();
    for (std::size_t at = 0; at < list.size(); at += 2) order_.push_back(at);
    std::shuffle(order_.begin(), order_.end(), random_);
    for (std::size_t i = 0; i < order_.size(); ++i) {  // a place comes once in a list
      for (std::size_t j = 0; j < i && order_.size() < 64; ++j) CHECK(list[order_[i]] != list[order_[j]]);
    }
    return true;
  }
  const std::int64_t* next(const std::vector<std::int64_t>& list) {
    if (order_.empty()) return nullptr;
    const std::int64_t* entry = list.data() + order_.back();
    order_.pop_back();
    return entry;
  }

  // Between sets the GPU is what the cache was when the set was taken.
  void compare() {
    const std::vector<std::uint8_t> buckets = cache.published_buckets();
    CHECK(buckets.size() == gpu_.buckets.size() * 8 &&
          std::memcmp(buckets.data(), gpu_.buckets.data(), buckets.size()) == 0);
    const GpuBuckets index{gpu_.buckets.data(), static_cast<std::uint64_t>(gpu_.bucket_count)};
    for (const auto& [owner, stored] : expected_) {
      const std::uint64_t mixed = mix_owner(owner.second, table_salt(owner.first));
      const Match match = find_unless_moving(index, owner.second, owner.first, mixed);
      const std::uint32_t slot = match.at < 0 ? 0 : word::slot(match.word);
      CHECK(slot == stored.slot);
      if (slot == 0 || slot == GpuCache::kAskHost) continue;
      CHECK(stamp_of(gpu_.slab.data() + slot * kGpuRowBytes, owner.second) == stored.stamp);
    }
    if (complete_ % 64 == 0) cache.check_integrity();
  }

  Gpu gpu_;
  std::mt19937 random_;
  History history_;
  std::map<History::Owner, Stored> expected_;
  std::map<History::Owner, std::size_t> coming_, floor_;
  std::map<History::Owner, std::int64_t> arrived_, erased_;  // sets
  GpuSet set_;
  std::vector<std::size_t> order_;
  int step_ = 0;
  std::int64_t stamps_ = 0, collecting_ = 0, begun_ = 0, complete_ = 0, entered_ = 0, passed_ = 0;
  bool inside_ = false, must_leave_ = false;
};

}  // namespace

static_assert(GpuCache::kAskHost == kAskHost);

TEST(lookups_in_every_gap_of_a_set_get_their_own_rows_and_none_out_of_date) {
  std::int64_t lookups = 0, hits = 0, certain = 0, moved = 0, lent = 0;
  for (const std::uint64_t capacity : {12, 40, 90, 200}) {
    for (unsigned seed = 0; seed < 6; ++seed) {
      World world(capacity, seed);
      for (int round = 0; round < 4000; ++round) {
        if (round % 3 == 0) world.change();
        for (int more = round % 97 == 0 ? 400 : 0; more > 0; --more) world.change();  // beyond the free slots
        world.look_up();
      }
      world.finish();
      world.cache.check_integrity();
      lookups += world.lookups;
      hits += world.hits;
      certain += world.certain;
      moved += world.moved;
      lent += world.lent;
    }
  }
  const auto number = [](std::int64_t value) { return static_cast<long long>(value); };
  std::printf("     %lld lookups, %lld hits, %lld that may not miss, %lld sets begun in one\n", number(lookups),
              number(hits), number(certain), number(moved));
  CHECK(hits > lookups / 8 && certain > lookups / 16 && moved > 1000);
  CHECK(lent > 1000);
}

TEST(a_set_without_changes_is_empty) {
  GpuCache cache(kGpuRowBytes, 100, 2);
  insert(cache, 0, 1, 1);
  CHECK(cache.changed_rows() == 1);
  const GpuSet first = cache.take_set();
  CHECK(first.rows.size() == 2 && first.ids.size() == 2 && first.words.size() == 2 && first.emptied.empty());
  CHECK(cache.changed_rows() == 0);
  cache.complete_set();
  // Came and left, within a set.
  insert(cache, 0, 2, 1);
  insert(cache, 0, 3, 1);
  const std::int64_t two = 2;
  cache.erase(0, &two, 1);
  const GpuSet second = cache.take_set();
  CHECK(second.rows.size() == 2 && second.rows[1] == 0 && stamp_of(second.staged.data(), 3) == 1);
  cache.complete_set();
  insert(cache, 0, 2, 1);
  cache.erase(0, &two, 1);
  const GpuSet third = cache.take_set();
  CHECK(third.rows.empty() && third.ids.empty() && third.words.empty());
  CHECK(third.emptied.empty() && third.staged.empty());
  cache.complete_set();
}

TEST(a_changed_row_is_one_store) {
  GpuCache cache(kGpuRowBytes, 100, 2);
  insert(cache, 0, 1, 1);
  publish(cache);
  const std::uint32_t before = find(cache, 0, 1);
  assign(cache, 0, 1, 2);
  const GpuSet set = cache.take_set();
  CHECK(set.rows.size() == 2 && set.emptied.size() == 2 && set.ids.empty() && set.words.empty());
  CHECK(word::slot(static_cast<std::uint64_t>(set.emptied[1])) == find(cache, 0, 1) && find(cache, 0, 1) != before);
  cache.complete_set();
}

RUN_ALL_TESTS()
