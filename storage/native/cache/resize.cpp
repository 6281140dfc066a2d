// Another capacity while readers read and writers write. Every turn does a bounded piece; between turns writers come
// in.
#include <algorithm>
#include <cstring>
#include <thread>

#include "cache/cache.h"
#include "cache/sizes.h"

namespace emberline {
namespace {

constexpr std::uint64_t kPieceBuckets = 2048;
constexpr int kMostYields = 1000;

// Lets waiting threads in. A mutex alone would give the turn to the first to ask, and that is the thread at work.
void give_way(const std::atomic<int>& waiting) {
  for (int i = 0; i < kMostYields && waiting.load() > 0; ++i) std::this_thread::yield();
}

}  // namespace

void Cache::resize(std::uint64_t capacity_rows) {
  if (capacity_rows > kMostRows) {
    throw std::invalid_argument("capacity_rows: expected at most 2^31, got " + std::to_string(capacity_rows));
  }
  const std::lock_guard one_at_a_time(resizing_);
  const std::uint64_t before = this->capacity_rows();
  if (capacity_rows == before) return;
  const CacheSizes sizes(capacity_rows);
  {
    const Turn turn(*this);
    policy_.begin_resize();
  }
  if (capacity_rows < before) {
    capacity_.store(capacity_rows, std::memory_order_relaxed);  // a row that comes in from now on displaces another
    shed(capacity_rows);
    move_rows_down(sizes.slots);
    move_index(capacity_rows);
  } else {
    move_index(capacity_rows);
    const Turn turn(*this);
    slots_.set_most(sizes.slots);
    capacity_.store(capacity_rows, std::memory_order_relaxed);
  }
  const Turn turn(*this);
  policy_.resize(capacity_rows);
  curve_.set_period(sizes.curve_period);
  ++stats_.resizes;
}

// Lets the coldest rows go until so many are left.
void Cache::shed(std::uint64_t rows) {
  while (size() > rows) {
    std::vector<std::uint64_t> held(256, 0);
    const std::uint64_t count = bucket_count();  // fixed: only we change the arrays
    for (std::uint64_t from = 0; from < count; from += kPieceBuckets) {
      give_way(waiting_);
      const Turn turn(*this);
      for (std::uint64_t index = from; index < std::min(count, from + kPieceBuckets); ++index) {
        for (const std::atomic<std::uint64_t>& held_word : bucket_at(index).words) {
          const std::uint64_t w = held_word.load(std::memory_order_relaxed);
          if (word::slot(w) != 0) ++held[word::count(w)];
        }
      }
    }
    // All below `cut` go, and of those at it a share, evenly: buckets that are left fuller than others would not fit
    // elsewhere.
    std::uint64_t excess = size() > rows ? size() - rows : 0;
    unsigned cut = 0;
    while (cut < 255 && held[cut] <= excess) excess -= held[cut++];
    std::uint64_t share = 0;
    for (std::uint64_t from = 0; from < count && size() > rows; from += kPieceBuckets) {
      give_way(waiting_);
      const Turn turn(*this);
      for (std::uint64_t index = from; index < std::min(count, from + kPieceBuckets); ++index) {
        CacheBucket& bucket = bucket_at(index);
        for (int at = 0; at < kCacheBucketIds && size() > rows; ++at) {
          const std::uint64_t w = bucket.words[at].load(std::memory_order_relaxed);
          if (word::slot(w) == 0 || word::count(w) > cut) continue;
          if (word::count(w) == cut) {
            share += excess;
            if (share < held[cut]) continue;
            share -= held[cut];
          }
          evict({&bucket, at});
        }
      }
      slots_.reclaim();
    }
  }
}

// Moves rows out of the slots above, and gives that memory back.
void Cache::move_rows_down(std::uint32_t most_slots) {
  {
    const Turn turn(*this);
    slots_.reclaim();
    slots_.set_most(most_slots);
  }
  const std::uint64_t count = bucket_count();
  for (bool more = true; more;) {  // again for rows that were displaced within the index and passed by
    for (std::uint64_t from = 0; from < count; from += kPieceBuckets) {
      give_way(waiting_);
      const Turn turn(*this);
      for (std::uint64_t index = from; index < std::min(count, from + kPieceBuckets); ++index) {
        CacheBucket& bucket = bucket_at(index);
        for (int at = 0; at < kCacheBucketIds; ++at) {
          const std::uint32_t slot = word::slot(bucket.words[at].load(std::memory_order_relaxed));
          if (slot > most_slots) replace_row({&bucket, at}, slots_.row(slot));
        }
      }
    }
    const Turn turn(*this);
    slots_.drain();
    more = slots_.above() > 0;
    if (!more) slots_.cut();
  }
}

void Cache::publish(View view) {
  auto fresh_view = std::make_unique<const View>(view);
  view_.store(fresh_view.get(), std::memory_order_release);
  grace_.wait(grace_.group());  // no reader holds the view before
  owned_view_ = std::move(fresh_view);
}

// Moves every owner into an index of another size. Readers search the old array first, then the new one; rows only move
// from the one to the other, and stand in the new one before they leave the old, so no reader misses one.
void Cache::move_index(std::uint64_t capacity_rows) {
  auto array = std::make_unique<CacheBuckets>(CacheSizes(capacity_rows).buckets);
  CacheBuckets* from_array = nullptr;
  {
    const Turn turn(*this);
    note_readers();  // their reports are about the old array
    old_buckets_ = std::move(buckets_);
    buckets_ = std::move(array);
    publish({buckets_.get(), old_buckets_.get()});
    victim_hand_ = 0;
    from_array = old_buckets_.get();
  }
  for (std::uint64_t from = 0; from < from_array->count(); from += kPieceBuckets) {
    give_way(waiting_);
    const Turn turn(*this);
    for (std::uint64_t index = from; index < std::min(from_array->count(), from + kPieceBuckets); ++index) {
      CacheBucket& bucket = from_array->bucket(index);
      for (int at = 0; at < kCacheBucketIds; ++at) {
        const std::uint64_t w = bucket.words[at].load(std::memory_order_relaxed) & ~word::kFlags;
        if (word::slot(w) == 0) continue;
        const std::int64_t id = bucket.ids[at].load(std::memory_order_relaxed);
        const std::uint64_t mixed = mixed_of(id, word::table(w));
        bool placed = place(id, mixed, w);
        while (!placed) {
          // Too many owners choose its buckets: the least used of them goes.
          const Place least = coldest_of_two(mixed);
          if (least.bucket == nullptr || word::count(least.word()) >= word::count(w)) break;
          evict(least);
          placed = place(id, mixed, w);
        }
        if (placed) {
          store_word(bucket, at, 0);
        } else {
          evict({&bucket, at});
        }
      }
    }
  }
  const Turn turn(*this);
  publish({buckets_.get(), nullptr});
  old_buckets_.reset();
  cut_left_ = std::min(cut_left_, buckets_->count());
}

}  // namespace emberline
