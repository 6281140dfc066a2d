// A table of embedding rows in DRAM: exact ids, readers without locks beside one writer at a time.
//
// Rows are immutable once visible: an update fills a fresh slot and publishes it with one store. Old slots, and old
// bucket arrays after growth, are reused when every reader that could hold them has left (epoch.h). N ids, D = dim +
// extra. Rows are held encoded (rows/codec.h); `extra` float32 values, which only a table of fp32 rows has, lie behind.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <utility>
#include <vector>

#include "table/buckets.h"
#include "table/epoch.h"
#include "table/sketch.h"
#include "table/slab.h"
#include "table/source.h"

namespace emberline {

// No room: the capacity is used up, or the ids crowd so few buckets that more of them would not help.
struct CapacityExceeded : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct ExportedRows {
  std::int64_t next_cursor = -1;
  std::vector<std::int64_t> ids;
  std::vector<float> rows;  // (n, D), of export_batch
  std::vector<std::uint8_t> encoded;  // (n, row_bytes), of export_encoded
  std::vector<std::uint8_t> freq;
};

class Table : public RowSource {
 public:
  // extra: floats per row behind dim. capacity_rows: 0 grows without bound. Throws std::invalid_argument.
  Table(std::uint32_t dim, std::uint32_t extra, std::uint64_t capacity_rows, RowType type = RowType::kFp32);
  Table(const Table&) = delete;
  Table& operator=(const Table&) = delete;

  RowFormat format() const override { return format_; }
  RowPipeline& start(PipelineSpace& space, const std::int64_t* ids, std::size_t n, const char** rows) const override;

  std::uint32_t dim() const { return format_.dim; }
  std::uint32_t extra() const { return extra_; }
  // Bytes of a row as it is held, `extra` included.
  std::size_t stride() const { return format_.bytes() + extra_ * sizeof(float); }
  std::uint64_t capacity_rows() const { return capacity_; }
  std::uint64_t size() const { return size_.load(std::memory_order_relaxed); }
  std::size_t memory_bytes() const;

  // ids (n), out (n, dim), found (n). Rows of absent ids are zeros. threads: at most, this one included; one for each
  // 2,048 ids. Returns the number found. Throws std::invalid_argument unless threads is 1 to 64.
  std::size_t find(const std::int64_t* ids, std::size_t n, float* out, std::uint8_t* found,
                   std::size_t threads = 1) const;

  // rows (n, D) float32, or (n, row_bytes) encoded. freq: use counts as in bucket.cuh, or null. Throws
  // CapacityExceeded; the ids before the one that did not fit are in. Throws std::invalid_argument for rows that cannot
  // be encoded; then none is in.
  void insert_or_assign(const std::int64_t* ids, std::size_t n, RowInput rows, const std::uint8_t* freq);
  // Leaves rows that are there. A full table admits an id that was asked for more often than the row it displaces.
  std::size_t insert_and_evict(const std::int64_t* ids, std::size_t n, RowInput rows);
  std::size_t assign(const std::int64_t* ids, std::size_t n, RowInput rows);
  std::size_t erase(const std::int64_t* ids, std::size_t n);
  void reserve(std::uint64_t rows);

  // Called from cursor 0 until next_cursor is -1. Every row comes once if nothing is inserted meanwhile.
  ExportedRows export_batch(std::uint64_t cursor, std::size_t limit) const;
  ExportedRows export_encoded(std::uint64_t cursor, std::size_t limit) const;
  // Throws std::logic_error that says which rule is broken.
  void check_integrity() const;

  // The next methods serve the training phases, in which there is one caller and no other reader: rows may be written
  // in place.
  std::uint32_t locate(std::int64_t id) const;  // slot, or kEmptySlot
  std::uint32_t create(std::int64_t id);  // the id must be absent; the row is not initialised
  const char* address(std::uint32_t slot) const { return slab_.row(slot); }
  float* row(std::uint32_t slot) const { return reinterpret_cast<float*>(slab_.row(slot)); }  // row of an fp32 table
  template <class Visit>
  void each(Visit visit) const {  // visit(id, slot), in no order that means anything
    for (std::uint64_t index = 0; index < buckets().count(); ++index) {
      const Bucket& bucket = buckets().bucket(index);
      for (int at = 0; at < kBucketIds; ++at) {
        const std::uint32_t slot = bucket.slots[at].load(std::memory_order_relaxed);
        if (slot != kEmptySlot) visit(bucket.ids[at].load(std::memory_order_relaxed), slot);
      }
    }
  }

 private:
  friend class TablePipeline;

  struct Place {
    Bucket* bucket = nullptr;
    int at = 0;
  };

  std::size_t find_part(const std::int64_t* ids, std::size_t n, float* out, std::uint8_t* found) const;

  // write.cpp, under the mutex
  Place find_place(std::int64_t id) const;
  std::uint32_t take_slot();
  void write_row(std::uint32_t slot, RowInput rows, std::size_t at);
  bool insert_new(std::int64_t id, RowInput rows, std::size_t at, std::uint8_t score, bool may_grow);
  bool enter(std::int64_t id, std::uint32_t slot, bool may_grow);
  void replace_row(Place place, RowInput rows, std::size_t at);
  void remove(Place place);
  void reclaim();
  bool make_room(std::uint32_t candidate_count);
  void age();

  // placement.cpp, under the mutex
  bool place(std::int64_t id, std::uint32_t slot, bool may_grow);
  bool try_place(BucketArray& buckets, std::int64_t id, std::uint32_t slot, bool shared);
  bool try_bucket(BucketArray& buckets, Bucket& bucket, std::int64_t id, std::uint32_t slot, bool shared);
  bool displace(BucketArray& buckets, std::int64_t id, std::uint32_t slot, bool shared);
  bool may_change_owner(const BucketArray& buckets, const Bucket& bucket, int at, bool shared);
  void set_owner(const BucketArray& buckets, Bucket& bucket, int at, std::int64_t id, std::uint32_t slot, bool shared);
  void grow(std::uint64_t count);

  ExportedRows export_rows(std::uint64_t cursor, std::size_t limit, bool encoded) const;
  BucketArray& buckets() const { return *buckets_.load(std::memory_order_relaxed); }

  RowFormat format_;
  std::uint32_t extra_;
  std::uint64_t capacity_;
  std::atomic<std::uint64_t> size_{0};
  std::atomic<BucketArray*> buckets_;
  Slab slab_;
  mutable std::atomic<std::uint64_t> uses_{0};  // since the last ageing

  mutable std::mutex mutex_;
  Grace grace_;
  std::unique_ptr<BucketArray> owned_buckets_;
  std::deque<std::pair<std::uint64_t, std::unique_ptr<BucketArray>>> old_buckets_;  // grace group, array
  std::deque<std::pair<std::uint64_t, std::uint32_t>> old_slots_;  // grace group, slot
  std::vector<std::uint32_t> free_slots_;
  // Grace group of the last change of owner, by hash of the position: an older entry is overwritten, never forgotten
  // early.
  std::vector<std::uint64_t> changed_;
  bool blocked_ = false;  // a position was free but too recently changed
  std::unique_ptr<Sketch> sketch_;
  std::uint64_t hand_ = 0;
};

}  // namespace emberline
