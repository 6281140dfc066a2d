// An open-addressing map from ids to 32-bit values other than 0, for one thread, that grows in small steps: no call
// moves more than one segment of entries, however large the map is. The whole int64 range.
//
// The highest bits of an id's hash choose a segment by a directory; the lowest bits are its home in the segment, with
// linear probing. A full segment is split in two by the next of the highest bits (extendible hashing). The hash has a
// key that differs from process to process: ids that were chosen to crowd one place do not.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "bucket.cuh"

namespace emberline {

class IdIndex {
 public:
  static constexpr std::uint32_t kAbsent = 0;

  IdIndex() { clear(); }

  std::uint64_t hash(std::int64_t id) const { return mix(static_cast<std::uint64_t>(id) + key_); }

  void prefetch(std::uint64_t mixed) const {
    const Segment& segment = of(mixed);
    const std::size_t home = mixed & kMask;
    __builtin_prefetch(&segment.ids[home], 0, 3);
    __builtin_prefetch(&segment.values[home], 0, 3);
  }

  // The value of an id, or kAbsent. mixed: hash(id).
  std::uint32_t get(std::int64_t id, std::uint64_t mixed) const {
    const Segment& segment = of(mixed);
    return segment.values[segment.position(id, mixed)];
  }
  std::uint32_t get(std::int64_t id) const { return get(id, hash(id)); }

  // value: not kAbsent.
  void set(std::int64_t id, std::uint32_t value) {
    const std::uint64_t mixed = hash(id);
    Segment* segment = &of(mixed);
    std::size_t at = segment->position(id, mixed);
    if (segment->values[at] == kAbsent) {
      while (segment->size == kMost) {
        split(mixed);
        segment = &of(mixed);
      }
      at = segment->position(id, mixed);
      segment->ids[at] = id;
      ++segment->size;
      ++size_;
    }
    segment->values[at] = value;
  }

  // Returns whether it was there.
  bool erase(std::int64_t id) {
    const std::uint64_t mixed = hash(id);
    Segment& segment = of(mixed);
    std::size_t hole = segment.position(id, mixed);
    if (segment.values[hole] == kAbsent) return false;
    // Moves back what would no longer be reached over the hole.
    for (std::size_t next = (hole + 1) & kMask; segment.values[next] != kAbsent; next = (next + 1) & kMask) {
      const std::size_t home = hash(segment.ids[next]) & kMask;
      if (((next - home) & kMask) >= ((next - hole) & kMask)) {
        segment.ids[hole] = segment.ids[next];
        segment.values[hole] = segment.values[next];
        hole = next;
      }
    }
    segment.values[hole] = kAbsent;
    --segment.size;
    --size_;
    return true;
  }

  void clear() {
    segments_.clear();
    segments_.push_back(std::make_unique<Segment>());
    directory_.assign(1, segments_.front().get());
    depth_ = 0;
    size_ = 0;
  }

  template <class Visit>
  void each(Visit visit) const {  // visit(id, value), in no order that means anything
    for (const auto& segment : segments_) segment->each(visit);
  }

  std::size_t size() const { return size_; }
  std::size_t bytes() const {
    return segments_.size() * sizeof(Segment) + directory_.capacity() * sizeof(Segment*) +
           segments_.capacity() * sizeof(segments_[0]);
  }

 private:
  static constexpr std::size_t kPositions = 512, kMask = kPositions - 1;
  static constexpr std::uint32_t kMost = kPositions * 7 / 8;

  struct Segment {
    std::int64_t ids[kPositions];
    std::uint32_t values[kPositions] = {};
    std::uint32_t size = 0;
    std::uint32_t depth = 0;  // how many of the highest bits all its ids share

    // Where an id is, or would be entered.
    std::size_t position(std::int64_t id, std::uint64_t mixed) const {
      std::size_t at = mixed & kMask;
      while (values[at] != kAbsent && ids[at] != id) at = (at + 1) & kMask;
      return at;
    }

    template <class Visit>
    void each(Visit visit) const {
      for (std::size_t at = 0; at < kPositions; ++at) {
        if (values[at] != kAbsent) visit(ids[at], values[at]);
      }
    }
  };

  static std::uint64_t draw() {
    static const std::uint64_t drawn = std::random_device{}() | std::uint64_t{std::random_device{}()} << 32 | 1;
    return drawn;
  }

  std::size_t directory_entry(std::uint64_t mixed) const { return depth_ == 0 ? 0 : mixed >> (64 - depth_); }
  Segment& of(std::uint64_t mixed) const { return *directory_[directory_entry(mixed)]; }

  void split(std::uint64_t mixed) {
    Segment* old = &of(mixed);
    if (old->depth == depth_) {
      std::vector<Segment*> doubled(directory_.size() * 2);
      for (std::size_t entry = 0; entry < doubled.size(); ++entry) doubled[entry] = directory_[entry / 2];
      directory_ = std::move(doubled);
      ++depth_;
    }
    segments_.push_back(std::make_unique<Segment>());
    Segment* upper = segments_.back().get();
    const Segment before = *old;
    std::memset(old->values, 0, sizeof(old->values));
    old->size = 0;
    old->depth = upper->depth = before.depth + 1;
    const int bit = 64 - static_cast<int>(old->depth);
    before.each([&](std::int64_t id, std::uint32_t value) {
      const std::uint64_t whole = hash(id);
      Segment& to = (whole >> bit & 1) != 0 ? *upper : *old;
      const std::size_t at = to.position(id, whole);
      to.ids[at] = id;
      to.values[at] = value;
      ++to.size;
    });
    // The entries of the old segment are neighbours; the upper half of them is the new one's.
    const std::size_t each = std::size_t{1} << (depth_ - old->depth);
    const std::size_t first = directory_entry(mixed) / (2 * each) * (2 * each) + each;
    for (std::size_t entry = first; entry < first + each; ++entry) directory_[entry] = upper;
  }

  std::uint64_t key_ = draw();
  std::vector<std::unique_ptr<Segment>> segments_;
  std::vector<Segment*> directory_;
  std::uint32_t depth_ = 0;
  std::size_t size_ = 0;
};

}  // namespace emberline
