// An open-addressing map from ids to small values, for one thread: ids to positions within a batch, ids to counts.
// Linear probing; the whole int64 range; clearing costs nothing but a new generation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "bucket.cuh"

namespace emberline {

class IdMap {
 public:
  // The value of an id, which is 0 when it is new. The reference holds until the next call.
  std::uint32_t& operator[](std::int64_t id) {
    if ((size_ + 1) * 10 > entries_.size() * 7) grow();
    Entry& entry = entries_[position(id)];
    if (entry.generation != generation_) {
      entry = {id, 0, generation_};
      ++size_;
    }
    return entry.value;
  }

  const std::uint32_t* find(std::int64_t id) const {
    if (size_ == 0) return nullptr;
    const Entry& entry = entries_[position(id)];
    return entry.generation == generation_ ? &entry.value : nullptr;
  }

  void erase(std::int64_t id) {
    if (size_ == 0) return;
    std::size_t hole = position(id);
    if (entries_[hole].generation != generation_) return;
    // Moves back what would no longer be reached over the hole.
    for (std::size_t next = (hole + 1) & mask(); entries_[next].generation == generation_; next = (next + 1) & mask()) {
      const std::size_t home = mix_id(entries_[next].id) & mask();
      if (((next - home) & mask()) >= ((next - hole) & mask())) {
        entries_[hole] = entries_[next];
        hole = next;
      }
    }
    entries_[hole].generation = 0;
    --size_;
  }

  void clear() {
    size_ = 0;
    if (++generation_ == 0) {  // wrapped: old marks would look new
      for (Entry& entry : entries_) entry.generation = 0;
      generation_ = 1;
    }
  }

  template <class Visit>
  void each(Visit visit) const {
    for (const Entry& entry : entries_) {
      if (entry.generation == generation_) visit(entry.id, entry.value);
    }
  }

  std::size_t size() const { return size_; }
  std::size_t bytes() const { return entries_.capacity() * sizeof(Entry); }

 private:
  struct Entry {
    std::int64_t id = 0;
    std::uint32_t value = 0;
    std::uint32_t generation = 0;
  };

  std::size_t mask() const { return entries_.size() - 1; }

  std::size_t position(std::int64_t id) const {
    std::size_t at = mix_id(id) & mask();
    while (entries_[at].generation == generation_ && entries_[at].id != id) at = (at + 1) & mask();
    return at;
  }

  void grow() {
    std::vector<Entry> old(entries_.empty() ? 64 : entries_.size() * 2);
    old.swap(entries_);
    for (const Entry& entry : old) {
      if (entry.generation == generation_) entries_[position(entry.id)] = entry;
    }
  }

  std::vector<Entry> entries_;
  std::size_t size_ = 0;
  std::uint32_t generation_ = 1;
};

}  // namespace emberline
