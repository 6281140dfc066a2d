// One embedding table in DRAM: an index of lines over a slab of rows.
//
// Many readers beside one writer. Rows are immutable once visible: an update writes a fresh slot and publishes its number; the old slot waits in
// limbo until every reader that could hold it has left. Training uses the in-place accessors in phases where no reader runs.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <vector>

#include "table/frequency.h"
#include "table/index.h"
#include "table/pages.h"

namespace emberline {

struct CapacityExceeded : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class Table {
 public:
  // dim: floats of a row that lookups return. extra: floats behind them (optimizer slots). capacity_rows: 0 grows without a bound.
  Table(uint32_t dim, uint32_t extra, uint64_t capacity_rows);
  ~Table();

  uint32_t dim() const { return dim_; }
  uint32_t extra() const { return extra_; }
  uint32_t row_floats() const { return dim_ + extra_; }
  uint64_t capacity_rows() const { return capacity_; }
  uint64_t size() const { return size_.load(std::memory_order_relaxed); }
  size_t memory_bytes() const;

  // ids (n) -> out (n, dim), found (n); absent rows are zero. Returns the hits.
  size_t find(const int64_t* ids, size_t n, float* out, uint8_t* found) const;

  // ids (n) -> slots (n), kEmptySlot where absent; prefetches the rows. The caller holds a guard while it uses the slots.
  void resolve(const int64_t* ids, size_t n, uint32_t* slots) const;
  const float* row(uint32_t slot) const { return rows_at(slot); }

  // The writer's verbs; rows are (n, dim + extra). All or nothing where they throw CapacityExceeded.
  void insert_or_assign(const int64_t* ids, const float* rows, size_t n);
  size_t insert_and_evict(const int64_t* ids, const float* rows, size_t n);
  size_t assign(const int64_t* ids, const float* rows, size_t n);
  size_t erase(const int64_t* ids, size_t n);
  void reserve(uint64_t rows);

  // Walks the index from line `cursor`; stops after the line that reaches `limit` rows. Returns the next cursor, -1 at the end.
  int64_t export_batch(int64_t cursor, size_t limit, std::vector<int64_t>& ids, std::vector<float>& rows,
                       std::vector<uint8_t>& scores) const;

  // Throws std::logic_error when index, slab and free list disagree.
  void check_integrity() const;

  // For training, in phases without readers: the row's own memory, and a new row of zeros.
  float* row_in_place(uint32_t slot) { return rows_at(slot); }
  uint32_t slot_of(int64_t id) const;
  uint32_t create(int64_t id);

 private:
  static constexpr uint32_t kSampleEvery = 4;

  float* rows_at(uint32_t slot) const { return reinterpret_cast<float*>(slab_.data()) + size_t{slot} * row_floats(); }
  std::atomic_ref<uint8_t> score(uint32_t slot) const {
    return std::atomic_ref<uint8_t>(*reinterpret_cast<uint8_t*>(scores_.data() + slot));
  }
  Index& index() const { return *index_.load(std::memory_order_acquire); }
  bool take_slot(uint32_t& slot);
  void retire_slot(uint32_t slot);
  void harvest();
  void place(int64_t id, uint32_t slot);
  void grow(uint64_t lines);
  void publish_row(int64_t id, const float* row, uint32_t slot, bool present);
  bool evict_for(int64_t id);
  void age();

  const uint32_t dim_;
  const uint32_t extra_;
  const uint64_t capacity_;

  Pages slab_;
  Pages scores_;
  std::atomic<Index*> index_{nullptr};
  std::unique_ptr<Index> current_;
  std::atomic<uint64_t> size_{0};

  mutable std::mutex writer_;
  uint64_t next_slot_ = 0;
  std::vector<uint32_t> free_;
  std::deque<std::pair<uint64_t, uint32_t>> limbo_;  // (stamp, slot), oldest first
  std::optional<Sketch> sketch_;                     // caches only
  uint64_t hand_ = 0;                                // next line that eviction looks at
  uint64_t touches_ = 0;
  mutable std::atomic<uint64_t> sampled_{0};
};

}  // namespace emberline
