// The index: an array of buckets, read without locks while one writer changes it.
//
// How one position changes, with a release store each:
//   emptied     slot := 0, the id stays
//   new owner   id := new, then slot := new. Only when every reader that was in at the last change of owner has left.
//   new row     slot := new
// A reader loads id, slot, and id again. A slot of another owner between two equal ids would need two changes of owner
// within one reader's section, which the rule above excludes. So a slot that is accepted belonged to the id at that
// moment.
//
// How an id moves from one of its buckets to the other: it is written there, then emptied here. Readers look into the
// first bucket, then the second. A move to the second is seen there at the latest; a move to the first steps the first
// bucket's version, and a reader that found nothing looks again when that has changed.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "bucket.cuh"
#include "table/pages.h"

namespace emberline {

struct alignas(64) Bucket {
  std::atomic<std::int64_t> ids[kBucketIds];
  std::atomic<std::uint32_t> slots[kBucketIds];
  std::atomic<std::uint32_t> version;
};
static_assert(sizeof(Bucket) == 64);

// The slot of an id in one bucket, or kEmptySlot.
inline std::uint32_t probe(const Bucket& bucket, std::int64_t id) {
  std::uint32_t mask = match([&](int i) { return bucket.ids[i].load(std::memory_order_acquire); }, id);
  while (mask != 0) {
    const int i = __builtin_ctz(mask);
    const std::uint32_t slot = bucket.slots[i].load(std::memory_order_acquire);
    if (slot != kEmptySlot) {
      if (bucket.ids[i].load(std::memory_order_relaxed) == id) return slot;
      // The id has left. Who finds nothing must see what the writer did before that (overlay.h): the same word again,
      // with acquire, which gives the value above or a newer one. Only on this path, where it costs nothing that
      // counts.
      (void)bucket.ids[i].load(std::memory_order_acquire);
    }
    mask &= mask - 1;
  }
  return kEmptySlot;
}

class BucketArray {
 public:
  explicit BucketArray(std::uint64_t count) : count_(count), pages_(count * sizeof(Bucket)) {}

  std::uint64_t count() const { return count_; }
  std::size_t bytes() const { return pages_.bytes(); }
  Bucket& bucket(std::uint64_t index) const { return reinterpret_cast<Bucket*>(pages_.data())[index]; }
  Bucket& first(std::uint64_t mixed) const { return bucket(first_bucket(mixed, count_)); }
  Bucket& second(std::uint64_t mixed) const { return bucket(second_bucket(mixed, count_)); }

  // Ends a search whose first bucket, read after `version`, did not hold the id.
  std::uint32_t find_on(std::int64_t id, std::uint64_t mixed, std::uint32_t version) const {
    const Bucket& head = first(mixed);
    for (;;) {
      if ((version & kOverflowBit) != 0) {
        if (const std::uint32_t slot = probe(second(mixed), id); slot != kEmptySlot) return slot;
      }
      const std::uint32_t now = head.version.load(std::memory_order_acquire);
      if (now == version) return kEmptySlot;
      version = now;
      if (const std::uint32_t slot = probe(head, id); slot != kEmptySlot) return slot;
    }
  }

  std::uint32_t find(std::int64_t id, std::uint64_t mixed) const {
    const Bucket& head = first(mixed);
    const std::uint32_t version = head.version.load(std::memory_order_acquire);
    const std::uint32_t slot = probe(head, id);
    return slot != kEmptySlot ? slot : find_on(id, mixed, version);
  }

 private:
  std::uint64_t count_;
  Pages pages_;
};

}  // namespace emberline
