// Which rank of a training an id belongs to: a hash puts it into a bucket, and a rank has a range of buckets.
#pragma once

#include <cstdint>

namespace emberline {

constexpr std::uint32_t kBucketBits = 12;

// The mixing is that of MurmurHash3 (Appleby, 2011). The top kBucketBits are the bucket.
inline std::uint64_t bucket_hash(std::int64_t id) {
  auto mixed = static_cast<std::uint64_t>(id);
  mixed ^= mixed >> 33;
  mixed *= 0xFF51AFD7ED558CCDull;
  mixed ^= mixed >> 33;
  mixed *= 0xC4CEB9FE1A85EC53ull;
  mixed ^= mixed >> 33;
  return mixed;
}

inline std::uint32_t owner_of(std::int64_t id, std::uint32_t ranks) {
  return static_cast<std::uint32_t>(((bucket_hash(id) >> (64 - kBucketBits)) * ranks) >> kBucketBits);
}

// The first bucket of a rank; that of the rank behind the last one is the end.
inline std::uint64_t first_bucket(std::uint32_t rank, std::uint32_t ranks) {
  return ((std::uint64_t{rank} << kBucketBits) + ranks - 1) / ranks;
}

}  // namespace emberline
