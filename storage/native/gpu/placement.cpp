// Places a new owner in the index, as cache/placement.cpp does: in its first bucket, its second, or a place that
// another gives up for its own other bucket. Notes every change of a position for the set.
#include "gpu/bucket_locks.h"
#include "gpu/gpu_cache.h"

namespace emberline {
namespace {

constexpr int kSearchBuckets = 64;  // buckets looked at for a chain of moves
constexpr int kMoves = 2;         // moves of a chain where other threads are at work

}  // namespace

void GpuCache::touch(GpuPlace where, std::vector<Change>& changes) {
  std::uint64_t& held = where.bucket->words[where.at];
  if ((held & gpu_word::kTouched) != 0) return;
  changes.push_back({where.bucket->ids[where.at], gpu_word::published(held), buckets_.position(where)});
  held |= gpu_word::kTouched;
}

// Writes a word but for what belongs to the position.
void GpuCache::write(GpuPlace where, std::uint64_t owner) {
  std::uint64_t& held = where.bucket->words[where.at];
  held = (owner & ~gpu_word::kOfPosition) | (held & gpu_word::kOfPosition);
}

void GpuCache::store(GpuPlace where, std::uint64_t owner) {
  touch(where, changes_);
  write(where, owner);
}

// Places an owner in one of its buckets that has a free position; its first bucket knows already if this is the second.
bool GpuCache::fill_place(GpuBucket& bucket, std::int64_t id, std::uint64_t owner, std::vector<Change>& changes) {
  for (int at = 0; at < kCacheBucketIds; ++at) {
    if (word::slot(bucket.words[at]) != 0) continue;
    touch({&bucket, at}, changes);
    write({&bucket, at}, owner);
    bucket.ids[at] = id;
    return true;
  }
  return false;
}

void GpuCache::mark_overflow(GpuBucket& bucket, std::vector<Change>& changes) {
  if ((bucket.words[0] & word::kOverflow) != 0) return;
  touch({&bucket, 0}, changes);
  bucket.words[0] |= word::kOverflow;
}

// The other buckets of a full bucket's owners, on their way; its own number for those that stay.
GpuCache::Others GpuCache::others_of(std::uint64_t index) const {
  Others others;
  const GpuBucket& bucket = buckets_.bucket(index);
  for (int at = 0; at < kCacheBucketIds; ++at) {
    others.bucket[at] = index;
    if ((bucket.words[at] & gpu_word::kPinned) != 0) continue;
    const std::uint64_t mixed = mixed_of(bucket.ids[at], word::table(bucket.words[at]));
    const std::uint64_t first = first_bucket(mixed, buckets_.count());
    others.bucket[at] = first == index ? second_bucket(mixed, buckets_.count()) : first;
    __builtin_prefetch(&buckets_.bucket(others.bucket[at]), 1, 3);
  }
  return others;
}

// Places an owner in its second bucket. Where that is full, the buckets that `place_late` will read are prefetched.
bool GpuCache::place_second(std::int64_t id, std::uint64_t mixed, std::uint64_t owner, BucketLocks& locks,
                            std::vector<Change>& changes) {
  const std::uint64_t index = second_bucket(mixed, buckets_.count());
  const BucketLocks::Held here(locks, index);
  if (fill_place(buckets_.bucket(index), id, owner, changes)) return true;
  for (const std::uint64_t other : others_of(index).bucket) locks.prefetch(other);
  return false;
}

// Places an owner whose first bucket was full and is marked so: in a free position of one of its buckets, or in that of
// another owner that has a free one in its own other bucket, or is given one there.
bool GpuCache::place_late(std::int64_t id, std::uint64_t mixed, std::uint64_t owner, BucketLocks& locks,
                          std::vector<Change>& changes) {
  for (int moves = 1; moves <= kMoves; ++moves) {
    for (const std::uint64_t index : {second_bucket(mixed, buckets_.count()), first_bucket(mixed, buckets_.count())}) {
      const BucketLocks::Held here(locks, index);
      GpuBucket& bucket = buckets_.bucket(index);
      if (fill_place(bucket, id, owner, changes)) return true;
      if (make_place(index, moves, locks, changes)) return fill_place(bucket, id, owner, changes);
    }
  }
  return false;
}

// Empties a position of a full bucket, whose lock the caller holds, by at most `moves` moves. A bucket that another
// thread holds, or the caller already, is left out.
bool GpuCache::make_place(std::uint64_t index, int moves, BucketLocks& locks, std::vector<Change>& changes) {
  GpuBucket& bucket = buckets_.bucket(index);
  const Others others = others_of(index);
  for (int at = 0; at < kCacheBucketIds; ++at) {
    if (others.bucket[at] == index) continue;
    const BucketLocks::Held there(locks, others.bucket[at], std::try_to_lock);
    if (!there.is_held()) continue;
    const std::int64_t id = bucket.ids[at];
    const auto moves_there = [&] {
      return fill_place(buckets_.bucket(others.bucket[at]), id, bucket.words[at], changes);
    };
    if (!moves_there() && !(moves > 1 && make_place(others.bucket[at], moves - 1, locks, changes) && moves_there()))
      continue;
    if (first_bucket(mixed_of(id, word::table(bucket.words[at])), buckets_.count()) == index)
      mark_overflow(bucket, changes);
    touch({&bucket, at}, changes);
    write({&bucket, at}, 0);
    return true;
  }
  return false;
}

bool GpuCache::try_bucket(GpuBucket& bucket, std::int64_t id, std::uint64_t mixed, std::uint64_t owner) {
  if (!fill_place(bucket, id, owner, changes_)) return false;
  if (GpuBucket& head = buckets_.first(mixed); &bucket != &head) mark_overflow(head, changes_);
  return true;
}

// Breadth first over the buckets that the owners in the way could move to.
bool GpuCache::displace(std::int64_t id, std::uint64_t mixed, std::uint64_t owner) {
  struct Step {
    GpuBucket* bucket;
    int parent;  // the step whose owner `at` would move into this bucket
    int at;
  };
  Step steps[kSearchBuckets] = {{&buckets_.first(mixed), -1, 0}, {&buckets_.second(mixed), -1, 0}};
  int known_steps = 2;
  for (int current = 0; current < known_steps; ++current) {
    GpuBucket* const bucket = steps[current].bucket;
    const auto index = static_cast<std::uint64_t>(bucket - &buckets_.bucket(0));
    const Others others = others_of(index);
    for (int at = 0; at < kCacheBucketIds; ++at) {
      if (others.bucket[at] == index) continue;
      GpuBucket& target = buckets_.bucket(others.bucket[at]);
      bool known = false;
      for (int s = 0; s < known_steps; ++s) known = known || steps[s].bucket == &target;
      if (known) continue;
      bool room = false;
      for (int to = 0; to < kCacheBucketIds; ++to) room = room || word::slot(target.words[to]) == 0;
      if (!room) {
        if (known_steps < kSearchBuckets) steps[known_steps++] = {&target, current, at};
        continue;
      }
      // The chain of moves runs from its far end.
      GpuBucket* to = &target;
      for (int step = current, from_at = at; step >= 0;) {
        GpuBucket& from = *steps[step].bucket;
        const std::uint64_t moved = from.words[from_at];
        try_bucket(*to, from.ids[from_at], mixed_of(from.ids[from_at], word::table(moved)), moved);
        store({&from, from_at}, 0);
        to = &from;
        from_at = steps[step].at;
        step = steps[step].parent;
      }
      return try_bucket(*to, id, mixed, owner);
    }
  }
  return false;
}

// Returns the entry to evict for another: the least used of the two buckets.
GpuPlace GpuCache::coldest_of_two(std::uint64_t mixed, bool fresh_too) const {
  GpuPlace victim;
  const std::uint64_t never = gpu_word::kPinned | (fresh_too ? 0 : gpu_word::kFresh);
  for (GpuBucket* bucket : {&buckets_.first(mixed), &buckets_.second(mixed)}) {
    for (int at = 0; at < kCacheBucketIds; ++at) {
      const std::uint64_t held = bucket->words[at];
      if (word::slot(held) == 0 || (held & never) != 0) continue;
      if (victim.bucket == nullptr || word::count(held) < word::count(victim.word())) victim = {bucket, at};
    }
  }
  return victim;
}

// False when there is none, nor can any be made by moves.
bool GpuCache::find_place(std::int64_t id, std::uint64_t mixed, std::uint64_t owner) {
  if (!try_bucket(buckets_.first(mixed), id, mixed, owner) && !try_bucket(buckets_.second(mixed), id, mixed, owner) &&
      !displace(id, mixed, owner)) {
    return false;
  }
  ++size_;
  ++rows_of_[word::table(owner)];
  return true;
}

// False when all who stand in its two buckets have to stay.
bool GpuCache::put(std::int64_t id, std::uint64_t mixed, std::uint64_t owner, bool must) {
  while (!find_place(id, mixed, owner)) {
    GpuPlace victim = coldest_of_two(mixed, false);
    if (victim.bucket == nullptr && (owner & gpu_word::kPinned) != 0) {
      victim = coldest_of_two(mixed, true);
      fresh_evicted_ += victim.bucket != nullptr;
    }
    if (victim.bucket == nullptr || (!must && word::count(victim.word()) >= word::count(owner))) return false;
    evict(victim);
  }
  return true;
}

}  // namespace emberline
