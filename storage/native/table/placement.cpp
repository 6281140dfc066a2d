// Places a new id: in its first bucket, its second, a place that another id gives up for its own other bucket, a larger
// array.
#include <string>

#include "table/table.h"

namespace emberline {
namespace {

constexpr std::size_t kSearchBuckets = 256;  // buckets looked at for a chain of moves
// Grown at 85% to 61%: 15 to 21 bytes of index a row.
constexpr std::uint64_t kLoadNum = 17, kLoadDen = 20;
constexpr std::uint64_t larger(std::uint64_t count) { return count * 7 / 5 + 1; }
// Below this load a failed placement means that the ids crowd the same buckets, which a larger array would not help.
constexpr std::uint64_t kCrowdedLoad = 8;  // an eighth of the positions

}  // namespace

// Returns whether all readers that saw the last change of owner have left (buckets.h). An array that no reader has yet
// may change freely.
bool Table::may_change_owner(const BucketArray& array, const Bucket& bucket, int at, bool shared) {
  if (!shared) return true;
  const auto position =
      static_cast<std::uint64_t>(&bucket - &array.bucket(0)) * kBucketIds + static_cast<std::uint64_t>(at);
  if (grace_.passed(changed_[mix(position) & (changed_.size() - 1)])) return true;
  blocked_ = true;
  return false;
}

void Table::set_owner(const BucketArray& array, Bucket& bucket, int at, std::int64_t id, std::uint32_t slot,
                      bool shared) {
  bucket.ids[at].store(id, std::memory_order_release);
  bucket.slots[at].store(slot, std::memory_order_release);
  if (!shared) return;
  const auto position =
      static_cast<std::uint64_t>(&bucket - &array.bucket(0)) * kBucketIds + static_cast<std::uint64_t>(at);
  changed_[mix(position) & (changed_.size() - 1)] = grace_.group();
}

bool Table::try_bucket(BucketArray& array, Bucket& bucket, std::int64_t id, std::uint32_t slot, bool shared) {
  for (int at = 0; at < kBucketIds; ++at) {
    if (bucket.slots[at].load(std::memory_order_relaxed) != kEmptySlot) continue;
    if (!may_change_owner(array, bucket, at, shared)) continue;
    if (&bucket != &array.first(mix_id(id))) {
      Bucket& head = array.first(mix_id(id));
      head.version.store(head.version.load(std::memory_order_relaxed) | kOverflowBit, std::memory_order_release);
    }
    set_owner(array, bucket, at, id, slot, shared);
    return true;
  }
  return false;
}

bool Table::try_place(BucketArray& array, std::int64_t id, std::uint32_t slot, bool shared) {
  const std::uint64_t mixed = mix_id(id);
  return try_bucket(array, array.first(mixed), id, slot, shared) ||
         try_bucket(array, array.second(mixed), id, slot, shared) || displace(array, id, slot, shared);
}

// Breadth first over the buckets that the ids in the way could move to; the chain of moves runs from its far end, so
// that every id stands somewhere at every moment.
bool Table::displace(BucketArray& array, std::int64_t id, std::uint32_t slot, bool shared) {
  struct Step {
    Bucket* bucket;
    int parent;  // step whose id `at` would move into this bucket
    int at;
  };
  const std::uint64_t mixed = mix_id(id);
  std::vector<Step> steps{{&array.first(mixed), -1, 0}, {&array.second(mixed), -1, 0}};
  const auto other_bucket = [&](const Bucket& bucket, std::int64_t moved) -> Bucket& {
    const std::uint64_t m = mix_id(moved);
    return &array.first(m) == &bucket ? array.second(m) : array.first(m);
  };
  for (std::size_t current = 0; current < steps.size(); ++current) {
    Bucket* bucket = steps[current].bucket;
    for (int at = 0; at < kBucketIds; ++at) {
      const std::uint32_t held = bucket->slots[at].load(std::memory_order_relaxed);
      // An empty position here was changed too recently; one that is held must be free to change again.
      if (held == kEmptySlot || !may_change_owner(array, *bucket, at, shared)) continue;
      Bucket& target = other_bucket(*bucket, bucket->ids[at].load(std::memory_order_relaxed));
      bool known = false;
      for (const Step& step : steps) known = known || step.bucket == &target;
      if (known) continue;

      int from_step = static_cast<int>(current), from_at = at;
      Bucket* to = &target;
      bool moved_first = false;
      while (from_step >= 0) {
        Bucket& from = *steps[static_cast<std::size_t>(from_step)].bucket;
        const std::int64_t moved = from.ids[from_at].load(std::memory_order_relaxed);
        const std::uint32_t moved_slot = from.slots[from_at].load(std::memory_order_relaxed);
        if (!try_bucket(array, *to, moved, moved_slot, shared)) break;
        moved_first = true;
        Bucket& head = array.first(mix_id(moved));
        if (to == &head) {
          head.version.store(head.version.load(std::memory_order_relaxed) + kVersionStep, std::memory_order_release);
        }
        from.slots[from_at].store(kEmptySlot, std::memory_order_release);
        to = &from;
        const Step& step = steps[static_cast<std::size_t>(from_step)];
        from_at = step.at;
        from_step = step.parent;
      }
      if (moved_first) return from_step < 0 && try_bucket(array, *to, id, slot, shared);
      if (steps.size() < kSearchBuckets) steps.push_back({&target, static_cast<int>(current), at});
    }
  }
  return false;
}

// False when there is no place and the index may not grow.
bool Table::place(std::int64_t id, std::uint32_t slot, bool may_grow) {
  if (may_grow && size() * kLoadDen > buckets().count() * kBucketIds * kLoadNum) grow(larger(buckets().count()));
  for (;;) {
    blocked_ = false;
    if (try_place(buckets(), id, slot, true)) return true;
    // Something was free, or could have moved, but changed owner while readers are in: let them leave.
    if (blocked_) {
      grace_.wait(grace_.group());
      if (try_place(buckets(), id, slot, true)) return true;
    }
    if (!may_grow) return false;
    if (size() * kCrowdedLoad < buckets().count() * kBucketIds) {
      throw CapacityExceeded("id " + std::to_string(id) + " has no place: too many ids choose the same buckets");
    }
    grow(larger(buckets().count()));
  }
}

// Builds a larger array beside the one in use and publishes it; readers that hold the old one finish on it.
void Table::grow(std::uint64_t count) {
  const BucketArray& old = buckets();
  for (;; count = larger(count)) {
    if (count > UINT32_MAX) throw CapacityExceeded("the index has no room: too many ids choose the same buckets");
    auto fresh = std::make_unique<BucketArray>(count);
    bool complete = true;
    for (std::uint64_t index = 0; index < old.count() && complete; ++index) {
      const Bucket& bucket = old.bucket(index);
      for (int at = 0; at < kBucketIds && complete; ++at) {
        const std::uint32_t slot = bucket.slots[at].load(std::memory_order_relaxed);
        if (slot != kEmptySlot)
          complete = try_place(*fresh, bucket.ids[at].load(std::memory_order_relaxed), slot, false);
      }
    }
    if (!complete) continue;
    buckets_.store(fresh.get(), std::memory_order_release);
    old_buckets_.emplace_back(grace_.group(), std::move(owned_buckets_));
    owned_buckets_ = std::move(fresh);
    reclaim();
    return;
  }
}

}  // namespace emberline
