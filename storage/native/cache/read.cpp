// Reports of a cache: rows of a table, the hottest ids, its integrity.
#include <algorithm>
#include <stdexcept>
#include <string>
#include <unordered_set>

#include "cache/cache.h"

namespace emberline {
namespace {

constexpr std::uint64_t kPieceBuckets = 16384;  // read in one turn

}  // namespace

CachedRows Cache::export_batch(std::uint32_t table, std::uint64_t cursor, std::size_t limit) const {
  CachedRows batch;
  for (std::uint64_t position = cursor;;) {
    const Turn turn(*this);
    const std::uint64_t end = bucket_count() * kCacheBucketIds;
    const std::uint64_t stop = std::min(end, position + kPieceBuckets * kCacheBucketIds);
    for (; position < stop && batch.ids.size() < limit; ++position) {
      const CacheBucket& bucket = bucket_at(position / kCacheBucketIds);
      const std::uint64_t held = bucket.words[position % kCacheBucketIds].load(std::memory_order_relaxed);
      if (word::slot(held) == 0 || word::table(held) != table) continue;
      batch.ids.push_back(bucket.ids[position % kCacheBucketIds].load(std::memory_order_relaxed));
      const char* row = slots_.row(word::slot(held));
      batch.rows.insert(batch.rows.end(), row, row + row_bytes_);
      batch.freq.push_back(FrequencyPolicy::to_uses(word::count(held)));
    }
    if (position < end && batch.ids.size() < limit) continue;
    batch.next_cursor = position < end ? static_cast<std::int64_t>(position) : -1;
    return batch;
  }
}

HotIds Cache::hot_ids(std::size_t limit) const {
  return hottest(limit, [this](auto&& visit) {
    for (std::uint64_t from = 0;; from += kPieceBuckets) {
      const Turn turn(*this);
      if (from >= bucket_count()) return;
      for (std::uint64_t index = from; index < std::min(bucket_count(), from + kPieceBuckets); ++index) {
        const CacheBucket& bucket = bucket_at(index);
        for (int at = 0; at < kCacheBucketIds; ++at) {
          const std::uint64_t held = bucket.words[at].load(std::memory_order_relaxed);
          if (word::slot(held) != 0) visit(bucket.ids[at].load(std::memory_order_relaxed), held);
        }
      }
    }
  });
}

void Cache::check_integrity() const {
  const Turn turn(*this);
  struct Owner {
    std::int64_t id;
    std::uint32_t table;
    bool operator==(const Owner&) const = default;
  };
  struct Hash {
    std::size_t operator()(const Owner& owner) const { return mixed_of(owner.id, owner.table); }
  };
  std::unordered_set<Owner, Hash> owners;
  std::vector<std::uint64_t> rows(tables(), 0);
  std::vector<bool> used(std::size_t{slots_.used()} + 1);
  const auto claim = [&](std::uint32_t slot, const char* by) {
    if (slot == 0 || slot > slots_.used() || used[slot]) {
      throw std::logic_error("slot " + std::to_string(slot) + " is out of range or held twice, now by " + by);
    }
    used[slot] = true;
  };
  for (const CacheBuckets* array : {buckets_.get(), old_buckets_.get()}) {
    if (array == nullptr) continue;
    for (std::uint64_t index = 0; index < array->count(); ++index) {
      const CacheBucket& bucket = array->bucket(index);
      for (int at = 0; at < kCacheBucketIds; ++at) {
        const std::uint64_t held = bucket.words[at].load(std::memory_order_relaxed);
        if (word::slot(held) == 0) continue;
        const Owner owner{bucket.ids[at].load(std::memory_order_relaxed), word::table(held)};
        const std::string name = "id " + std::to_string(owner.id) + " of table " + std::to_string(owner.table);
        if (owner.table >= tables()) throw std::logic_error(name + ": there is no such table");
        if (!owners.insert(owner).second) throw std::logic_error(name + " stands in the index twice");
        const std::uint64_t mixed = mixed_of(owner.id, owner.table);
        if (&array->first(mixed) != &bucket) {
          if (&array->second(mixed) != &bucket)
            throw std::logic_error(name + " stands in a bucket that is not its own");
          if ((array->first(mixed).words[0].load() & word::kOverflow) == 0) {
            throw std::logic_error(name + " is in its second bucket, and the first does not say so");
          }
        }
        claim(word::slot(held), "an id");
        ++rows[owner.table];
      }
    }
  }
  slots_.each_unused([&](std::uint32_t slot) { claim(slot, "the free slots"); });
  for (std::size_t slot = 1; slot < used.size(); ++slot) {
    if (!used[slot] && slot <= slots_.most()) throw std::logic_error("slot " + std::to_string(slot) + " is lost");
  }
  for (std::uint32_t table = 0; table < tables(); ++table) {
    if (rows[table] != rows_of(table)) {
      throw std::logic_error("table " + std::to_string(table) + " counts " + std::to_string(rows_of(table)) +
                             " rows, the index holds " + std::to_string(rows[table]));
    }
  }
  if (owners.size() != size()) {
    throw std::logic_error("size says " + std::to_string(size()) + ", the index holds " +
                           std::to_string(owners.size()));
  }
}

}  // namespace emberline
