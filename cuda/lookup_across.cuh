// Where lookups look on GPUs that share rows: on their own, then on the one whose part the id is (part_of of
// cache_bucket.cuh), by addresses of that GPU's memory.
//
// Of a feature (lookup.cuh), the words that a lookup on one GPU leaves alone:
//   11 what the GPUs have of its table, or 0     12 how many share it, and the number of this one << 32
// Of a table there are, for each GPU, five int64: {buckets, their number, slab, highest slot, use marks or 0}, buckets
// 0 where there is nothing; stride, type and dim are the feature's.
//
// In the header of a batch, word 11 is the offset of the chains of the GPUs: nine int64 for each, {length, or -1: it
// does not know the batch's snapshot; numbers}.
//
// What the own GPU says holds, also that the host has to be asked: each replica has the row of the batch's snapshot, or
// says nothing.
#pragma once

#include "lookup.cuh"

namespace emberline {

constexpr int kPeersWord = 11;
constexpr int kPartsWord = 12;
constexpr int kPeerChainWords = 1 + kMostChain;
constexpr int kPeerWords = 5;
constexpr int kPeerChainsWord = 11;

// As GpuBuckets, of another GPU's memory.
struct PeerBuckets {
  const uint64_t* buckets;
  uint64_t bucket_count;

  EMBERLINE_DEVICE uint64_t count() const { return bucket_count; }
  EMBERLINE_DEVICE LoadedBucket loads(uint64_t index) const {
    const int64_t* bucket = reinterpret_cast<const int64_t*>(buckets) + index * (2 * kCacheBucketIds);
    return {{load_pair_relaxed_system(bucket), load_pair_relaxed_system(bucket + 2)},
            {load_pair_relaxed_system(bucket + 4), load_pair_relaxed_system(bucket + 6)}};
  }
};

struct RowsAcross {
  using Held = uint64_t;  // where the row lies

  static EMBERLINE_DEVICE Held look_up(const Lookup& lookup, const Feature& feature, int64_t number,
                                       int64_t id_number) {
    const int64_t id = feature.ids[id_number];
    const uint32_t own = find_own_entry(lookup.header, feature, id);
    if (own > feature.slots) return 0;
    if (own != 0) {
      if (feature.uses != nullptr && leaves_mark(lookup, number, id_number)) store_relaxed(feature.uses + own, 1);
      return row_at(feature.slab, own, feature.stride);
    }
    const int64_t* words = lookup.features + number * kFeatureWords;
    const int64_t* peers = address<const int64_t>(words[kPeersWord]);
    const uint32_t parts = static_cast<uint32_t>(words[kPartsWord]);
    const int64_t* chains = packed_at<int64_t>(lookup.header, lookup.header[kPeerChainsWord]);
    if (peers == nullptr || chains == nullptr || parts < 2) return 0;
    const uint32_t part = part_of(mix_owner(id, table_salt(feature.table)), parts);
    const int64_t* chain = chains + part * kPeerChainWords;
    const int64_t* peer = peers + part * kPeerWords;
    const uint32_t own_part = static_cast<uint32_t>(static_cast<uint64_t>(words[kPartsWord]) >> 32);
    if (part == own_part || chain[0] < 0 || peer[0] == 0) return 0;
    const PeerBuckets buckets{address<const uint64_t>(peer[0]), static_cast<uint64_t>(peer[1])};
    const int length = static_cast<int>(clamp(chain[0], int64_t{0}, int64_t{kMostChain}));
    const uint32_t slot = find_entry(buckets, chain + 1, length, feature, id);
    if (slot == 0 || slot > static_cast<uint32_t>(peer[3])) return 0;
    uint8_t* uses = address<uint8_t>(peer[4]);
    if (uses != nullptr && leaves_mark(lookup, number, id_number)) store_relaxed_system(uses + slot, 1);
    return row_at(address<const uint8_t>(peer[2]), slot, feature.stride);
  }
  static EMBERLINE_DEVICE const uint8_t* row(const Feature&, Held held) {
    return reinterpret_cast<const uint8_t*>(held);
  }

 private:
  static EMBERLINE_DEVICE Held row_at(const uint8_t* slab, uint32_t slot, int64_t stride) {
    return reinterpret_cast<Held>(slab + static_cast<int64_t>(slot) * stride);
  }
};

}  // namespace emberline
