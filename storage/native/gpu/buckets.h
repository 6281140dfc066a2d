// The index of a GPU's cache as the host holds it: the buckets of cuda/cache_bucket.cuh in plain memory. The caller
// ensures that no two threads use one bucket at a time.
//
// Fields of the host alone stand beside the flags of a bucket, in the top byte of every word, and in the count; a word
// goes to the device without those (`published`).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "cache_bucket.cuh"
#include "table/pages.h"

namespace emberline {

struct alignas(64) GpuBucket {
  std::int64_t ids[kCacheBucketIds];
  std::uint64_t words[kCacheBucketIds];
};
static_assert(sizeof(GpuBucket) == 64);

namespace gpu_word {

constexpr std::uint64_t kPinned = 1ull << 57;   // is not evicted, and never moves
constexpr std::uint64_t kFresh = 1ull << 58;    // its row came in the set that is being collected
constexpr std::uint64_t kTouched = 1ull << 59;  // of the position: the set that is being collected knows what was here
constexpr std::uint64_t kOfPosition = word::kOverflow | kTouched;  // stay where they are when an owner comes or goes
constexpr std::uint64_t kCount = 0xFFull << 48;

// The word as it stands on the device: slot, table, and whether the bucket has overflowed.
inline std::uint64_t published(std::uint64_t w) { return w & ~kCount & (~word::kFlags | word::kOverflow); }
inline std::uint64_t with_count(std::uint64_t w, std::uint8_t count) {
  return (w & ~kCount) | std::uint64_t{count} << 48;
}
inline std::uint64_t with_slot(std::uint64_t w, std::uint32_t slot) { return (w & ~std::uint64_t{0xFFFFFFFF}) | slot; }

}  // namespace gpu_word

struct GpuIndexLoads {
  const GpuBucket& bucket;

  std::int64_t id(int at) const { return bucket.ids[at]; }
  std::uint64_t word(int at) const { return bucket.words[at]; }
  bool stays(int, std::int64_t) const { return true; }
};

// A position of the index, or none.
struct GpuPlace {
  GpuBucket* bucket = nullptr;
  int at = 0;

  std::int64_t id() const { return bucket->ids[at]; }
  std::uint64_t word() const { return bucket->words[at]; }
  std::uint32_t slot() const { return word::slot(word()); }
};

class GpuIndex {
 public:
  explicit GpuIndex(std::uint64_t count) : count_(count), pages_(count * sizeof(GpuBucket)) {}

  std::uint64_t count() const { return count_; }
  std::size_t bytes() const { return pages_.bytes(); }
  GpuBucket& bucket(std::uint64_t index) const { return reinterpret_cast<GpuBucket*>(pages_.data())[index]; }
  GpuIndexLoads loads(std::uint64_t index) const { return {bucket(index)}; }
  GpuBucket& first(std::uint64_t mixed) const { return bucket(first_bucket(mixed, count_)); }
  GpuBucket& second(std::uint64_t mixed) const { return bucket(second_bucket(mixed, count_)); }
  void prefetch(std::uint64_t mixed) const { __builtin_prefetch(&first(mixed), 1, 3); }
  void prefetch_second(std::uint64_t mixed) const {
    prefetch(mixed);
    __builtin_prefetch(&second(mixed), 1, 3);
  }
  std::uint32_t position(const GpuPlace& place) const {
    return static_cast<std::uint32_t>(place.bucket - &bucket(0)) * kCacheBucketIds +
           static_cast<std::uint32_t>(place.at);
  }
  GpuPlace place(std::uint32_t position) const {
    return {&bucket(position / kCacheBucketIds), static_cast<int>(position % kCacheBucketIds)};
  }

  // Calls found(i, place) for `from` to `to`, in any order. Buckets are on their way before they are looked at: first
  // ones a block ahead, second ones while the rest of the block is searched. mixed_of(id): of the owner that is
  // looked for.
  template <class MixedOf, class Give>
  void find_all(const std::int64_t* ids, std::size_t from, std::size_t to, std::uint32_t table, const MixedOf& mixed_of,
                const Give& found) const {
    constexpr std::size_t kBlock = 32;
    std::uint64_t mixed[2][kBlock];
    const auto fetch = [&](std::size_t start, std::uint64_t* into) {
      for (std::size_t i = start; i < std::min(to, start + kBlock); ++i) {
        into[i - start] = mixed_of(ids[i]);
        __builtin_prefetch(&first(into[i - start]), 0, 3);
      }
    };
    fetch(from, mixed[0]);
    bool turn = false;
    for (std::size_t start = from; start < to; start += kBlock, turn = !turn) {
      const std::uint64_t* const here = mixed[turn];
      fetch(start + kBlock, mixed[!turn]);
      std::size_t late[kBlock], late_count = 0;
      for (std::size_t i = start; i < std::min(to, start + kBlock); ++i) {
        GpuBucket& bucket = first(here[i - start]);
        const Match match = probe_bucket(GpuIndexLoads{bucket}, ids[i], table);
        if (match.at < 0 && (bucket.words[0] & word::kOverflow) != 0) {
          __builtin_prefetch(&second(here[i - start]), 0, 3);
          late[late_count++] = i;
          continue;
        }
        found(i, match.at < 0 ? GpuPlace{} : GpuPlace{&bucket, match.at});
      }
      for (std::size_t k = 0; k < late_count; ++k) {
        GpuBucket& bucket = second(here[late[k] - start]);
        const Match match = probe_bucket(GpuIndexLoads{bucket}, ids[late[k]], table);
        found(late[k], match.at < 0 ? GpuPlace{} : GpuPlace{&bucket, match.at});
      }
    }
  }

  GpuPlace find(std::int64_t id, std::uint32_t table, std::uint64_t mixed) const {
    const Found found = emberline::find(*this, id, table, mixed);
    return found.match.at < 0 ? GpuPlace{} : GpuPlace{&bucket(found.bucket), found.match.at};
  }

 private:
  std::uint64_t count_;
  Pages pages_;
};

}  // namespace emberline
