// Verbs over many ids: several threads leave the cache as one does, but for which slot is whose.
#include <algorithm>
#include <memory>

#include "check.h"
#include "gpu_rows.h"

using namespace emberline;

namespace {

constexpr std::size_t kStride = 64;
constexpr std::size_t kThreads = 4;
using Bytes = std::vector<std::uint8_t>;
using Ids = std::vector<std::int64_t>;

// What publish.cuh's lists make of a GPU.
class Gpu {
 public:
  explicit Gpu(const GpuCache& cache)
      : buckets_(cache.bucket_count() * 8), slab_((std::size_t{cache.slots()} + 1) * kGpuRowBytes) {}

  void put(const GpuSet& set) {
    const Bytes staged = staged_of(set);
    for (std::size_t at = 0; at < set.rows.size(); at += 2) {
      std::copy_n(staged.data() + static_cast<std::size_t>(set.rows[at + 1]) * kGpuRowBytes, kGpuRowBytes,
                  slab_.data() + static_cast<std::size_t>(set.rows[at]) * kGpuRowBytes);
    }
    for (const auto* list : {&set.emptied, &set.ids, &set.words}) {
      for (std::size_t at = 0; at < list->size(); at += 2) {
        buckets_[static_cast<std::size_t>((*list)[at])] = (*list)[at + 1];
      }
    }
  }
  std::int64_t stamp(std::uint32_t slot, std::int64_t id) const {
    return stamp_of(slab_.data() + std::size_t{slot} * kGpuRowBytes, id);
  }
  bool has_buckets_of(const GpuCache& cache) const {
    const Bytes buckets = cache.published_buckets();
    return std::memcmp(buckets.data(), buckets_.data(), buckets.size()) == 0;
  }

 private:
  std::vector<std::int64_t> buckets_;
  Bytes slab_;
};

Ids every(std::int64_t count, std::int64_t step) {
  Ids ids;
  for (std::int64_t id = 0; id < count; id += step) ids.push_back(id);
  return ids;
}

struct World {
  World(std::uint64_t capacity, std::size_t most) : cache(kGpuRowBytes, capacity, 6), gpu(cache), threads(most) {}

  void publish() {
    gpu.put(cache.take_set(threads));
    cache.complete_set();
    CHECK(gpu.has_buckets_of(cache));
    cache.check_integrity();
  }
  std::vector<std::uint32_t> find(std::uint32_t table, const Ids& ids) const {
    std::vector<std::uint32_t> found(ids.size());
    cache.find(table, ids.data(), ids.size(), found.data(), threads);
    return found;
  }
  // Of every id: -1 where there is none, -2 where the host is asked, else the stamp of its row.
  std::vector<std::int64_t> stamps(std::uint32_t table, const Ids& ids) const {
    std::vector<std::int64_t> found;
    const std::vector<std::uint32_t> slots = find(table, ids);
    for (std::size_t i = 0; i < ids.size(); ++i) {
      CHECK(slots[i] == emberline::find(cache, table, ids[i]));
      found.push_back(slots[i] == 0 ? -1 : slots[i] == GpuCache::kAskHost ? -2 : gpu.stamp(slots[i], ids[i]));
      CHECK(slots[i] == 0 || slots[i] == GpuCache::kAskHost || found.back() > 0);
    }
    return found;
  }
  // How many are in.
  std::size_t insert_absent(std::uint32_t table, const Ids& ids, std::int64_t stamp) {
    const auto rows = std::make_shared<Bytes>(ids.size() * kStride, std::uint8_t{0xEE});
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const Bytes row = gpu_row(ids[i], stamp);
      std::copy(row.begin(), row.end(), rows->begin() + static_cast<std::ptrdiff_t>(i * kStride));
    }
    const auto in = std::make_unique<bool[]>(ids.size());
    cache.insert_absent(table, ids.data(), ids.size(), rows->data(), kStride, rows, threads, in.get());
    const std::vector<std::uint32_t> found = find(table, ids);
    for (std::size_t i = 0; i < ids.size(); ++i) CHECK((found[i] != 0) == in[i]);
    return static_cast<std::size_t>(std::count(in.get(), in.get() + ids.size(), true));
  }

  GpuCache cache;
  Gpu gpu;
  std::size_t threads;
};

}  // namespace

TEST(a_difference_comes_is_adopted_and_goes) {
  const Ids all = every(60'000, 1), some = every(60'000, 3), few = every(60'000, 30);
  std::vector<std::vector<std::int64_t>> seen[2];
  for (const std::size_t threads : {std::size_t{1}, kThreads}) {
    World world(90'000, threads);
    auto& stamps = seen[threads > 1];
    for (const std::int64_t id : all) CHECK(insert(world.cache, 0, id, 1));
    world.publish();
    for (const std::int64_t id : few) CHECK(insert_ask_host(world.cache, 2, id));
    Ids rest;
    std::set_difference(some.begin(), some.end(), few.begin(), few.end(), std::back_inserter(rest));
    CHECK(world.insert_absent(2, rest, 2) == rest.size());
    world.publish();
    stamps.push_back(world.stamps(2, all));
    CHECK(world.cache.adopt(2, 0, some.data(), some.size(), threads) == rest.size());
    world.publish();
    stamps.push_back(world.stamps(0, all));
    CHECK(world.cache.erase(2, few.data(), few.size(), threads) == few.size());
    CHECK(world.cache.erase_table(2, threads) == rest.size());
    world.publish();
    CHECK(world.cache.rows_of(2) == 0 && world.cache.erase_table(2, threads) == 0);
    stamps.push_back(world.stamps(0, all));
    // Slots that have gone round.
    CHECK(world.insert_absent(4, some, 3) == some.size());
    CHECK(world.cache.erase(4, rest.data(), rest.size(), threads) == rest.size());
    world.publish();
    stamps.push_back(world.stamps(4, all));
    stamps.push_back(world.stamps(0, all));
  }
  CHECK(seen[0] == seen[1]);
}

TEST(rows_that_find_no_room_go_the_ordinary_way) {
  const Ids base = every(20'000, 1), more = every(9'000, 1);
  World world(20'000, kThreads);
  for (const std::int64_t id : base) {
    insert(world.cache, 0, id, 1);
  }
  world.publish();
  std::size_t in = 0;
  for (std::size_t start = 0; start < more.size();) {
    const std::size_t count = std::min<std::size_t>(more.size() - start, world.cache.free_slots());
    in += world.insert_absent(
        2,
        {more.begin() + static_cast<std::ptrdiff_t>(start), more.begin() + static_cast<std::ptrdiff_t>(start + count)},
        2);
    start += count;
    world.publish();
  }
  // All but those at whose places pinned rows alone stand.
  CHECK(in > more.size() * 99 / 100 && world.cache.stats().evicted > 0);
  const std::vector<std::int64_t> stamps = world.stamps(2, more);
  CHECK(static_cast<std::size_t>(std::count(stamps.begin(), stamps.end(), 2)) == in);
}

TEST(a_full_cache_makes_room_first) {
  const Ids base = every(60'000, 1), changed = every(60'000, 4);
  std::vector<std::int64_t> seen[2];
  for (const std::size_t threads : {std::size_t{1}, kThreads}) {
    World world(60'000, threads);
    std::vector<std::uint8_t> marks(world.cache.slots() + 1, 0);
    for (const std::int64_t id : base) CHECK(insert(world.cache, 0, id, 1));
    world.publish();
    const std::vector<std::uint32_t> slots = world.find(0, base);
    for (std::size_t id = 0; id < 6'000; ++id) marks[slots[id]] = 1;
    world.cache.note_uses(marks.data(), 20, {});
    CHECK(world.cache.free() == 0 && world.cache.evict_for(changed.size(), threads) == changed.size());
    CHECK(world.cache.free() == 1'800);  // what the others had is free when the set is complete
    world.publish();
    CHECK(world.cache.free() == changed.size() && world.cache.evict_for(changed.size(), threads) == 0);
    CHECK(world.insert_absent(2, changed, 2) == changed.size());
    world.publish();
    CHECK(world.cache.stats().evicted == changed.size() && world.cache.free() == 0);
    const std::vector<std::int64_t> stamps = world.stamps(0, base);
    CHECK(std::count(stamps.begin(), stamps.begin() + 6'000, 1) >= 5'900);
    CHECK(std::count(stamps.begin(), stamps.end(), 1) == 45'000);
    seen[threads > 1] = stamps;
    // Rows that nobody can let go for.
    CHECK(world.cache.evict_for(~std::size_t{0}, threads) == 45'000 && world.cache.rows_of(2) == changed.size());
    world.publish();
  }
  CHECK(seen[0] == seen[1]);
}

TEST(few_rows_among_many_pinned_ones_are_found) {
  World world(20'000, 1);
  for (const std::int64_t id : every(300, 1)) CHECK(insert(world.cache, 0, id, 1));
  for (const std::int64_t id : every(15'000, 1)) (void)insert(world.cache, 1, id, 1, true);
  world.publish();
  const std::uint64_t there = world.cache.rows_of(0);
  for (std::uint64_t gone = 0; gone < there; ++gone) {
    if (world.cache.evict_for(20'000 - world.cache.size() + 1) == 1) continue;
    CHECK(gone == there);
    break;
  }
  CHECK(there > 200 && world.cache.rows_of(0) == 0 && world.cache.evict_for(20'000) == 0);
  world.publish();
}

TEST(room_that_is_kept_is_for_what_is_inserted) {
  World world(1'000, 1);
  world.cache.reserve(200);
  CHECK(world.cache.free() == 800);
  for (std::int64_t id = 0; id < 1'000; ++id) (void)offer(world.cache, 0, id, 1);
  CHECK(world.cache.free() == 0 && world.cache.size() == 800);
  world.publish();
  CHECK(world.insert_absent(2, every(200, 1), 2) == 200 && world.cache.stats().evicted == 0);
  world.publish();
  CHECK(world.cache.free() == 0 && world.cache.size() == 1'000);
  CHECK(world.cache.erase_table(2) == 200);
  world.publish();
  world.cache.reserve(5'000);
  CHECK(world.cache.free() == 0 && world.cache.reserved() == 1'000);
}

TEST(a_crowded_index_turns_rows_away_and_forgets_them) {
  // Pinned rows alone, until buckets are full of them.
  std::size_t refused = 0;
  for (std::uint64_t capacity = 7'000; capacity < 7'200; capacity += 50) {
    World world(capacity, kThreads);
    for (std::uint32_t table = 0; world.cache.free() > 0 && table < 6; ++table) {
      const Ids ids = every(static_cast<std::int64_t>(std::min<std::uint64_t>(world.cache.free(), 5'000)), 1);
      const std::size_t in = world.insert_absent(table, ids, table + 1);
      refused += ids.size() - in;
      world.publish();
      for (const std::int64_t stamp : world.stamps(table, ids)) CHECK(stamp == -1 || stamp == table + 1);
    }
  }
  std::printf("     %zu turned away\n", refused);
}

TEST(rows_that_come_beside_lent_ones_are_kept_with_them) {
  World world(1'000, 1);
  const Ids ids = every(100, 1);
  CHECK(world.insert_absent(2, ids, 5) == ids.size());
  CHECK(insert(world.cache, 0, 7, 6));
  CHECK(insert(world.cache, 2, 8, 7, true));  // another row for a lent one
  const std::int64_t gone[] = {0, 50, 50};
  CHECK(world.cache.erase(2, gone, 3) == 2);
  world.publish();
  std::vector<std::int64_t> expected(ids.size(), 5);
  expected[0] = expected[50] = -1;
  expected[8] = 7;
  CHECK(world.stamps(2, ids) == expected);
  CHECK(world.stamps(0, {7}) == std::vector<std::int64_t>{6});
}

RUN_ALL_TESTS()
