// Locks of a cache's buckets, for a call in which several threads may come to any bucket. Two buckets may have the same
// one.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>

namespace emberline {

class BucketLocks {
 public:
  BucketLocks() : taken_(std::make_unique<std::atomic<std::uint8_t>[]>(kCount)) {}

  static std::size_t of(std::uint64_t bucket) { return bucket & (kCount - 1); }
  void prefetch(std::uint64_t bucket) const { __builtin_prefetch(&taken_[of(bucket)], 1, 3); }

  // Holds one bucket's lock until the end of the scope.
  class Held {
   public:
    Held(BucketLocks& locks, std::uint64_t bucket) : lock_(&locks.taken_[of(bucket)]) {
      for (int turn = 0; lock_->exchange(1, std::memory_order_acquire) != 0; ++turn) {
        if (turn >= kTurns) std::this_thread::yield();
      }
    }
    // Does not wait: `is_held` says whether it has the lock. It has not where the thread itself holds it already.
    Held(BucketLocks& locks, std::uint64_t bucket, std::try_to_lock_t) : lock_(&locks.taken_[of(bucket)]) {
      if (lock_->exchange(1, std::memory_order_acquire) != 0) lock_ = nullptr;
    }
    Held(const Held&) = delete;
    Held& operator=(const Held&) = delete;
    ~Held() {
      if (lock_ != nullptr) lock_->store(0, std::memory_order_release);
    }
    bool is_held() const { return lock_ != nullptr; }

   private:
    std::atomic<std::uint8_t>* lock_;
  };

 private:
  static constexpr std::size_t kCount = 1 << 14;
  static constexpr int kTurns = 64;  // then the other thread may have lost its core

  std::unique_ptr<std::atomic<std::uint8_t>[]> taken_;
};

}  // namespace emberline
