// How a replica of a cache's index and rows on a GPU is changed: the host's cache (storage/native/cache) decides and
// lists, the GPU applies. Lookups run on other streams meanwhile and take no lock.
//
// Two lists:
//   rows     two int64 {slot, number of a row in staging}: copies the row into the slot. Staging lies in the GPU's own
//            memory or in pinned memory; rows begin `stride` bytes apart there as in the slab, the padding is copied
//            too.
//   stores   two int64 {bucket * 8 + k, value}: k from 0 to 3 is an id of the bucket, 4 to 7 a word with its flags.
// A slot, and a place in the index, comes at most once in a list; within a list nothing has an order. Each list is a
// launch of its own, one after the other on one stream, so that what a list stores is visible before anything of the
// next one.
//
// Protocol. A reader (lookup.cuh) loads a bucket, its ids and its words in any order, then the row that the word of its
// id names. It is right because the host, for a set of changes, launches in this order:
//
//   1  rows     for new owners and for rows that changed, into slots that no lookup can hold
//      grace    if 2 names any of them
//   2  stores   words: emptied positions become no slot (their ids stay); a row that changed gets its new slot; flags
//      grace
//   3  stores   ids of new owners, at positions that were empty since 2
//      grace    if 4 names any of them
//   4  stores   words of new owners
//
// A grace period: an event after the launch before it has come to pass; then every lookup that was launched before has
// ended: whoever was in has left. Counted from earlier, it would not cover a lookup that was launched while the list
// still waited for its turn. The host knows who is in (storage/hbm/readers.py); further changes are collected
// meanwhile.
//
// Steps 1 and 2 of the next set may follow 4 at once: so there is a grace period between the emptying of a position and
// its next owner, and none between an owner's coming and its leaving. A slot that 2 took away (of an emptied position,
// or the old one of a row that changed) is free for step 1 again after the grace period that follows 2.
//
// Why no reader gets another owner's row. Whoever sees a word that names a slot was launched after its id and its row
// were complete: a grace period lies between, and a launch sees all that was complete before it, with no stale cache.
// So the id that such a reader loads is that of the word's owner, or of a later one; and a later one's id comes only
// after a grace period that follows the end of this word, and thus after the reader. No load has to wait for another
// one: a bucket costs one round trip to memory. A version before this one had one grace period and, in its place, an
// acquiring load of the word and a second look at the id: three round trips, one after the other.
//
// A replica may be behind its cache, and an owner that moves within the index is missed from 2 until 4: the lookup
// reports a miss, and the host, whose index is the one that counts, supplies the row. The use counts of words are not
// worth a store.
#pragma once

#include "cache_bucket.cuh"
#include "memory_order.cuh"

namespace emberline {

constexpr int kPublishWords = 2;
constexpr int kBucketWords = 2 * kCacheBucketIds;

struct alignas(16) RowQuad {
  uint32_t words[4];
};

// How many 16-byte pieces, or 4-byte ones, one thread copies. Threads take pieces in order, so neighbours copy
// neighbours.
template <class Piece>
EMBERLINE_HD void copy_rows(const int64_t* entries, int64_t count, const uint8_t* staging, int64_t staged,
                            uint8_t* slab, int64_t slots, int64_t stride, int64_t thread, int64_t threads) {
  const int64_t pieces = stride / static_cast<int64_t>(sizeof(Piece));
  for (int64_t number = thread; number < count * pieces; number += threads) {
    const int64_t entry = static_cast<int64_t>(static_cast<uint64_t>(number) / static_cast<uint64_t>(pieces));
    const int64_t slot = entries[entry * kPublishWords];
    const int64_t row = entries[entry * kPublishWords + 1];
    if (slot < 1 || slot > slots || row < 0 || row >= staged) continue;  // our own bug
    const int64_t piece = number - entry * pieces;
    reinterpret_cast<Piece*>(slab + slot * stride)[piece] =
        reinterpret_cast<const Piece*>(staging + row * stride)[piece];
  }
}

// What one thread of `threads` does. room: for entries; staged: rows in staging.
EMBERLINE_HD void publish_rows_share(const int64_t* entries, const int64_t* count, int64_t room, const uint8_t* staging,
                                     int64_t staged, uint8_t* slab, int64_t slots, int64_t stride, int64_t thread,
                                     int64_t threads) {
  const int64_t given = *count < 0 ? 0 : *count < room ? *count : room;
  if (stride % 16 == 0) {
    copy_rows<RowQuad>(entries, given, staging, staged, slab, slots, stride, thread, threads);
  } else {
    copy_rows<uint32_t>(entries, given, staging, staged, slab, slots, stride, thread, threads);
  }
}

EMBERLINE_DEVICE void publish_stores_share(const int64_t* entries, const int64_t* count, int64_t room,
                                           uint64_t* buckets, int64_t bucket_count, int64_t thread, int64_t threads) {
  const int64_t given = *count < 0 ? 0 : *count < room ? *count : room;
  for (int64_t entry = thread; entry < given; entry += threads) {
    const int64_t at = entries[entry * kPublishWords];
    if (at < 0 || at >= bucket_count * kBucketWords) continue;  // our own bug
    store_relaxed_system(buckets + at, static_cast<uint64_t>(entries[entry * kPublishWords + 1]));
  }
}

}  // namespace emberline
