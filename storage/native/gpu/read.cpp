// Reports of a GPU's cache: places of ids, the hottest of them, the content of the device, its integrity.
#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>
#include <unordered_set>

#include "gpu/gpu_cache.h"

namespace emberline {
namespace {

constexpr std::size_t kReadAhead = 16;  // buckets prefetched ahead

}  // namespace

void GpuCache::contains_any(std::uint32_t table, std::uint32_t base_tables, const std::int64_t* ids, std::size_t n,
                            bool* any) const {
  std::fill_n(any, n, false);
  for (std::uint64_t number = table % base_tables; number < tables(); number += base_tables) {
    const auto of = static_cast<std::uint32_t>(number);
    if (rows_of(of) == 0) continue;
    for (std::size_t i = 0; i < n; ++i) {
      if (i + kReadAhead < n) buckets_.prefetch(mixed_of(ids[i + kReadAhead], of));
      any[i] = any[i] || buckets_.find(ids[i], of, mixed_of(ids[i], of)).bucket != nullptr;
    }
  }
}

HotIds GpuCache::hot_ids(std::size_t limit, std::uint32_t base_tables) const {
  return hottest(limit, [this, base_tables](auto&& visit) {
    for (std::uint64_t index = 0; index < buckets_.count(); ++index) {
      const GpuBucket& bucket = buckets_.bucket(index);
      for (int at = 0; at < kCacheBucketIds; ++at) {
        const std::uint64_t held = bucket.words[at];
        if (word::slot(held) == 0 || word::slot(held) == kAskHost || word::table(held) >= base_tables) continue;
        visit(bucket.ids[at], held);
      }
    }
  });
}

std::vector<std::uint8_t> GpuCache::published_buckets() const {
  std::vector<std::uint8_t> bytes(buckets_.count() * sizeof(GpuBucket));
  const auto put = [&bytes](std::uint64_t bucket, int number, std::uint64_t value) {
    std::memcpy(bytes.data() + bucket * sizeof(GpuBucket) + static_cast<std::size_t>(number) * 8, &value, 8);
  };
  for (std::uint64_t index = 0; index < buckets_.count(); ++index) {
    const GpuBucket& bucket = buckets_.bucket(index);
    for (int at = 0; at < kCacheBucketIds; ++at) {
      put(index, at, static_cast<std::uint64_t>(bucket.ids[at]));
      put(index, kCacheBucketIds + at, gpu_word::published(bucket.words[at]));
    }
  }
  for (const std::vector<Change>* changes : {&changes_, &taken_}) {
    for (const Change& before : *changes) {
      const int at = static_cast<int>(before.position % kCacheBucketIds);
      put(before.position / kCacheBucketIds, at, static_cast<std::uint64_t>(before.id));
      put(before.position / kCacheBucketIds, kCacheBucketIds + at, before.word);
    }
  }
  return bytes;
}

void GpuCache::check_integrity() const {
  struct Owner {
    std::int64_t id;
    std::uint32_t table;
    bool operator==(const Owner&) const = default;
  };
  struct Hash {
    std::size_t operator()(const Owner& owner) const { return mixed_of(owner.id, owner.table); }
  };
  const auto broken = [](const std::string& what) { throw std::logic_error(what); };
  std::unordered_set<Owner, Hash> owners;
  std::vector<std::uint64_t> rows(tables(), 0);
  std::vector<std::uint32_t> holders(std::size_t{slots_.used()} + 1, 0);
  std::vector<bool> staged(holders.size(), false);
  for (std::uint32_t number = 0; number < staged_.size(); ++number) {
    if (staged[staged_.slot(number)]) broken("a slot has two rows in staging");
    staged[staged_.slot(number)] = true;
  }
  std::uint64_t touched = 0;
  for (std::uint64_t index = 0; index < buckets_.count(); ++index) {
    const GpuBucket& bucket = buckets_.bucket(index);
    for (int at = 0; at < kCacheBucketIds; ++at) {
      const std::uint64_t held = bucket.words[at];
      const std::uint32_t slot = word::slot(held);
      touched += (held & gpu_word::kTouched) != 0;
      if (slot == 0) continue;
      const Owner owner{bucket.ids[at], word::table(held)};
      const std::string name = "id " + std::to_string(owner.id) + " of table " + std::to_string(owner.table);
      if (owner.table >= tables()) broken(name + ": there is no such table");
      if (!owners.insert(owner).second) broken(name + " stands in the index twice");
      const std::uint64_t mixed = mixed_of(owner.id, owner.table);
      if (&buckets_.first(mixed) != &bucket) {
        if (&buckets_.second(mixed) != &bucket) broken(name + " stands in a bucket that is not its own");
        if ((buckets_.first(mixed).words[0] & word::kOverflow) == 0) {
          broken(name + " is in its second bucket, and the first does not say so");
        }
      }
      ++rows[owner.table];
      if (slot == kAskHost) {
        if ((held & gpu_word::kPinned) == 0) broken(name + " asks the host and is not pinned");
        continue;
      }
      if (slot > slots_.used()) broken(name + " has slot " + std::to_string(slot) + ", which was never taken");
      ++holders[slot];
      if (((held & gpu_word::kFresh) != 0) != staged[slot]) broken(name + " does not know whether its row is staged");
      if (staged[slot] && (held & gpu_word::kTouched) == 0) {
        broken(name + " came in this set, which does not know of it");
      }
    }
  }
  std::uint64_t held_slots = 0;
  for (std::uint32_t slot = 1; slot < holders.size(); ++slot) {
    if (holders[slot] != slots_.holders_of(slot)) {
      broken("slot " + std::to_string(slot) + " counts " + std::to_string(slots_.holders_of(slot)) +
             " holders, and has " + std::to_string(holders[slot]));
    }
    held_slots += holders[slot] != 0;
    if (staged[slot] && holders[slot] == 0) broken("a row is staged for a free slot, " + std::to_string(slot));
  }
  slots_.each_unheld([&](std::uint32_t slot) {
    if (slot == 0 || slot > slots_.used() || holders[slot] != 0) {
      broken("slot " + std::to_string(slot) + " is held and listed as free, or listed twice");
    }
    holders[slot] = 1;
  });
  for (std::uint32_t slot = 1; slot < holders.size(); ++slot) {
    if (holders[slot] == 0) broken("slot " + std::to_string(slot) + " is lost");
  }
  if (held_slots != slots_.held() || held_slots > capacity_) {
    broken(std::to_string(held_slots) + " slots are held, " + std::to_string(slots_.held()) + " counted, of " +
           std::to_string(capacity_));
  }
  if (!staged_.is_sound()) broken("staging: there are more or fewer bytes than rows, or a slot has another number");
  if (touched != changes_.size()) broken("the set lists other positions than those that are marked");
  for (std::uint32_t table = 0; table < tables(); ++table) {
    if (rows[table] != rows_of(table)) {
      broken("table " + std::to_string(table) + " counts " + std::to_string(rows_of(table)) +
             " entries, the index holds " + std::to_string(rows[table]));
    }
  }
  if (owners.size() != size()) {
    broken("size says " + std::to_string(size()) + ", the index holds " + std::to_string(owners.size()));
  }
}

}  // namespace emberline
