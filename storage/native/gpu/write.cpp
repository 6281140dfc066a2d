// The verbs that change the content of a GPU's cache, and the counting of uses.
#include <algorithm>

#include "gpu/gpu_cache.h"

namespace emberline {
namespace {

constexpr std::size_t kWriteAhead = 16;        // buckets prefetched ahead
constexpr std::uint64_t kSearch = 4096;        // buckets looked at for a victim
constexpr std::uint64_t kTurnBuckets = 1 << 18;  // buckets that one call ages or cuts

}  // namespace

void GpuCache::insert(std::uint32_t table, const std::int64_t* ids, std::size_t n, const std::uint8_t* rows,
                      const std::uint8_t* freq, bool pinned, bool* in, std::size_t stride) {
  if (stride == 0) stride = row_bytes_;
  const std::uint64_t fresh_evicted = fresh_evicted_;
  for (std::size_t i = 0; i < n; ++i) {
    if (i + kWriteAhead < n) buckets_.prefetch(mixed_of(ids[i + kWriteAhead], table));
    const std::uint64_t mixed = mixed_of(ids[i], table);
    const std::uint8_t* const row = rows + i * stride;
    if (const GpuPlace where = buckets_.find(ids[i], table, mixed); where.bucket != nullptr) {
      if (pinned) where.bucket->words[where.at] |= gpu_word::kPinned;
      in[i] = where.slot() == kAskHost ? give_row(where, row) : replace_row(where, row);
      stats_.assigned += in[i];
      continue;
    }
    const std::uint8_t code = policy_.from_uses(freq != nullptr ? freq[i] : kDeliberate);
    const std::uint64_t owner = word::make(0, table, code) | (pinned ? gpu_word::kPinned : 0);
    in[i] = make_room() && insert_new(ids[i], mixed, row, owner, true);
    stats_.inserted += in[i];
  }
  if (fresh_evicted != fresh_evicted_) check_in(table, ids, n, in);
}

// A row of this call went for another that had no other place.
void GpuCache::check_in(std::uint32_t table, const std::int64_t* ids, std::size_t n, bool* in) const {
  for (std::size_t i = 0; i < n; ++i) {
    const GpuPlace where = buckets_.find(ids[i], table, mixed_of(ids[i], table));
    in[i] = in[i] && where.bucket != nullptr && where.slot() != kAskHost;
  }
}

std::size_t GpuCache::offer(std::uint32_t table, const std::int64_t* ids, std::size_t n, const std::uint8_t* rows,
                            const std::uint8_t* freq, bool asked) {
  std::size_t admitted = 0;
  for (std::size_t i = 0; i < n; ++i) {
    if (i + kWriteAhead < n) {
      const std::uint64_t ahead = mixed_of(ids[i + kWriteAhead], table);
      buckets_.prefetch(ahead);
      policy_.prefetch(ahead);
    }
    const std::uint64_t mixed = mixed_of(ids[i], table);
    if (buckets_.find(ids[i], table, mixed).bucket != nullptr) continue;
    const std::uint8_t uses = freq != nullptr ? freq[i] : std::uint8_t{0};
    const std::uint32_t units = asked ? policy_.known(mixed, uses) : policy_.asked(mixed, uses);
    bool room = slots_.free() > 0;
    if (room && slots_.held() >= offered()) {
      const GpuPlace victim = coldest();
      room = victim.bucket != nullptr && policy_.admits(units, word::count(victim.word()));
      if (room) evict(victim);
    }
    const std::uint64_t owner = word::make(0, table, policy_.code_of(units));
    if (!room || !insert_new(ids[i], mixed, rows + i * row_bytes_, owner, false)) {
      ++stats_.rejected;
      continue;
    }
    policy_.entered(mixed);
    ++admitted;
  }
  stats_.admitted += admitted;
  return admitted;
}

void GpuCache::ask(std::uint32_t table, const std::int64_t* ids, std::size_t n, bool* admits) {
  std::uint64_t room = free(), slots = slots_.free();
  GpuPlace victim;
  for (std::size_t i = 0; i < n; ++i) {
    if (i + kWriteAhead < n) {
      const std::uint64_t ahead = mixed_of(ids[i + kWriteAhead], table);
      buckets_.prefetch(ahead);
      policy_.prefetch(ahead);
    }
    const std::uint64_t mixed = mixed_of(ids[i], table);
    admits[i] = false;
    if (buckets_.find(ids[i], table, mixed).bucket != nullptr) continue;
    const std::uint32_t units = policy_.asked(mixed, 0);
    if (slots == 0) continue;
    if (room > 0) {
      --room;
    } else {
      if (victim.bucket == nullptr) victim = coldest();
      if (victim.bucket == nullptr || !policy_.admits(units, word::count(victim.word()))) continue;
      victim = {};  // the victim would be gone
    }
    --slots;
    admits[i] = true;
  }
}

void GpuCache::insert_ask_host(std::uint32_t table, const std::int64_t* ids, std::size_t n, bool* in) {
  for (std::size_t i = 0; i < n; ++i) {
    if (i + kWriteAhead < n) buckets_.prefetch(mixed_of(ids[i + kWriteAhead], table));
    const std::uint64_t mixed = mixed_of(ids[i], table);
    if (const GpuPlace where = buckets_.find(ids[i], table, mixed); where.bucket != nullptr) {
      const std::uint64_t held = where.word();
      if (word::slot(held) != kAskHost) release(word::slot(held), (held & gpu_word::kFresh) != 0);
      store(where, (gpu_word::with_slot(held, kAskHost) & ~gpu_word::kFresh) | gpu_word::kPinned);
      in[i] = true;
      continue;
    }
    in[i] = put(ids[i], mixed, word::make(kAskHost, table, 0) | gpu_word::kPinned, true);
    stats_.inserted += in[i];
  }
}

std::size_t GpuCache::assign(std::uint32_t table, const std::int64_t* ids, std::size_t n, const std::uint8_t* rows) {
  std::size_t assigned = 0;
  for (std::size_t i = 0; i < n; ++i) {
    if (i + kWriteAhead < n) buckets_.prefetch(mixed_of(ids[i + kWriteAhead], table));
    const GpuPlace where = buckets_.find(ids[i], table, mixed_of(ids[i], table));
    if (where.bucket == nullptr || where.slot() == kAskHost) continue;
    assigned += replace_row(where, rows + i * row_bytes_);
  }
  stats_.assigned += assigned;
  return assigned;
}

// The row's slot: there is a free one.
std::uint32_t GpuCache::stage(const std::uint8_t* row) {
  const std::uint32_t slot = slots_.take();
  staged_.append(slot, row);
  return slot;
}

// Removes a holder of a slot. A row that has not been sent to the device is dropped.
void GpuCache::release(std::uint32_t slot, bool fresh) {
  if (!slots_.drop(slot)) return;
  if (!fresh) return slots_.retire(slot);
  staged_.remove(slot);
  slots_.put_back(slot);
}

// False when there is no slot for the new row: the old one is gone, then.
bool GpuCache::replace_row(GpuPlace where, const std::uint8_t* row) {
  const std::uint64_t held = where.word();
  const std::uint32_t slot = word::slot(held);
  const bool fresh = (held & gpu_word::kFresh) != 0;
  if (fresh && slots_.holders_of(slot) == 1) {
    std::copy_n(row, row_bytes_, staged_.row(staged_.number_of(slot)));
    return true;
  }
  // The new row takes one slot more where the old one has another holder.
  if (slots_.holders_of(slot) == 1 ? slots_.free() > 0 : make_room()) {
    store(where, gpu_word::with_slot(held, stage(row)) | gpu_word::kFresh);
    release(slot, fresh);
    return true;
  }
  if ((held & gpu_word::kPinned) == 0) {
    remove(where);
    ++stats_.erased;
    return false;
  }
  release(slot, fresh);
  store(where, gpu_word::with_slot(held, kAskHost) & ~gpu_word::kFresh);
  return false;
}

// Gives a row to an entry that asks the host.
bool GpuCache::give_row(GpuPlace where, const std::uint8_t* row) {
  if (!make_room()) return false;
  store(where, gpu_word::with_slot(where.word(), stage(row)) | gpu_word::kFresh);
  return true;
}

bool GpuCache::insert_new(std::int64_t id, std::uint64_t mixed, const std::uint8_t* row, std::uint64_t owner,
                          bool must) {
  const std::uint32_t slot = stage(row);
  if (put(id, mixed, gpu_word::with_slot(owner, slot) | gpu_word::kFresh, must)) return true;
  release(slot, true);
  return false;
}

void GpuCache::remove(GpuPlace where) {
  const std::uint64_t held = where.word();
  store(where, 0);
  --size_;
  --rows_of_[word::table(held)];
  if (word::slot(held) != kAskHost) release(word::slot(held), (held & gpu_word::kFresh) != 0);
}

void GpuCache::evict(GpuPlace where) {
  policy_.left(mixed_of(where.id(), word::table(where.word())), word::count(where.word()));
  remove(where);
  ++stats_.evicted;
}

// A free slot, within the capacity.
bool GpuCache::make_room() {
  if (slots_.free() == 0) return false;
  while (slots_.held() >= capacity_) {
    const GpuPlace victim = coldest();
    if (victim.bucket == nullptr) return false;
    evict(victim);
  }
  return true;
}

// Returns the least used entry that may be evicted, in the next few buckets that hold any, as Cache::coldest does. Once
// a whole round found none, there is none until the next set: a row that came in stays until it is on the device.
GpuPlace GpuCache::coldest() {
  GpuPlace victim;
  int seen = 0;
  const std::uint64_t most = std::min(kSearch, buckets_.count());
  for (std::uint64_t step = 0; step < most && seen < FrequencyPolicy::kVictimBuckets; ++step) {
    if (victim.bucket == nullptr && fruitless_ >= buckets_.count()) break;
    GpuBucket& bucket = buckets_.bucket(victim_hand_);
    if (++victim_hand_ >= buckets_.count()) victim_hand_ = 0;
    bool any = false;
    for (int at = 0; at < kCacheBucketIds; ++at) {
      const std::uint64_t held = bucket.words[at];
      if (word::slot(held) == 0 || (held & (gpu_word::kPinned | gpu_word::kFresh)) != 0) continue;
      if (victim.bucket != nullptr && word::count(held) >= word::count(victim.word())) {
        any = true;
        continue;
      }
      // Evicting one whose row has another holder would free nothing.
      if (slots_.holders_of(word::slot(held)) > 1) continue;
      any = true;
      victim = {&bucket, at};
    }
    seen += any;
    fruitless_ = any ? 0 : fruitless_ + 1;
  }
  return victim;
}

void GpuCache::note_uses(const std::uint8_t* marks, std::uint32_t weight, GpuPart own) {
  const std::uint32_t units = std::min(weight, kMaxCount / FrequencyPolicy::kUse) * FrequencyPolicy::kUse;
  const auto is_own = [&](std::int64_t id, std::uint32_t table) {
    return own.parts == 1 || part_of(mixed_of(id, table % own.base_tables), own.parts) == own.part;
  };
  for (std::uint64_t index = 0; index < buckets_.count(); ++index) {
    GpuBucket& bucket = buckets_.bucket(index);
    for (int at = 0; at < kCacheBucketIds; ++at) {
      std::uint64_t& held = bucket.words[at];
      const std::uint32_t slot = word::slot(held);
      if (slot == 0 || slot == kAskHost || marks[slot] == 0) continue;
      if (!is_own(bucket.ids[at], word::table(held))) continue;
      held = gpu_word::with_count(held, policy_.code_of(count_value(word::count(held)) + units));
    }
  }
}

void GpuCache::use(std::uint32_t table, const std::int64_t* ids, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) {
    if (i + kWriteAhead < n) buckets_.prefetch(mixed_of(ids[i + kWriteAhead], table));
    const GpuPlace where = buckets_.find(ids[i], table, mixed_of(ids[i], table));
    if (where.bucket == nullptr) continue;
    std::uint64_t& held = where.bucket->words[where.at];
    held = gpu_word::with_count(held, policy_.code_of(count_value(word::count(held)) + FrequencyPolicy::kUse));
  }
}

void GpuCache::parts_of_ids(std::uint32_t table, const std::int64_t* ids, std::size_t n, std::uint32_t parts,
                            std::uint8_t* out) {
  const std::uint64_t salt = table_salt(table);
  for (std::size_t i = 0; i < n; ++i) out[i] = static_cast<std::uint8_t>(part_of(mix_owner(ids[i], salt), parts));
}

void GpuCache::pass_lookups(std::uint64_t lookups, std::uint64_t hits) {
  policy_.pass(lookups, hits, std::uint64_t{slots_.held()} * 16 >= offered() * 15);
  age_buckets();
}

void GpuCache::age_buckets() {
  const auto each = [this](std::uint64_t count, auto&& change) {
    for (; count > 0; --count) {
      if (++age_hand_ >= buckets_.count()) age_hand_ = 0;
      for (std::uint64_t& held : buckets_.bucket(age_hand_).words) {
        if (word::slot(held) == 0 || word::count(held) == 0) continue;
        held = gpu_word::with_count(held, change(word::count(held)));
      }
    }
  };
  if (policy_.take_change()) cut_left_ = buckets_.count();
  if (cut_left_ > 0) {
    const std::uint64_t count = std::min(cut_left_, kTurnBuckets);
    cut_left_ -= count;
    each(count, [this](std::uint8_t code) { return policy_.cut(code); });
    return;
  }
  each(policy_.due(buckets_.count(), kTurnBuckets), [this](std::uint8_t code) { return policy_.aged(code); });
}

}  // namespace emberline
