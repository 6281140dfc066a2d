// Verbs over many ids by several threads: within one call no two of them write, or read what another writes, without
// an order.
//
// Searches come first, all of them; then each thread writes the words of its own positions. Newcomers that find no
// place in their first bucket are placed under locks of buckets. What would have to look at more (long chains of moves,
// entries that ask the host, lists of slots) is done by one thread, last.
#include <algorithm>
#include <memory>
#include <stdexcept>
#include <string>

#include "gpu/bucket_locks.h"
#include "gpu/gpu_cache.h"
#include "gpu/parts.h"

namespace emberline {
namespace {

constexpr std::size_t kAhead = 16;  // buckets prefetched ahead

}  // namespace

void GpuCache::find(std::uint32_t table, const std::int64_t* ids, std::size_t n, std::uint32_t* found,
                    std::size_t threads) const {
  const auto mixed = [table](std::int64_t id) { return mixed_of(id, table); };
  in_parts(n, threads, [&](std::size_t, std::size_t from, std::size_t to) {
    buckets_.find_all(ids, from, to, table, mixed, [found](std::size_t i, GpuPlace where) {
      found[i] = where.bucket == nullptr ? 0 : where.slot();
    });
  });
}

// First a bucket belongs to one thread, which fills the free positions of it that are its ids' first choice. Then come
// those that found none there, under locks of buckets.
void GpuCache::insert_absent(std::uint32_t table, const std::int64_t* ids, std::size_t n, std::uint8_t* rows,
                             std::size_t stride, std::shared_ptr<void> owner, std::size_t threads, bool* in) {
  const std::size_t parts = parts_of(n, threads);
  const bool in_bulk = n > 0 && staged_.size() == 0 && n <= slots_.free();
  if (in_bulk) evict_for(n, threads);
  if (!in_bulk || slots_.held() + n > capacity_) return insert(table, ids, n, rows, nullptr, true, in, stride);
  struct Late {
    std::uint32_t at, slot;
  };
  struct Part {
    std::vector<std::uint32_t> own, late;
    std::vector<Change> changes;
    std::size_t placed = 0;
  };
  std::vector<Part> part_of(parts);
  const auto mixed = std::make_unique_for_overwrite<std::uint64_t[]>(n);
  const std::uint64_t held_by =
      word::make(0, table, policy_.from_uses(kDeliberate)) | gpu_word::kPinned | gpu_word::kFresh;
  std::uint32_t* const slots = staged_.lend(rows, stride, static_cast<std::uint32_t>(n), std::move(owner));
  in_parts(n, threads, [&](std::size_t, std::size_t from, std::size_t to) {
    for (std::size_t i = from; i < to; ++i) {
      mixed[i] = mixed_of(ids[i], table);
      slots[i] = slots_.upcoming(static_cast<std::uint32_t>(i));
      slots_.hold(slots[i]);
    }
  });
  slots_.pass(static_cast<std::uint32_t>(n));
  const auto owner_of = [&](std::uint32_t i) { return gpu_word::with_slot(held_by, slots[i]); };
  Workers::shared().run(parts, [&](std::size_t number) {
    Part& part = part_of[number];
    const std::uint64_t first = buckets_.count() * number / parts, last = buckets_.count() * (number + 1) / parts;
    part.own.resize(n);
    std::size_t count = 0;
    for (std::size_t i = 0; i < n; ++i) {
      const std::uint64_t bucket = first_bucket(mixed[i], buckets_.count());
      part.own[count] = static_cast<std::uint32_t>(i);
      count += bucket >= first && bucket < last;
    }
    part.changes.reserve(count);
    for (std::size_t k = 0; k < count; ++k) {
      if (k + kAhead < count) buckets_.prefetch(mixed[part.own[k + kAhead]]);
      const std::uint32_t i = part.own[k];
      GpuBucket& bucket = buckets_.first(mixed[i]);
      in[i] = fill_place(bucket, ids[i], owner_of(i), part.changes);
      part.placed += in[i];
      if (in[i]) continue;
      mark_overflow(bucket, part.changes);
      part.late.push_back(i);
    }
  });
  std::vector<std::uint32_t> second;
  for (Part& part : part_of) {
    second.insert(second.end(), part.late.begin(), part.late.end());
    part.late.clear();
  }
  BucketLocks locks;
  in_parts(second.size(), threads, [&](std::size_t number, std::size_t from, std::size_t to) {
    Part& part = part_of[number];
    for (std::size_t start = from; start < to; start += kAhead) {
      const std::size_t end = std::min(to, start + kAhead);
      for (std::size_t k = end; k < std::min(to, end + kAhead); ++k) {
        buckets_.prefetch_second(mixed[second[k]]);
        locks.prefetch(second_bucket(mixed[second[k]], buckets_.count()));
      }
      for (const auto place : {&GpuCache::place_second, &GpuCache::place_late}) {
        for (std::size_t k = start; k < end; ++k) {
          const std::uint32_t i = second[k];
          if (in[i]) continue;
          in[i] = (this->*place)(ids[i], mixed[i], owner_of(i), locks, part.changes);
          part.placed += in[i];
        }
      }
      for (std::size_t k = start; k < end; ++k) {
        if (!in[second[k]]) part.late.push_back(second[k]);
      }
    }
  });
  const std::uint64_t fresh_evicted = fresh_evicted_;
  for (Part& part : part_of) {
    changes_.insert(changes_.end(), part.changes.begin(), part.changes.end());
    size_ += part.placed;
    rows_of_[table] += part.placed;
    stats_.inserted += part.placed;
  }
  // Rows keep their numbers until one finds no place: slots are looked up before that.
  std::vector<Late> late;
  for (const Part& part : part_of) {
    for (const std::uint32_t i : part.late) late.push_back({i, slots[i]});
  }
  for (std::size_t k = 0; k < late.size(); ++k) {
    if (k + kAhead < late.size()) buckets_.prefetch_second(mixed[late[k + kAhead].at]);
    const auto [i, slot] = late[k];
    in[i] = put(ids[i], mixed[i], gpu_word::with_slot(held_by, slot), true);
    if (!in[i]) release(slot, true);
    stats_.inserted += in[i];
  }
  if (fresh_evicted != fresh_evicted_) check_in(table, ids, n, in);
}

std::size_t GpuCache::adopt(std::uint32_t source, std::uint32_t target, const std::int64_t* ids, std::size_t n,
                            std::size_t threads) {
  struct Pair {
    std::uint64_t from;  // a word
    GpuPlace to;
  };
  struct Part {
    std::vector<GpuPlace> asking;
    std::vector<std::size_t> alone;  // ids without an entry of the target
    std::vector<Change> changes;
    std::vector<std::uint64_t> left;  // words that lost their row
    std::size_t adopted = 0;
  };
  std::vector<Part> part_of(parts_of(n, threads));
  const auto pairs = std::make_unique_for_overwrite<Pair[]>(n);
  in_parts(n, threads, [&](std::size_t, std::size_t from, std::size_t to) {
    const auto mixed_source = [source](std::int64_t id) { return mixed_of(id, source); };
    const auto mixed_target = [target](std::int64_t id) { return mixed_of(id, target); };
    buckets_.find_all(ids, from, to, source, mixed_source, [&](std::size_t i, GpuPlace where) {
      pairs[i].from = where.bucket == nullptr ? 0 : where.word();
    });
    buckets_.find_all(ids, from, to, target, mixed_target, [&](std::size_t i, GpuPlace where) { pairs[i].to = where; });
  });
  in_parts(n, threads, [&](std::size_t number, std::size_t from, std::size_t to) {
    Part& part = part_of[number];
    part.left.reserve(to - from);
    part.changes.reserve(to - from);
    for (std::size_t i = from; i < to; ++i) {
      if (const std::size_t ahead = i + kAhead; ahead < to && pairs[ahead].to.bucket != nullptr) {
        __builtin_prefetch(pairs[ahead].to.bucket, 1, 3);
        slots_.prefetch(word::slot(pairs[ahead].from));
      }
      const Pair& pair = pairs[i];
      if (word::slot(pair.from) == 0) continue;
      if (pair.to.bucket == nullptr) {
        if (word::slot(pair.from) != kAskHost) part.alone.push_back(i);
        continue;
      }
      if (word::slot(pair.from) == kAskHost) {
        part.asking.push_back(pair.to);
        continue;
      }
      const std::uint64_t held = pair.to.word();
      if (word::slot(held) == word::slot(pair.from)) continue;
      part.left.push_back(held);
      slots_.share(word::slot(pair.from));
      touch(pair.to, part.changes);
      write(pair.to,
            gpu_word::with_slot(held & ~gpu_word::kFresh, word::slot(pair.from)) | (pair.from & gpu_word::kFresh));
      ++part.adopted;
    }
  });
  std::size_t adopted = 0;
  for (const Part& part : part_of) {
    changes_.insert(changes_.end(), part.changes.begin(), part.changes.end());
    adopted += part.adopted;
    let_go(part.left);
    for (const GpuPlace where : part.asking) {
      if (word::slot(where.word()) == 0) continue;  // an id that came twice
      remove(where);
      ++stats_.erased;
    }
  }
  // Entries move from here on.
  for (const Part& part : part_of) {
    for (std::size_t k = 0; k < part.alone.size(); ++k) {
      if (k + kAhead < part.alone.size()) buckets_.prefetch_second(mixed_of(ids[part.alone[k + kAhead]], target));
      const std::size_t i = part.alone[k];
      const std::uint64_t from = pairs[i].from, mixed = mixed_of(ids[i], target);
      const std::uint64_t owner = word::make(word::slot(from), target, word::count(from)) | (from & gpu_word::kFresh);
      if (buckets_.find(ids[i], target, mixed).bucket != nullptr || !find_place(ids[i], mixed, owner)) continue;
      slots_.share(word::slot(from));
      ++adopted;
    }
  }
  return adopted;
}

std::size_t GpuCache::erase(std::uint32_t table, const std::int64_t* ids, std::size_t n, std::size_t threads) {
  std::vector<Leaving> part_of(parts_of(n, threads));
  const auto places = std::make_unique_for_overwrite<GpuPlace[]>(n);
  const auto mixed = [table](std::int64_t id) { return mixed_of(id, table); };
  in_parts(n, threads, [&](std::size_t, std::size_t from, std::size_t to) {
    buckets_.find_all(ids, from, to, table, mixed, [&](std::size_t i, GpuPlace where) { places[i] = where; });
  });
  in_parts(n, threads, [&](std::size_t number, std::size_t from, std::size_t to) {
    for (std::size_t i = from; i < to; ++i) {
      if (i + kAhead < to && places[i + kAhead].bucket != nullptr) __builtin_prefetch(places[i + kAhead].bucket, 1, 3);
      if (places[i].bucket != nullptr) leave(places[i], part_of[number]);
    }
  });
  const std::size_t erased = have_left(part_of);
  stats_.erased += erased;
  return erased;
}

std::size_t GpuCache::erase_table(std::uint32_t table, std::size_t threads) {
  if (rows_of_[table] == 0) return 0;
  std::vector<Leaving> part_of(parts_of(buckets_.count(), threads));
  in_parts(buckets_.count(), threads, [&](std::size_t number, std::size_t from, std::size_t to) {
    for (std::uint64_t index = from; index < to; ++index) {
      GpuBucket& bucket = buckets_.bucket(index);
      for (int at = 0; at < kCacheBucketIds; ++at) {
        const std::uint64_t held = bucket.words[at];
        if (word::slot(held) != 0 && word::table(held) == table) leave({&bucket, at}, part_of[number]);
      }
    }
  });
  const std::size_t erased = have_left(part_of);
  stats_.erased += erased;
  return erased;
}

std::size_t GpuCache::evict_for(std::size_t n, std::size_t threads) {
  const std::uint64_t buckets = buckets_.count(),
                      few = std::min<std::uint64_t>(FrequencyPolicy::kVictimBuckets, buckets);
  std::size_t evicted = 0;
  (void)parts_of(0, threads);  // an error, also where there is room
  // Evict until a whole round finds no victim.
  for (std::uint64_t fruitless = 0; n > capacity_ - slots_.held() && fruitless < buckets;) {
    const std::uint64_t groups = std::min<std::uint64_t>(n - (capacity_ - slots_.held()), buckets / few);
    std::vector<Leaving> part_of(parts_of(groups, threads));
    in_parts(groups, threads, [&](std::size_t number, std::size_t from, std::size_t to) {
      for (std::uint64_t group = from; group < to; ++group) {
        const GpuPlace victim = coldest_of((victim_hand_ + group * few) % buckets, few);
        if (victim.bucket == nullptr) continue;
        part_of[number].ids.push_back(victim.id());
        leave(victim, part_of[number]);
      }
    });
    victim_hand_ = (victim_hand_ + groups * few) % buckets;
    for (const Leaving& part : part_of) {
      for (std::size_t k = 0; k < part.ids.size(); ++k) {
        const auto mixed = [&part](std::size_t at) { return mixed_of(part.ids[at], word::table(part.words[at])); };
        if (k + kAhead < part.ids.size()) policy_.prefetch(mixed(k + kAhead));
        policy_.left(mixed(k), word::count(part.words[k]));
      }
    }
    const std::size_t gone = have_left(part_of);
    evicted += gone;
    fruitless = gone == 0 ? fruitless + groups * few : 0;
  }
  stats_.evicted += evicted;
  return evicted;
}

// The least used of those that may go and whose row has no other holder; often none where two have the same row.
GpuPlace GpuCache::coldest_of(std::uint64_t first, std::uint64_t count) const {
  GpuPlace victim;
  for (std::uint64_t step = 0; step < count; ++step) {
    GpuBucket& bucket =
        buckets_.bucket(first + step < buckets_.count() ? first + step : first + step - buckets_.count());
    for (int at = 0; at < kCacheBucketIds; ++at) {
      const std::uint64_t held = bucket.words[at];
      if (word::slot(held) == 0 || (held & (gpu_word::kPinned | gpu_word::kFresh)) != 0) continue;
      if (victim.bucket == nullptr || word::count(held) < word::count(victim.word())) victim = {&bucket, at};
    }
  }
  return victim.bucket != nullptr && slots_.holders_of(victim.slot()) > 1 ? GpuPlace{} : victim;
}

void GpuCache::leave(GpuPlace where, Leaving& part) {
  const std::uint64_t held = where.word();
  if (word::slot(held) == 0) return;  // an id that came twice
  touch(where, part.changes);
  write(where, 0);
  part.words.push_back(held);
}

std::size_t GpuCache::have_left(const std::vector<Leaving>& part_of) {
  std::size_t left = 0;
  for (const Leaving& part : part_of) {
    changes_.insert(changes_.end(), part.changes.begin(), part.changes.end());
    let_go(part.words);
    for (const std::uint64_t held : part.words) --rows_of_[word::table(held)];
    left += part.words.size();
  }
  size_ -= left;
  return left;
}

// Releases the rows of words that stand nowhere any more.
void GpuCache::let_go(const std::vector<std::uint64_t>& words) {
  for (std::size_t k = 0; k < words.size(); ++k) {
    if (k + kAhead < words.size()) slots_.prefetch(word::slot(words[k + kAhead]));
    if (word::slot(words[k]) != kAskHost) release(word::slot(words[k]), (words[k] & gpu_word::kFresh) != 0);
  }
}

}  // namespace emberline
