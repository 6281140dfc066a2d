// Places a new owner in the index: its first bucket, its second, or a place that another gives up for its own other
// bucket.
#include <vector>

#include "cache/cache.h"

namespace emberline {
namespace {

constexpr std::size_t kSearchBuckets = 64;  // buckets looked at for a chain of moves
constexpr int kAttempts = 8;

void flag(CacheBucket& bucket, std::uint64_t flags) { bucket.words[0].store(flags, std::memory_order_release); }

}  // namespace

std::uint64_t& Cache::changed(const CacheBucket& bucket, int at) {
  const auto position = reinterpret_cast<std::uintptr_t>(&bucket) / sizeof(CacheBucket) * kCacheBucketIds;
  return changed_[mix(position + static_cast<std::uint64_t>(at)) & (changed_.size() - 1)];
}

// Returns whether all readers that saw the position's last change of owner have left (buckets.h).
bool Cache::may_change_owner(const CacheBucket& bucket, int at) {
  if (grace_.passed(changed(bucket, at))) return true;
  blocked_ = true;
  return false;
}

bool Cache::try_bucket(CacheBucket& bucket, std::int64_t id, std::uint64_t mixed, std::uint64_t owner) {
  for (int at = 0; at < kCacheBucketIds; ++at) {
    if (word::slot(bucket.words[at].load(std::memory_order_relaxed)) != 0 || !may_change_owner(bucket, at)) continue;
    if (CacheBucket& head = fresh().first(mixed); &bucket != &head) {
      flag(head, head.words[0].load(std::memory_order_relaxed) | word::kOverflow);
    }
    bucket.ids[at].store(id, std::memory_order_release);
    store_word(bucket, at, owner);
    changed(bucket, at) = grace_.group();
    return true;
  }
  return false;
}

bool Cache::try_place(std::int64_t id, std::uint64_t mixed, std::uint64_t owner) {
  return try_bucket(fresh().first(mixed), id, mixed, owner) || try_bucket(fresh().second(mixed), id, mixed, owner) ||
         displace(id, mixed, owner);
}

// Breadth first over the buckets that the owners in the way could move to. The chain of moves runs from its far end, so
// that every owner stands somewhere at every moment.
bool Cache::displace(std::int64_t id, std::uint64_t mixed, std::uint64_t owner) {
  struct Step {
    CacheBucket* bucket;
    int parent;  // the step whose owner `at` would move into this bucket
    int at;
  };
  std::vector<Step> steps{{&fresh().first(mixed), -1, 0}, {&fresh().second(mixed), -1, 0}};
  for (std::size_t current = 0; current < steps.size(); ++current) {
    CacheBucket* const bucket = steps[current].bucket;
    for (int at = 0; at < kCacheBucketIds; ++at) {
      const std::uint64_t held = bucket->words[at].load(std::memory_order_relaxed);
      // An empty position here was changed too recently; one that is held must be free to change again.
      if (word::slot(held) == 0 || !may_change_owner(*bucket, at)) continue;
      const std::uint64_t other = mixed_of(bucket->ids[at].load(std::memory_order_relaxed), word::table(held));
      CacheBucket& target = &fresh().first(other) == bucket ? fresh().second(other) : fresh().first(other);
      bool known = false;
      for (const Step& step : steps) known = known || step.bucket == &target;
      if (known) continue;

      CacheBucket* to = &target;
      int from_step = static_cast<int>(current), from_at = at;
      bool moved_one = false;
      while (from_step >= 0) {
        const Step step = steps[static_cast<std::size_t>(from_step)];
        CacheBucket& from = *step.bucket;
        const std::int64_t moved_id = from.ids[from_at].load(std::memory_order_relaxed);
        const std::uint64_t moved = from.words[from_at].load(std::memory_order_relaxed) & ~word::kFlags;
        const std::uint64_t moved_mixed = mixed_of(moved_id, word::table(moved));
        if (!try_bucket(*to, moved_id, moved_mixed, moved)) break;
        moved_one = true;
        if (CacheBucket& head = fresh().first(moved_mixed); to == &head) {
          flag(head, head.words[0].load(std::memory_order_relaxed) + word::kMove);
        }
        store_word(from, from_at, 0);
        to = &from;
        from_at = step.at;
        from_step = step.parent;
      }
      if (moved_one) return from_step < 0 && try_bucket(*to, id, mixed, owner);
      if (steps.size() < kSearchBuckets) steps.push_back({&target, static_cast<int>(current), at});
    }
  }
  return false;
}

// False when the buckets in question are full.
bool Cache::place(std::int64_t id, std::uint64_t mixed, std::uint64_t owner) {
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    blocked_ = false;
    if (try_place(id, mixed, owner)) return true;
    if (!blocked_) return false;
    // Something was free, or could have moved, but changed owner while readers are in: let them leave. More than once
    // only where a chain of moves came upon a change of its own, by the hash under which changes are remembered.
    grace_.wait(grace_.group());
  }
  return false;
}

Cache::Place Cache::coldest_of_two(std::uint64_t mixed) const {
  Place victim;
  for (CacheBucket* bucket : {&fresh().first(mixed), &fresh().second(mixed)}) {
    for (int at = 0; at < kCacheBucketIds; ++at) {
      const std::uint64_t held = bucket->words[at].load(std::memory_order_relaxed);
      if (word::slot(held) == 0) continue;
      if (victim.bucket == nullptr || word::count(held) < word::count(victim.word())) victim = {bucket, at};
    }
  }
  return victim;
}

}  // namespace emberline
