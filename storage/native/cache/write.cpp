// The writing side of Cache: insert, assign, erase, evict, and the counting of readers' reports. One writer at a time.
#include <algorithm>
#include <cstring>
#include <thread>

#include "cache/cache.h"
#include "table/table.h"

namespace emberline {
namespace {

constexpr std::size_t kTurnIds = 4096;  // ids that one turn writes
constexpr std::size_t kWriteAhead = 16;  // buckets prefetched ahead of the writer
constexpr std::uint64_t kSearch = 4096;  // buckets looked at for a victim of a candidate
constexpr std::uint64_t kTurnBuckets = 1 << 15;  // buckets that one turn ages or cuts
constexpr std::uint8_t kDeliberate = 4;  // uses of a row that was inserted on purpose, with no count given
constexpr std::uint32_t kSumTables = 256;  // tables whose counters one turn may sum

std::uint64_t taken(std::atomic<std::uint64_t>& count) {
  return count.load(std::memory_order_relaxed) == 0 ? 0 : count.exchange(0, std::memory_order_relaxed);
}

}  // namespace

Cache::Turn::Turn(const Cache& cache) : cache_(cache) {
  cache_.waiting_.fetch_add(1);
  cache_.mutex_.lock();
  cache_.waiting_.fetch_sub(1);
}

Cache::Turn::~Turn() { cache_.mutex_.unlock(); }

void Cache::insert_or_assign(std::uint32_t table, const std::int64_t* ids, std::size_t n, const char* rows,
                             const std::uint8_t* freq) {
  for (std::size_t start = 0; start < n; start += kTurnIds) {
    const std::size_t end = std::min(n, start + kTurnIds);
    const Turn turn(*this);
    note_readers();
    for (std::size_t i = start; i < end; ++i) {
      if (i + kWriteAhead < end) __builtin_prefetch(&fresh().first(mixed_of(ids[i + kWriteAhead], table)), 1, 3);
      const std::uint64_t mixed = mixed_of(ids[i], table);
      if (const Place where = find_place(ids[i], table, mixed); where.bucket != nullptr) {
        replace_row(where, rows + i * row_bytes_);
        ++stats_.assigned;
        continue;
      }
      if (capacity_rows() == 0) throw CapacityExceeded("the cache has room for no row: capacity_rows is 0");
      if (size() >= capacity_rows()) evict(coldest(bucket_count()));
      const std::uint8_t code = policy_.from_uses(freq != nullptr ? freq[i] : kDeliberate);
      insert_new(ids[i], table, mixed, rows + i * row_bytes_, code, true);
      ++stats_.inserted;
    }
  }
}

std::size_t Cache::insert_and_evict(std::uint32_t table, const std::int64_t* ids, std::size_t n, const char* rows,
                                    const std::uint8_t* freq) {
  std::size_t admitted = 0;
  for (std::size_t start = 0; start < n; start += kTurnIds) {
    const std::size_t end = std::min(n, start + kTurnIds);
    const Turn turn(*this);
    note_readers();
    for (std::size_t i = start; i < end; ++i) {
      if (i + kWriteAhead < end) {
        const std::uint64_t ahead = mixed_of(ids[i + kWriteAhead], table);
        __builtin_prefetch(&fresh().first(ahead), 1, 3);
        policy_.prefetch(ahead);
      }
      const std::uint64_t mixed = mixed_of(ids[i], table);
      if (find_place(ids[i], table, mixed).bucket != nullptr) continue;
      curve_.offer(mixed, table);
      const std::uint32_t units = policy_.asked(mixed, freq != nullptr ? freq[i] : std::uint8_t{0});
      if (size() >= capacity_rows()) {
        const Place victim = coldest(kSearch);
        if (victim.bucket == nullptr || capacity_rows() == 0 || !policy_.admits(units, word::count(victim.word()))) {
          ++stats_.rejected;
          continue;
        }
        evict(victim);
        // A cache that is being made smaller has more rows than it may have.
        if (size() >= capacity_rows()) continue;
      }
      if (!insert_new(ids[i], table, mixed, rows + i * row_bytes_, policy_.code_of(units), false)) {
        ++stats_.rejected;
        continue;
      }
      policy_.entered(mixed);
      ++admitted;
      ++stats_.admitted;
    }
  }
  return admitted;
}

std::size_t Cache::assign(std::uint32_t table, const std::int64_t* ids, std::size_t n, const char* rows) {
  std::size_t assigned = 0;
  for (std::size_t start = 0; start < n; start += kTurnIds) {
    const std::size_t end = std::min(n, start + kTurnIds);
    const Turn turn(*this);
    note_readers();
    for (std::size_t i = start; i < end; ++i) {
      if (i + kWriteAhead < end) __builtin_prefetch(&fresh().first(mixed_of(ids[i + kWriteAhead], table)), 1, 3);
      const Place where = find_place(ids[i], table, mixed_of(ids[i], table));
      if (where.bucket == nullptr) continue;
      replace_row(where, rows + i * row_bytes_);
      ++assigned;
      ++stats_.assigned;
    }
  }
  return assigned;
}

std::size_t Cache::erase(std::uint32_t table, const std::int64_t* ids, std::size_t n) {
  std::size_t erased = 0;
  for (std::size_t start = 0; start < n; start += kTurnIds) {
    const std::size_t end = std::min(n, start + kTurnIds);
    const Turn turn(*this);
    for (std::size_t i = start; i < end; ++i) {
      const Place where = find_place(ids[i], table, mixed_of(ids[i], table));
      if (where.bucket == nullptr) continue;
      remove(where);
      ++erased;
      ++stats_.erased;
    }
  }
  return erased;
}

void Cache::mark_complete(std::uint32_t table) {
  const Turn turn(*this);
  state(table).evicted.store(0, std::memory_order_relaxed);
  state(table).complete.store(true, std::memory_order_release);
}

void Cache::absorb() {
  const Turn turn(*this);
  note_readers();
}

Cache::Place Cache::find_place(std::int64_t id, std::uint32_t table, std::uint64_t mixed) const {
  for (const CacheBuckets* array : {buckets_.get(), old_buckets_.get()}) {
    if (array == nullptr) continue;
    const CacheBucket* where = nullptr;
    const Match match = array->find(id, table, mixed, &where);
    if (match.at >= 0) return {const_cast<CacheBucket*>(where), match.at};
  }
  return {};
}

// When too many owners choose its buckets, the least used of those goes; unless the row must come in, only for a hotter
// one.
bool Cache::insert_new(std::int64_t id, std::uint32_t table, std::uint64_t mixed, const char* row, std::uint8_t code,
                       bool must) {
  const std::uint32_t slot = slots_.take();
  std::memcpy(slots_.row(slot), row, row_bytes_);
  while (!place(id, mixed, word::make(slot, table, code))) {
    const Place victim = coldest_of_two(mixed);
    if (victim.bucket == nullptr) continue;
    if (!must && word::count(victim.word()) >= code) {
      slots_.put_back(slot);
      return false;
    }
    evict(victim);
  }
  size_.fetch_add(1, std::memory_order_relaxed);
  state(table).rows.fetch_add(1, std::memory_order_relaxed);
  return true;
}

void Cache::replace_row(Place where, const char* row) {
  const std::uint64_t held = where.word() & ~word::kFlags;
  const std::uint32_t slot = slots_.take();
  std::memcpy(slots_.row(slot), row, row_bytes_);
  store_word(*where.bucket, where.at, word::make(slot, word::table(held), word::count(held)));
  slots_.retire(word::slot(held));
}

void Cache::remove(Place where) {
  const std::uint64_t held = where.word();
  store_word(*where.bucket, where.at, 0);
  slots_.retire(word::slot(held));
  size_.fetch_sub(1, std::memory_order_relaxed);
  state(word::table(held)).rows.fetch_sub(1, std::memory_order_relaxed);
}

void Cache::evict(Place where) {
  const std::uint64_t held = where.word();
  TableState& owner = state(word::table(held));
  owner.evicted.fetch_add(1, std::memory_order_relaxed);
  owner.complete.store(false, std::memory_order_release);  // before a reader can miss the row
  policy_.left(mixed_of(where.id(), word::table(held)), word::count(held));
  remove(where);
  ++stats_.evicted;
}

// The least used row of the next few buckets that hold any: a clock over the buckets, so no list orders the rows.
Cache::Place Cache::coldest(std::uint64_t most_buckets) {
  Place victim;
  const std::uint64_t count = bucket_count();
  int seen = 0;
  for (std::uint64_t step = 0; step < std::min(count, most_buckets) && seen < FrequencyPolicy::kVictimBuckets; ++step) {
    CacheBucket& bucket = bucket_at(victim_hand_++ % count);
    bool any = false;
    for (int at = 0; at < kCacheBucketIds; ++at) {
      const std::uint64_t held = bucket.words[at].load(std::memory_order_relaxed);
      if (word::slot(held) == 0) continue;
      any = true;
      if (victim.bucket == nullptr || word::count(held) < word::count(victim.word())) victim = {&bucket, at};
    }
    seen += any;
  }
  return victim;
}

// Counts the uses that readers reported, feeds the curve, and ages a share of the counts.
void Cache::note_readers() {
  const auto use = [this](std::uint32_t position) {
    if (position / kCacheBucketIds >= fresh().count()) return;  // reported before a resize
    CacheBucket& bucket = fresh().bucket(position / kCacheBucketIds);
    const int at = static_cast<int>(position % kCacheBucketIds);
    const std::uint64_t held = bucket.words[at].load(std::memory_order_relaxed) & ~word::kFlags;
    if (word::slot(held) == 0) return;
    store_word(bucket, at,
               word::make(word::slot(held), word::table(held), FrequencyPolicy::stepped(word::count(held))));
  };
  log_.drain(use, [this](const SampledLookup& lookup) { curve_.add(lookup.mixed, lookup.table, lookup.hit); });
  if (until_sum_-- == 0) {
    until_sum_ = tables() / kSumTables;
    std::uint64_t lookups = 0, told_lookups = 0, told_hits = 0;
    for (std::uint32_t i = 0; i < tables(); ++i) {
      TableState& table = state(i);
      const std::uint64_t now = table.lookups.load(std::memory_order_relaxed);
      lookups += now;
      told_lookups += table.told_lookups.load(std::memory_order_relaxed);
      told_hits += table.told_hits.load(std::memory_order_relaxed);
      curve_.tell(i, now - std::exchange(table.in_curve, now), taken(table.lost_samples), taken(table.skipped_samples));
    }
    policy_.pass(told_lookups - seen_told_lookups_, told_hits - seen_told_hits_, size() * 16 >= capacity_rows() * 15);
    if (curve_.pass(lookups - seen_lookups_)) curve_.end_period();
    seen_lookups_ = lookups;
    seen_told_lookups_ = told_lookups;
    seen_told_hits_ = told_hits;
  }
  sample_mask_.store(curve_.mask(), std::memory_order_relaxed);
  skip_mask_.store(curve_.skip_mask(), std::memory_order_relaxed);
  age_buckets();
}

void Cache::age_buckets() {
  const auto each = [this](std::uint64_t count, auto&& change) {
    for (; count > 0; --count) {
      if (++age_hand_ >= bucket_count()) age_hand_ = 0;
      CacheBucket& bucket = bucket_at(age_hand_);
      for (int at = 0; at < kCacheBucketIds; ++at) {
        const std::uint64_t held = bucket.words[at].load(std::memory_order_relaxed) & ~word::kFlags;
        if (word::slot(held) == 0 || word::count(held) == 0) continue;
        store_word(bucket, at, word::make(word::slot(held), word::table(held), change(word::count(held))));
      }
    }
  };
  if (policy_.take_change()) cut_left_ = bucket_count();
  if (cut_left_ > 0) {
    const std::uint64_t count = std::min(cut_left_, kTurnBuckets);
    cut_left_ -= count;
    each(count, [this](std::uint8_t code) { return policy_.cut(code); });
    return;
  }
  each(policy_.due(bucket_count(), kTurnBuckets), [this](std::uint8_t code) { return policy_.aged(code); });
}

}  // namespace emberline
