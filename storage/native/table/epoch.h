// Epochs: how a writer knows that no reader can still hold what it unlinked.
//
// A reader announces the current epoch in a slot of its own and clears it when it leaves. A writer unlinks something, takes a stamp
// (which advances the epoch), and may reuse the thing when every announced epoch is greater than the stamp.
//
// No fences: the reader's announcement and the writer's scan are read-modify-writes of the same slot, so one comes first in the slot's
// modification order. If the scan came first, the reader's announcement reads from it and therefore sees what the writer unlinked.
#pragma once

#include <atomic>
#include <cstdint>

namespace emberline {

class Epochs {
 public:
  static constexpr int kReaders = 128;

  // Held for the length of one batch call, never across I/O: a held guard keeps every row retired since from being reused.
  class Guard {
   public:
    explicit Guard(Epochs& epochs) : slot_(epochs.enter()) {}
    ~Guard() { slot_->store(0, std::memory_order_release); }
    Guard(const Guard&) = delete;
    Guard& operator=(const Guard&) = delete;

   private:
    std::atomic<uint64_t>* slot_;
  };

  // Stamp for what was unlinked before this call.
  uint64_t retire() { return epoch_.fetch_add(1, std::memory_order_acq_rel); }

  // Everything stamped below the result is out of every reader's reach.
  uint64_t safe_below();

  // Waits until `stamp` is safe. Readers hold a guard for one batch at most, so the wait is short.
  void wait_for(uint64_t stamp);

  // One domain for the process: a lookup over many tables announces itself once.
  static Epochs& global();

 private:
  struct alignas(64) Slot {
    std::atomic<uint64_t> epoch{0};
  };

  std::atomic<uint64_t>* enter();

  alignas(64) std::atomic<uint64_t> epoch_{1};
  Slot slots_[kReaders];
};

}  // namespace emberline
