// The ids that the changes on top of a page file hold: a set that only grows, read by any number of threads without a
// lock.
//
// Open addressing over an array of ids. One id stands for "free" in the array and is kept as a flag of its own, so
// every int64 is legal. A full array is replaced by one of twice the size; readers may still hold the old one, so it is
// kept until the set goes, which costs at most as much as the newest array.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace emberline::pages {

class ChangeSet {
 public:
  ChangeSet();

  // Adds ids, which every `contains` that begins after this has returned sees. Thread-safe.
  void add(const std::int64_t* ids, std::size_t n);

  // flags[i]: 1 when ids[i] was added. Returns how many were.
  std::size_t contains(const std::int64_t* ids, std::size_t n, std::uint8_t* flags) const;

  std::size_t size() const { return size_.load(std::memory_order_acquire); }
  std::size_t memory_bytes() const;
  // Ascending. As of some moment during the call.
  std::vector<std::int64_t> sorted() const;

 private:
  struct Array {
    explicit Array(std::size_t places);
    std::unique_ptr<std::atomic<std::int64_t>[]> ids;
    std::size_t mask;
  };

  static bool put(Array& array, std::int64_t id);
  static bool has(const Array& array, std::int64_t id);

  mutable std::mutex writing_;
  std::vector<std::unique_ptr<Array>> arrays_;  // under writing_
  std::atomic<const Array*> newest_;
  std::atomic<std::size_t> size_{0};
  std::atomic<bool> has_free_id_{false};
};

}  // namespace emberline::pages
