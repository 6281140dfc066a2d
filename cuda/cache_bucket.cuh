// The arithmetic of a cache's index, shared by the cache of the host (storage/native/cache/buckets.h, where the
// protocol between its writer and its readers stands) and by its replica on a GPU (lookup.cuh, publish.cu).
//
// A bucket is 64 bytes: four ids, then four words. A word is {slot 32, table 16, use count 8, bucket flags 8}; slot 0
// means that the position is empty. The owner of a position is (id, table). The flags of a bucket stand in its first
// word: bit 0 says that an owner of this bucket was ever put into its second bucket, the rest counts the moves into
// this bucket.
//
// Who loads what, and in which order, comes in as a class. Loads of a bucket:
//   id(at), word(at)       word(at) is loaded with acquire, except where the bucket was loaded whole
//   stays(at, id)          whether the id is still there, looked at after its word; not of one that was loaded whole
// and an array of buckets: count(), loads(bucket).
#pragma once

#include "bucket.cuh"

namespace emberline {

constexpr int kCacheBucketIds = 4;

namespace word {

constexpr uint64_t kOverflow = 1ull << 56;
constexpr uint64_t kMove = 2ull << 56;
constexpr uint64_t kFlags = 0xFFull << 56;

EMBERLINE_HD constexpr uint64_t make(uint32_t slot, uint32_t table, uint8_t count) {
  return slot | (uint64_t{table & 0xFFFF} << 32) | (uint64_t{count} << 48);
}
EMBERLINE_HD constexpr uint32_t slot(uint64_t w) { return static_cast<uint32_t>(w); }
EMBERLINE_HD constexpr uint32_t table(uint64_t w) { return static_cast<uint32_t>(w >> 32) & 0xFFFF; }
EMBERLINE_HD constexpr uint8_t count(uint64_t w) { return static_cast<uint8_t>(w >> 48); }

}  // namespace word

// One mixing for all tables: a salt per table keeps equal ids of two tables apart.
EMBERLINE_HD uint64_t table_salt(uint32_t table) { return mix(table * 0xA0761D6478BD642Full); }
EMBERLINE_HD uint64_t mix_owner(int64_t id, uint64_t salt) {
  return mix_id(static_cast<int64_t>(static_cast<uint64_t>(id) ^ salt));
}

// Which of several GPUs holds the row, where each row is on one of them: a choice of its own, so that the rows of a
// GPU stand in all of its buckets. mixed: of the owner under the table's own number.
EMBERLINE_HD uint32_t part_of(uint64_t mixed, uint32_t parts) {
  return static_cast<uint32_t>(multiply_high(mix(mixed + 0xD1B54A32D192ED03ull), parts));
}

// What a search gives: the position in its bucket, or none.
struct Match {
  uint64_t word = 0;
  int at = -1;
};

// With the number of the bucket, which means nothing without a match.
struct Found {
  Match match;
  uint64_t bucket = 0;
};

// Finds the owner in one bucket whose writer may be at work. The ids make a mask first: nearly always one bit is set.
template <class Loads>
EMBERLINE_HD Match probe_bucket(const Loads& loads, int64_t id, uint32_t table) {
  uint32_t ways = 0;
  EMBERLINE_UNROLL
  for (int i = 0; i < kCacheBucketIds; ++i) ways |= static_cast<uint32_t>(loads.id(i) == id) << i;
  for (; ways != 0; ways &= ways - 1) {
    const int i = lowest_bit(ways);
    const uint64_t w = loads.word(i);
    if (word::slot(w) == 0 || word::table(w) != table) continue;
    if (loads.stays(i, id)) return {w, i};
  }
  return {};
}

// Finds the owner in a bucket that was loaded whole, without a branch: lanes of a warp want different ways.
template <class Loaded>
EMBERLINE_HD Match probe_loaded(const Loaded& bucket, int64_t id, uint32_t table) {
  Match match;
  EMBERLINE_UNROLL
  for (int i = 0; i < kCacheBucketIds; ++i) {
    const uint64_t w = bucket.word(i);
    const bool is_it = bucket.id(i) == id && word::slot(w) != 0 && word::table(w) == table;
    match.word = is_it ? w : match.word;
    match.at = is_it ? i : match.at;
  }
  return match;
}

// Ends a search whose first bucket, read after `flags`, did not hold the owner.
template <class Buckets>
EMBERLINE_HD Found find_on(const Buckets& buckets, int64_t id, uint32_t table, uint64_t mixed, uint64_t flags) {
  const uint64_t head = first_bucket(mixed, buckets.count());
  for (;;) {
    if ((flags & word::kOverflow) != 0) {
      const uint64_t second = second_bucket(mixed, buckets.count());
      if (const Match match = probe_bucket(buckets.loads(second), id, table); match.at >= 0) return {match, second};
    }
    const uint64_t now = buckets.loads(head).word(0) & word::kFlags;
    if (now == flags) return {};
    flags = now;
    if (const Match match = probe_bucket(buckets.loads(head), id, table); match.at >= 0) return {match, head};
  }
}

// Misses no owner that is there from beginning to end, also when it moves meanwhile.
template <class Buckets>
EMBERLINE_HD Found find(const Buckets& buckets, int64_t id, uint32_t table, uint64_t mixed) {
  const uint64_t head = first_bucket(mixed, buckets.count());
  const uint64_t flags = buckets.loads(head).word(0) & word::kFlags;
  if (const Match match = probe_bucket(buckets.loads(head), id, table); match.at >= 0) return {match, head};
  return find_on(buckets, id, table, mixed, flags);
}

// For an index that may miss an owner on the move, whose buckets are loaded whole. Asks each bucket once.
template <class Buckets>
EMBERLINE_HD Match find_unless_moving(const Buckets& buckets, int64_t id, uint32_t table, uint64_t mixed) {
  const auto head = buckets.loads(first_bucket(mixed, buckets.count()));
  const Match match = probe_loaded(head, id, table);
  if (match.at >= 0 || (head.word(0) & word::kOverflow) == 0) return match;
  return probe_loaded(buckets.loads(second_bucket(mixed, buckets.count())), id, table);
}

}  // namespace emberline
