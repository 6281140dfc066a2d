// The index of a cache: an array of 64-byte buckets that many tables share, read without locks while one writer changes
// it.
//
// cache_bucket.cuh says what a bucket is, and how it is searched.
//
// How a position changes, and why a reader that accepts a slot has it from the owner it asked for, is as in
// table/buckets.h:
//   emptied     word := no slot, the id stays
//   new owner   id := new, then word := new. Only when every reader that was in at the last change of owner has left.
//   new row     word := new slot
// A reader loads id, word, and id again. Table and slot come in one load, so they belong together. At most one change
// of owner of a position falls into one reader's section, so at most four moves into one bucket do: seven bits count
// them without doubt. A use count changes in the word too, by the writer alone, and means nothing to a reader that
// looks for a row.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "cache_bucket.cuh"
#include "table/pages.h"

namespace emberline {

struct alignas(64) CacheBucket {
  std::atomic<std::int64_t> ids[kCacheBucketIds];
  std::atomic<std::uint64_t> words[kCacheBucketIds];
};
static_assert(sizeof(CacheBucket) == 64);

// A bucket's loads while its writer is at work.
struct CacheBucketLoads {
  const CacheBucket& bucket;

  std::int64_t id(int at) const { return bucket.ids[at].load(std::memory_order_acquire); }
  std::uint64_t word(int at) const { return bucket.words[at].load(std::memory_order_acquire); }
  bool stays(int at, std::int64_t id) const {
    if (bucket.ids[at].load(std::memory_order_relaxed) == id) return true;
    // The id has left: what the writer did before that must be seen by who finds nothing (table/buckets.h).
    (void)bucket.ids[at].load(std::memory_order_acquire);
    return false;
  }
};

inline Match probe(const CacheBucket& bucket, std::int64_t id, std::uint32_t table) {
  return probe_bucket(CacheBucketLoads{bucket}, id, table);
}

class CacheBuckets {
 public:
  explicit CacheBuckets(std::uint64_t count) : count_(count), pages_(count * sizeof(CacheBucket)) {}

  std::uint64_t count() const { return count_; }
  std::size_t bytes() const { return pages_.bytes(); }
  CacheBucket& bucket(std::uint64_t index) const { return reinterpret_cast<CacheBucket*>(pages_.data())[index]; }
  CacheBucketLoads loads(std::uint64_t index) const { return {bucket(index)}; }
  CacheBucket& first(std::uint64_t mixed) const { return bucket(first_bucket(mixed, count_)); }
  CacheBucket& second(std::uint64_t mixed) const { return bucket(second_bucket(mixed, count_)); }
  std::uint32_t position(const CacheBucket& of, int at) const {
    return static_cast<std::uint32_t>(&of - &bucket(0)) * kCacheBucketIds + static_cast<std::uint32_t>(at);
  }

  // Ends a search whose first bucket, read after `flags`, did not hold the owner. `where` is set with a match.
  Match find_on(std::int64_t id, std::uint32_t table, std::uint64_t mixed, std::uint64_t flags,
                const CacheBucket** where) const {
    return told(emberline::find_on(*this, id, table, mixed, flags), where);
  }
  Match find(std::int64_t id, std::uint32_t table, std::uint64_t mixed, const CacheBucket** where) const {
    return told(emberline::find(*this, id, table, mixed), where);
  }

 private:
  Match told(Found found, const CacheBucket** where) const {
    if (found.match.at >= 0) *where = &bucket(found.bucket);
    return found.match;
  }

  std::uint64_t count_;
  Pages pages_;
};

}  // namespace emberline
