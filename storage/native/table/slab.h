// Rows of one size and their use counters, by slot. Chunks never move, so a row's address holds for the life of its
// slot.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "table/pages.h"

namespace emberline {

// Addresses of rows, for loops that keep them in registers.
struct SlabView {
  const std::atomic<char*>* chunks;
  int shift;
  std::uint32_t mask;
  std::size_t row_bytes;

  // The chunk's address was stored before the slot was published, and the slot was loaded with acquire.
  char* chunk(std::uint32_t slot) const { return chunks[slot >> shift].load(std::memory_order_relaxed); }
  char* row(std::uint32_t slot) const { return chunk(slot) + (slot & mask) * row_bytes; }
};

class Slab {
 public:
  // row_bytes: a multiple of 4. most_slots: slots run from 1 to this number (0 is "empty").
  Slab(std::size_t row_bytes, std::uint64_t most_slots);

  char* row(std::uint32_t slot) const { return view_.row(slot); }
  const SlabView& view() const { return view_; }
  std::atomic<std::uint8_t>& score(std::uint32_t slot) const {
    return reinterpret_cast<std::atomic<std::uint8_t>*>(view_.chunk(slot) + scores_at_)[slot & view_.mask];
  }

  // A slot that was never used; 0 when there is none. Called by the writer alone.
  std::uint32_t extend();
  std::uint32_t used() const { return used_; }
  std::uint64_t most_slots() const { return most_slots_; }
  std::size_t bytes() const { return (std::size_t{used_} + 1) * (view_.row_bytes + 1); }

 private:
  using Chunk = std::atomic<char*>;

  SlabView view_;
  std::uint64_t most_slots_;
  std::size_t scores_at_;
  Pages directory_;
  std::vector<Pages> chunks_;
  std::uint32_t used_ = 0;
};

}  // namespace emberline
