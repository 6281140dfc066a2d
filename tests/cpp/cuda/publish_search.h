// The search of a reader in the model of cuda/publish.cuh (publish_model.h): that of lookup.cuh, on its own GPU or on
// another, with its loads led to the histories of the model.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "memory_order.cuh"
#include "publish_program.h"

namespace publish_model {

constexpr int kMostLoads = 64;
constexpr int kAnyCurrent = -1;
constexpr int kNoRow = -2;

// What a reader may enter for. expected: a version, or one of the two above. phases: in which, as bits. across: from
// another GPU, whose own index is empty; the chain is then the one that it has of this GPU.
struct Lookup {
  Owner owner;
  std::vector<std::uint32_t> chain;
  int expected = kAnyCurrent;
  std::uint32_t phases = ~0u;
  bool across = false;
};

// The search of one reader, again from its beginning: it gets what it loaded before, and tells what it wants next.
struct Replay {
  const Program& program;
  const std::uint8_t* log;
  int logged;
  bool across = false;
  int loads = 0, wanted = -1;
  bool astray = false;  // it loaded the memory of another GPU as if it were its own
  std::array<std::uint8_t, kMostLoads> locations{};

  std::uint64_t take(int location) {
    if (loads < logged) {
      const Message& message = program.history(location)[log[loads]];
      locations[loads++] = static_cast<std::uint8_t>(location);
      return message.value;
    }
    if (wanted < 0) wanted = location;
    return 0;
  }
};
inline Replay* replay = nullptr;
// Only their addresses are used: of the index that is published, and of the empty one of a reader on another GPU.
inline std::uint64_t buckets[kBucketLocations];
inline std::uint64_t nobodys_buckets[kBucketLocations];

// Where a load of the published index goes, or -1 for the empty one. of_gpu: whether it is ordered within its GPU
// alone.
inline int location_of(const void* from, bool of_gpu) {
  const auto* const word = static_cast<const std::uint64_t*>(from);
  if (word >= nobodys_buckets && word < nobodys_buckets + kBucketLocations) return -1;
  replay->astray = replay->astray || (of_gpu && replay->across);
  return static_cast<int>(word - buckets);
}
inline emberline::IdPair load_pair(const std::int64_t* from, bool of_gpu) {
  const int location = location_of(from, of_gpu);
  if (location < 0) return {0, 0};
  const auto low = static_cast<std::int64_t>(replay->take(location));
  return {low, static_cast<std::int64_t>(replay->take(location + 1))};
}

}  // namespace publish_model

namespace emberline {
inline IdPair modelled_pair(const int64_t* from) { return publish_model::load_pair(from, true); }
inline IdPair modelled_pair_system(const int64_t* from) { return publish_model::load_pair(from, false); }
}  // namespace emberline
#define load_pair_relaxed modelled_pair
#define load_pair_relaxed_system modelled_pair_system
#include "lookup_across.cuh"
#undef load_pair_relaxed
#undef load_pair_relaxed_system

namespace publish_model {

static_assert(kHostsRow == emberline::kAskHost);

// The slot that a lookup finds, 0 without one, by the loads of `replay`.
inline std::uint32_t find_own(const Lookup& lookup) {
  std::int64_t header[emberline::kPackedFeatureWord + emberline::kPackedFeatureWords] = {};
  header[emberline::kChainLengthWord] = static_cast<std::int64_t>(lookup.chain.size());
  for (std::size_t i = 0; i < lookup.chain.size(); ++i) header[emberline::kChainWord + i] = lookup.chain[i];
  std::int64_t words[emberline::kFeatureWords] = {};
  words[0] = reinterpret_cast<std::int64_t>(buckets);
  words[1] = kBuckets;
  words[3] = kSlots;
  words[7] = lookup.owner.table;
  words[9] = kBaseTables;
  const emberline::Feature feature = emberline::feature_at(words, header, 0);
  return emberline::OwnRows::find(header, feature, lookup.owner.id);
}

inline std::uint32_t find_across(const Lookup& lookup) {
  constexpr std::int64_t kParts = 2;
  constexpr int kFeatureEnd = emberline::kPackedFeatureWord + emberline::kPackedFeatureWords;
  constexpr int kChainsEnd = kFeatureEnd + static_cast<int>(kParts) * emberline::kPeerChainWords;
  static std::uint8_t slab[kSlots + 1];  // only its addresses are used
  const std::uint64_t mixed = emberline::mix_owner(lookup.owner.id, emberline::table_salt(lookup.owner.table));
  const std::uint32_t part = emberline::part_of(mixed, kParts);
  std::int64_t header[kChainsEnd + 1] = {};
  header[emberline::kPeerChainsWord] = 8 * kFeatureEnd;
  std::int64_t* const packed = header + emberline::kPackedFeatureWord;
  packed[0] = 8 * kChainsEnd;
  packed[1] = 1;
  std::int64_t* const chain = header + kFeatureEnd + part * emberline::kPeerChainWords;
  chain[0] = static_cast<std::int64_t>(lookup.chain.size());
  for (std::size_t i = 0; i < lookup.chain.size(); ++i) chain[1 + i] = lookup.chain[i];
  header[kChainsEnd] = lookup.owner.id;
  std::int64_t peers[kParts * emberline::kPeerWords] = {};
  std::int64_t* const peer = peers + part * emberline::kPeerWords;
  peer[0] = reinterpret_cast<std::int64_t>(buckets);
  peer[1] = kBuckets;
  peer[2] = reinterpret_cast<std::int64_t>(slab);
  peer[3] = kSlots;
  std::int64_t words[emberline::kFeatureWords] = {};
  words[0] = reinterpret_cast<std::int64_t>(nobodys_buckets);
  words[1] = kBuckets;
  words[3] = kSlots;
  words[4] = 1;
  words[7] = lookup.owner.table;
  words[9] = kBaseTables;
  words[10] = 1;
  words[11] = reinterpret_cast<std::int64_t>(peers);
  words[12] = (1 - static_cast<std::int64_t>(part)) << 32 | kParts;
  const emberline::Lookup launch{words, header, 1, nullptr, nullptr, 0, -1};
  const emberline::Feature feature = emberline::feature_at(words, header, 0);
  const emberline::RowsAcross::Held row = emberline::RowsAcross::look_up(launch, feature, 0, 0);
  return row == 0 ? 0 : static_cast<std::uint32_t>(row - reinterpret_cast<std::uint64_t>(slab));
}

inline std::uint32_t find(const Lookup& lookup) {
  replay->across = lookup.across;
  return lookup.across ? find_across(lookup) : find_own(lookup);
}

}  // namespace publish_model
