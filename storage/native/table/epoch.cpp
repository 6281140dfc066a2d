#include "table/epoch.h"

#include <algorithm>
#include <thread>

namespace emberline {

std::atomic<uint64_t>* Epochs::enter() {
  static std::atomic<unsigned> next_hint{0};
  thread_local unsigned hint = next_hint.fetch_add(1, std::memory_order_relaxed);
  for (;;) {
    for (int tried = 0; tried < kReaders; ++tried) {
      std::atomic<uint64_t>& slot = slots_[(hint + static_cast<unsigned>(tried)) % kReaders].epoch;
      uint64_t free = 0;
      const uint64_t now = epoch_.load(std::memory_order_acquire);
      if (slot.compare_exchange_strong(free, now, std::memory_order_acq_rel, std::memory_order_relaxed)) {
        hint = (hint + static_cast<unsigned>(tried)) % kReaders;
        return &slot;
      }
    }
    std::this_thread::yield();  // more simultaneous readers than slots: wait for one to leave
  }
}

uint64_t Epochs::safe_below() {
  uint64_t oldest = epoch_.load(std::memory_order_acquire);
  for (Slot& slot : slots_) {
    // An addition of nothing: it takes its place in the slot's modification order, which a load would not.
    const uint64_t announced = slot.epoch.fetch_add(0, std::memory_order_acq_rel);
    if (announced != 0) oldest = std::min(oldest, announced);
  }
  return oldest;
}

void Epochs::wait_for(uint64_t stamp) {
  while (safe_below() <= stamp) std::this_thread::yield();
}

Epochs& Epochs::global() {
  static Epochs epochs;
  return epochs;
}

}  // namespace emberline
