// Lists that change a replica: what they write, and that lookups beside them never get another owner's row, nor half of
// one.
#include "publish.cuh"

#include <array>
#include <atomic>
#include <optional>

#include "cache/buckets.h"
#include "check.h"
#include "replica.h"

using namespace replica;

namespace {

// A list through the threads of a grid.
struct List {
  std::vector<std::int64_t> entries;

  void add(std::int64_t first, std::int64_t second) { entries.insert(entries.end(), {first, second}); }
  std::int64_t count() const { return static_cast<std::int64_t>(entries.size() / 2); }

  void store(std::uint64_t* buckets, std::int64_t bucket_count) const {
    const std::int64_t given = count();
    for (std::int64_t thread = 0; thread < 5; ++thread) {
      emberline::publish_stores_share(entries.data(), &given, given, buckets, bucket_count, thread, 5);
    }
  }
  void copy(const Bytes& staging, std::uint8_t* slab, std::int64_t slots, std::int64_t stride) const {
    const std::int64_t given = count();
    for (std::int64_t thread = 0; thread < 5; ++thread) {
      emberline::publish_rows_share(entries.data(), &given, given, staging.data,
                                    static_cast<std::int64_t>(staging.size) / stride, slab, slots, stride, thread, 5);
    }
  }
};

}  // namespace

TEST(rows_go_to_their_slots) {
  std::mt19937 random(1);
  for (const std::int64_t stride : {4, 12, 16, 132, 144, 512}) {
    Bytes staging(20 * stride), slab(31 * stride);
    for (std::size_t i = 0; i < staging.size; ++i) staging.data[i] = static_cast<std::uint8_t>(random());
    std::memset(slab.data, kUntouched, slab.size);
    std::vector<std::uint8_t> expected(slab.data, slab.data + slab.size);
    List list;
    for (std::int64_t slot = 1; slot <= 30; slot += 2) {
      const auto row = static_cast<std::int64_t>(random() % 20);
      list.add(slot, row);
      std::memcpy(expected.data() + slot * stride, staging.data + row * stride, static_cast<std::size_t>(stride));
    }
    for (const std::int64_t slot : {std::int64_t{0}, std::int64_t{31}, std::int64_t{-1}, INT64_MAX, INT64_MIN})
      list.add(slot, 0);
    for (const std::int64_t row : {std::int64_t{20}, std::int64_t{-1}, INT64_MAX, INT64_MIN}) list.add(2, row);
    list.copy(staging, slab.data, 30, stride);
    CHECK(std::memcmp(expected.data(), slab.data, slab.size) == 0);
  }
}

TEST(stores_go_to_their_words) {
  Bytes buckets(3 * 64);
  std::memset(buckets.data, 0, buckets.size);
  List list;
  for (const std::int64_t at : {std::int64_t{0}, std::int64_t{7}, std::int64_t{23}}) list.add(at, ~at);
  for (const std::int64_t at : {std::int64_t{24}, std::int64_t{-1}, INT64_MAX, INT64_MIN}) list.add(at, 1);
  list.store(reinterpret_cast<std::uint64_t*>(buckets.data), 3);
  for (std::int64_t at = 0; at < 24; ++at) {
    std::int64_t value;
    std::memcpy(&value, buckets.data + 8 * at, 8);
    CHECK(value == (at == 0 || at == 7 || at == 23 ? ~at : 0));
  }
  // A count beyond the list, or below none.
  for (const auto& [count, room] : {std::pair{INT64_MAX, std::int64_t{1}}, {INT64_MIN, std::int64_t{7}}}) {
    emberline::publish_stores_share(list.entries.data(), &count, room,
                                    reinterpret_cast<emberline::uint64_t*>(buckets.data), 3, 0, 1);
  }
}

TEST(a_copy_of_the_hosts_buckets_is_searched_as_the_host_does) {
  std::mt19937 random(2);
  for (int trial = 0; trial < 100; ++trial) {
    const std::uint64_t count = 2 + random() % 20;
    emberline::CacheBuckets host(count);
    const std::vector<std::int64_t> ids = random_ids(random, static_cast<std::int64_t>(count) * 6);
    std::uint32_t slots = 0;
    for (const std::int64_t id : ids) {
      const std::uint32_t table = random() % 3;
      const std::uint64_t mixed = emberline::mix_owner(id, emberline::table_salt(table));
      const emberline::CacheBucket* where = nullptr;
      if (host.find(id, table, mixed, &where).at >= 0) continue;
      bool placed = false;
      for (emberline::CacheBucket* bucket : {&host.first(mixed), &host.second(mixed)}) {
        for (int at = 0; at < 4 && !placed; ++at) {
          if (emberline::word::slot(bucket->words[at].load()) != 0) continue;
          const std::uint64_t flags = bucket->words[at].load() & emberline::word::kFlags;
          bucket->ids[at].store(id);
          bucket->words[at].store(emberline::word::make(++slots, table, static_cast<std::uint8_t>(random())) | flags);
          if (bucket != &host.first(mixed)) host.first(mixed).words[0].fetch_or(emberline::word::kOverflow);
          placed = true;
        }
      }
    }
    Bytes buckets(static_cast<std::int64_t>(count) * 64);
    std::memset(buckets.data, 0, buckets.size);
    List list;
    for (std::uint64_t bucket = 0; bucket < count; ++bucket) {
      for (int at = 0; at < 4; ++at) {
        list.add(static_cast<std::int64_t>(bucket) * 8 + at, host.bucket(bucket).ids[at].load());
        list.add(static_cast<std::int64_t>(bucket) * 8 + 4 + at,
                 static_cast<std::int64_t>(host.bucket(bucket).words[at].load()));
      }
    }
    list.store(reinterpret_cast<std::uint64_t*>(buckets.data), static_cast<std::int64_t>(count));
    const emberline::GpuBuckets gpu{reinterpret_cast<const emberline::uint64_t*>(buckets.data), count};
    for (const std::int64_t id : ids) {
      for (std::uint32_t table = 0; table < 4; ++table) {
        const std::uint64_t mixed = emberline::mix_owner(id, emberline::table_salt(table));
        const emberline::CacheBucket* where = nullptr;
        const emberline::Match expected = host.find(id, table, mixed, &where);
        const emberline::Match match = emberline::find_unless_moving(gpu, id, table, mixed);
        CHECK(match.at == expected.at && match.word == expected.word);
      }
    }
  }
}

namespace {

constexpr std::int64_t kRowWords = 8;
constexpr std::int64_t kStride = 8 * kRowWords;
constexpr std::int64_t kBuckets = 6;
constexpr std::int64_t kPositions = 4 * kBuckets;
constexpr std::int64_t kSlots = 2 * kPositions;
constexpr int kReaders = 3;
constexpr std::uint32_t kTables = 2;

// A row that says whose it is, in every word.
std::uint64_t row_word(std::int64_t id, std::uint32_t table, std::uint64_t version) {
  return emberline::mix(emberline::mix_owner(id, table) + version);
}

// The host's side: an index of its own, the sets of changes, the grace periods.
class Host {
 public:
  Host() : buckets_(kBuckets * 64), slab_((kSlots + 1) * kStride), staging_(kPositions * kStride) {
    std::memset(buckets_.data, 0, buckets_.size);
    std::memset(slab_.data, 0xFF, slab_.size);
    for (std::int64_t slot = kSlots; slot > 0; --slot) free_.push_back(slot);
  }

  const std::uint64_t* buckets() const { return reinterpret_cast<const std::uint64_t*>(buckets_.data); }
  const std::uint8_t* row(std::uint32_t slot) const { return slab_.data + slot * kStride; }

  // One set of changes, by the protocol of publish.cuh.
  void change(std::mt19937& random, std::array<std::atomic<std::uint64_t>, kReaders>& sections) {
    List rows, emptied, ids, words;
    std::vector<std::int64_t> leaving;
    for (std::int64_t position = 0; position < kPositions; ++position) {
      std::optional<Owner>& owner = owners_[static_cast<std::size_t>(position)];
      const std::int64_t word = position / 4 * 8 + 4 + position % 4;
      if (owner && random() % 3 == 0) {  // leaves, and somebody else comes
        emptied.add(word, static_cast<std::int64_t>(flags(position)));
        leaving.push_back(owner->slot);
        owner.reset();
      } else if (owner && random() % 3 == 0) {
        leaving.push_back(owner->slot);
        owner = stage(rows, owner->id, owner->table);
        emptied.add(word, static_cast<std::int64_t>(word_of(position)));
      }
    }
    for (int newcomer = 0; newcomer < 8; ++newcomer) {
      const auto id = static_cast<std::int64_t>(random() % 16) - 8;
      const std::uint32_t table = random() % kTables;
      const std::int64_t position = place(id, table);
      if (position < 0) continue;
      owners_[static_cast<std::size_t>(position)] = stage(rows, id, table);
      ids.add(position / 4 * 8 + position % 4, id);
      arrived_.push_back(position);
    }
    // Flags of buckets whose owners go to their second bucket: with the emptied words.
    for (std::int64_t bucket = 0; bucket < kBuckets; ++bucket) {
      const std::uint64_t own = flags(4 * bucket);
      const std::uint64_t there = buckets()[bucket * 8 + 4];
      bool listed = false;
      for (std::size_t e = 0; e < emptied.entries.size(); e += 2) {
        if (emptied.entries[e] != bucket * 8 + 4) continue;
        listed = true;
        emptied.entries[e + 1] |= static_cast<std::int64_t>(own);
      }
      if (!listed && own != (there & emberline::word::kFlags)) {
        emptied.add(bucket * 8 + 4, static_cast<std::int64_t>((there & ~emberline::word::kFlags) | own));
      }
    }
    for (const std::int64_t position : arrived_) {
      words.add(position / 4 * 8 + 4 + position % 4, static_cast<std::int64_t>(word_of(position)));
    }
    arrived_.clear();

    auto* const to = reinterpret_cast<std::uint64_t*>(buckets_.data);
    // Who was in has left, and who comes in sees what was stored.
    const auto grace = [&] {
      for (std::atomic<std::uint64_t>& section : sections) {
        const std::uint64_t seen = section.fetch_add(0, std::memory_order_seq_cst);
        while (seen % 2 == 1 && section.load(std::memory_order_acquire) == seen) std::this_thread::yield();
      }
    };
    rows.copy(staging_, slab_.data, kSlots, kStride);
    grace();
    emptied.store(to, kBuckets);
    grace();
    ids.store(to, kBuckets);
    grace();
    words.store(to, kBuckets);
    free_.insert(free_.end(), leaving.begin(), leaving.end());
  }

  // At rest every owner is found.
  bool all_found() const {
    const emberline::GpuBuckets gpu{buckets(), kBuckets};
    for (const std::optional<Owner>& owner : owners_) {
      if (!owner) continue;
      const std::uint64_t mixed = emberline::mix_owner(owner->id, emberline::table_salt(owner->table));
      const emberline::Match match = emberline::find_unless_moving(gpu, owner->id, owner->table, mixed);
      if (match.at < 0 || emberline::word::slot(match.word) != owner->slot) return false;
    }
    return true;
  }

 private:
  struct Owner {
    std::int64_t id;
    std::uint32_t table;
    std::int64_t slot;
  };

  Owner stage(List& rows, std::int64_t id, std::uint32_t table) {
    const std::int64_t slot = free_.back();
    free_.pop_back();
    const std::int64_t at = rows.count();
    const std::uint64_t version = ++version_;
    for (std::int64_t w = 0; w < kRowWords; ++w) {
      const std::uint64_t value = w == 0 ? version : row_word(id, table, version);
      std::memcpy(staging_.data + at * kStride + 8 * w, &value, 8);
    }
    rows.add(slot, at);
    return {id, table, slot};
  }

  // A position that is empty, or -1: the index is full there, or the owner is in it.
  std::int64_t place(std::int64_t id, std::uint32_t table) {
    for (const std::optional<Owner>& owner : owners_) {
      if (owner && owner->id == id && owner->table == table) return -1;
    }
    const std::uint64_t mixed = emberline::mix_owner(id, emberline::table_salt(table));
    const auto head = static_cast<std::int64_t>(emberline::first_bucket(mixed, kBuckets));
    for (const std::int64_t bucket : {head, static_cast<std::int64_t>(emberline::second_bucket(mixed, kBuckets))}) {
      for (std::int64_t position = 4 * bucket; position < 4 * bucket + 4; ++position) {
        if (owners_[static_cast<std::size_t>(position)]) continue;
        if (bucket != head) flags_[static_cast<std::size_t>(head)] = emberline::word::kOverflow;
        return position;
      }
    }
    return -1;
  }

  std::uint64_t flags(std::int64_t position) const {
    return position % 4 == 0 ? flags_[static_cast<std::size_t>(position / 4)] : 0;
  }
  std::uint64_t word_of(std::int64_t position) const {
    const Owner& owner = *owners_[static_cast<std::size_t>(position)];
    return emberline::word::make(static_cast<std::uint32_t>(owner.slot), owner.table, 3) | flags(position);
  }

  Bytes buckets_, slab_, staging_;
  std::array<std::optional<Owner>, kPositions> owners_;
  std::array<std::uint64_t, kBuckets> flags_{};
  std::vector<std::int64_t> free_, arrived_;
  std::uint64_t version_ = 0;
};

}  // namespace

TEST(lookups_beside_a_publisher_get_whole_rows_of_their_own_ids) {
  Host host;
  std::array<std::atomic<std::uint64_t>, kReaders> sections{};
  std::atomic<bool> stop{false};
  std::atomic<std::uint64_t> hits{0}, wrong{0};
  std::vector<std::thread> readers;
  for (int reader = 0; reader < kReaders; ++reader) {
    readers.emplace_back([&, reader] {
      std::mt19937 random(static_cast<std::uint32_t>(reader));
      const emberline::GpuBuckets gpu{host.buckets(), kBuckets};
      while (!stop.load()) {
        // A section stands for a launch: in the order that an event would give.
        sections[static_cast<std::size_t>(reader)].fetch_add(1, std::memory_order_seq_cst);
        for (int lookup = 0; lookup < 32; ++lookup) {
          const auto id = static_cast<std::int64_t>(random() % 16) - 8;
          const std::uint32_t table = random() % kTables;
          const std::uint64_t mixed = emberline::mix_owner(id, emberline::table_salt(table));
          const emberline::Match match = emberline::find_unless_moving(gpu, id, table, mixed);
          if (match.at < 0) continue;
          hits.fetch_add(1, std::memory_order_relaxed);
          std::uint64_t words[kRowWords];
          std::memcpy(words, host.row(emberline::word::slot(match.word)), sizeof(words));
          for (std::int64_t w = 1; w < kRowWords; ++w) wrong += words[w] != row_word(id, table, words[0]);
        }
        sections[static_cast<std::size_t>(reader)].fetch_add(1, std::memory_order_seq_cst);
        std::this_thread::yield();  // outside, or the publisher waits for the scheduler
      }
    });
  }
  std::mt19937 random(99);
  int unfound = 0;
  // So many sets, and until the readers have seen enough of them.
  for (int set = 0; set < 50000 || hits.load() < 500000; ++set) {
    host.change(random, sections);
    unfound += !host.all_found();
  }
  stop = true;
  for (std::thread& reader : readers) reader.join();
  CHECK(unfound == 0);
  CHECK(wrong == 0);
}

RUN_ALL_TESTS()
