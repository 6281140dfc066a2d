// A budget of DRAM that several tables share. A quarter of it is kept for all tables in equal parts; the rest goes to
// those that ask first, because memory that a table has used is not given back.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

namespace emberline {

// A table's share does not hold what it needs at once.
class BudgetExceeded : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Thread-safe.
class RowBudget {
 public:
  explicit RowBudget(std::size_t dram_bytes) : dram_bytes_(dram_bytes), left_(dram_bytes) {}

  std::size_t dram_bytes() const { return dram_bytes_; }

  // Adds a table, whose share is 0 at first, and returns its number. All tables join before the first one asks.
  // fixed_bytes: what it takes beside its share, as its filter does. Throws BudgetExceeded when nothing is left.
  std::size_t join(const std::string& name, std::size_t fixed_bytes) {
    const std::lock_guard lock(mutex_);
    if (fixed_bytes >= left_) {
      throw BudgetExceeded("dram_bytes: the filter of table '" + name + "' takes " + std::to_string(fixed_bytes) +
                           " bytes, and with it nothing is left of " + std::to_string(dram_bytes_) +
                           " for rows; give more dram_bytes, or a filter for fewer ids");
    }
    left_ -= fixed_bytes;
    shares_.push_back(0);
    return shares_.size() - 1;
  }

  // What every table can have, whatever the others took.
  std::size_t kept() const {
    const std::lock_guard lock(mutex_);
    return kept_locked();
  }

  // Lets a table's share grow to `wanted` bytes, and some more, as far as there is room. Returns its share.
  std::size_t ask(std::size_t table, std::size_t wanted) {
    const std::lock_guard lock(mutex_);
    std::size_t& share = shares_[table];
    if (wanted <= share) return share;
    std::size_t taken = 0;  // what the others have, or can have in any case
    for (std::size_t other = 0; other < shares_.size(); ++other) {
      if (other != table) taken += std::max(shares_[other], kept_locked());
    }
    const std::size_t most = left_ > taken ? left_ - taken : 0;
    share = std::max(share, std::min(most, wanted + share / kStep));
    return share;
  }

  // Whether reading ahead is worth its system calls: batches waited for the disk lately.
  bool reads_disk() const { return ahead_.load(std::memory_order_relaxed) > 0; }
  void add_waits(std::uint64_t waits) { waits_.fetch_add(waits, std::memory_order_relaxed); }
  // Begins a batch of all tables. Returns reads_disk().
  bool begin_batch() {
    if (waits_.exchange(0, std::memory_order_relaxed) >= kWaits) {
      ahead_.store(kBatchesAhead, std::memory_order_relaxed);
    } else if (reads_disk()) {
      ahead_.fetch_sub(1, std::memory_order_relaxed);
    }
    return reads_disk();
  }

  std::size_t share(std::size_t table) const {
    const std::lock_guard lock(mutex_);
    return shares_[table];
  }

 private:
  static constexpr std::size_t kKept = 4;  // this part of the budget is kept
  // A table gets this part of its share beyond what it asks for, so that it does not ask with every batch.
  static constexpr std::size_t kStep = 4;
  // After a batch that waited so often, so many are read ahead. Then one is not, which shows whether they have to be.
  static constexpr std::uint64_t kWaits = 32;
  static constexpr int kBatchesAhead = 64;

  std::size_t kept_locked() const { return left_ / kKept / std::max<std::size_t>(1, shares_.size()); }

  const std::size_t dram_bytes_;
  mutable std::mutex mutex_;
  std::size_t left_;
  std::vector<std::size_t> shares_;
  std::atomic<std::uint64_t> waits_{0};  // of this batch
  std::atomic<int> ahead_{0};  // batches that are still read ahead
};

}  // namespace emberline
