// The rows of a cache by slot, and which slots are free. A row's address holds while its slot is in use. Slots are
// taken from the low end; after a cut, memory of slots above it goes back to the system.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "table/epoch.h"
#include "table/pages.h"

namespace emberline {

class RowSlots {
 public:
  // most: slots run from 1 to this number. grace: that of the writer, which outlives this.
  RowSlots(std::size_t row_bytes, std::uint32_t most, Grace& grace);

  char* row(std::uint32_t slot) const {
    return reinterpret_cast<std::atomic<char*>*>(directory_.data())[slot >> shift_].load(std::memory_order_relaxed) +
           (slot & mask_) * row_bytes_;
  }

  // Under the writer's mutex. A slot of its own; waits for readers when none is free but some are retired. Throws
  // std::bad_alloc.
  std::uint32_t take();
  void put_back(std::uint32_t slot);  // takes a slot that no reader has seen
  void retire(std::uint32_t slot);  // called after the store that took it away from new readers
  void reclaim();  // frees the retired slots that no reader can hold
  void drain();  // waits until all retired slots are free

  std::uint32_t most() const { return most_; }
  std::uint32_t used() const { return used_; }  // no slot above was taken since the last cut
  // New slots come from [1, most]. Those above stay valid until `cut`.
  void set_most(std::uint32_t most);
  // Slots above `most` that are in use or retired.
  std::uint32_t above() const { return above_; }
  // Gives back the memory above `most`. No slot up there is in use, none is retired.
  void cut();

  std::size_t bytes() const;
  template <class Visit>
  void each_unused(Visit visit) const {  // visit(slot)
    for (const std::uint32_t slot : free_) visit(slot);
    for (const auto& old : old_) visit(old.second);
  }

 private:
  std::size_t row_bytes_;
  int shift_;
  std::uint32_t mask_;
  std::uint32_t most_;
  std::uint32_t used_ = 0;
  std::uint32_t above_ = 0;
  Grace& grace_;
  Pages directory_;
  std::vector<Pages> chunks_;
  std::vector<std::uint32_t> free_;
  std::deque<std::pair<std::uint64_t, std::uint32_t>> old_;  // grace group, slot
};

}  // namespace emberline
