// A cache of rows of one size, shared by many tables: one fixed index (buckets.h), one slab of rows, one policy
// (policy.h) by which all tables compete for its bytes.
//
// Readers take no lock (cache_table.h); writers take turns. Rows are immutable once visible: an update fills a fresh
// slot and publishes it with one store. Rows are opaque: row_bytes bytes each. N ids.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "cache/buckets.h"
#include "cache/curve.h"
#include "cache/hottest.h"
#include "cache/policy.h"
#include "cache/row_slots.h"
#include "cache/use_log.h"
#include "table/epoch.h"

namespace emberline {

struct CacheStats {
  std::uint64_t lookups = 0, hits = 0;  // counted by readers
  std::uint64_t inserted = 0, admitted = 0, rejected = 0, evicted = 0, assigned = 0, erased = 0;
  std::uint64_t changes = 0;  // changes of traffic, as the policy saw them
  std::uint64_t resizes = 0;
};

struct CachedRows {
  std::int64_t next_cursor = -1;
  std::vector<std::int64_t> ids;
  std::vector<char> rows;
  std::vector<std::uint8_t> freq;
};

class Cache {
 public:
  static constexpr std::uint64_t kMostRows = std::uint64_t{1} << 31;
  static constexpr std::uint32_t kMostTables = 65536;

  // Throws std::invalid_argument that names the argument.
  Cache(std::size_t row_bytes, std::uint64_t capacity_rows, std::uint32_t tables);

  std::size_t row_bytes() const { return row_bytes_; }
  std::uint64_t capacity_rows() const { return capacity_.load(std::memory_order_relaxed); }
  std::uint32_t tables() const { return static_cast<std::uint32_t>(states_.size()); }
  std::uint64_t size() const { return size_.load(std::memory_order_relaxed); }
  std::uint64_t rows_of(std::uint32_t table) const { return state(table).rows.load(std::memory_order_relaxed); }
  std::size_t memory_bytes() const;
  // The most that memory_bytes can be, once full; and the most rows that fit so, which may be 0.
  static std::size_t bytes_of(std::size_t row_bytes, std::uint64_t capacity_rows, std::uint32_t tables);
  static std::uint64_t capacity_for(std::size_t row_bytes, std::uint64_t bytes, std::uint32_t tables);

  // A table is complete from its mark until one of its rows is evicted. The mark is cleared before the row can be
  // missed: a reader that misses a row and then calls is_complete is not misled.
  void mark_complete(std::uint32_t table);
  void clear_complete(std::uint32_t table) { state(table).complete.store(false, std::memory_order_release); }
  bool is_complete(std::uint32_t table) const { return state(table).complete.load(std::memory_order_acquire); }
  std::uint64_t evicted_of(std::uint32_t table) const { return state(table).evicted.load(std::memory_order_relaxed); }

  // rows (N, row_bytes), freq (N) codes of uses as in bucket.cuh, or null. A full cache lets its coldest rows go for
  // these. Throws CapacityExceeded when it has room for no row at all.
  void insert_or_assign(std::uint32_t table, const std::int64_t* ids, std::size_t n, const char* rows,
                        const std::uint8_t* freq);
  // Leaves rows that are there. When full, admits an id that the policy holds hotter than the row it displaces. Each
  // call counts one use of each id that is not there; freq: what is known of it beside. Returns the number admitted.
  std::size_t insert_and_evict(std::uint32_t table, const std::int64_t* ids, std::size_t n, const char* rows,
                               const std::uint8_t* freq);
  std::size_t assign(std::uint32_t table, const std::int64_t* ids, std::size_t n, const char* rows);
  std::size_t erase(std::uint32_t table, const std::int64_t* ids, std::size_t n);

  // Live: readers go on, writers wait for a part of it at a time. On the way down the coldest rows go first. On return
  // the memory is back with the system. While it runs, the old and the new index are both held.
  void resize(std::uint64_t capacity_rows);

  // Called from cursor 0 until next_cursor is -1. Every row comes once if nothing is inserted and nothing resized
  // meanwhile.
  CachedRows export_batch(std::uint32_t table, std::uint64_t cursor, std::size_t limit) const;
  // The hottest ids of all tables, hottest first.
  HotIds hot_ids(std::size_t limit) const;
  // Counts the uses that readers reported since the last write. Writes do that by themselves; this is for a cache that
  // sees none for long.
  void absorb();

  std::vector<CurvePoint> curve() const;
  std::vector<CurvePoint> curve_of(std::uint32_t table) const;
  // The curve of all tables, and the same by each of kParts parts of the sample alone: (kParts, points) hit rates.
  std::pair<std::vector<CurvePoint>, std::vector<double>> curve_and_parts() const;
  double predict(std::uint64_t rows) const;
  double predict_of(std::uint32_t table, std::uint64_t rows) const;

  CacheStats stats() const;
  std::uint64_t lookups_of(std::uint32_t table) const { return state(table).lookups.load(std::memory_order_relaxed); }
  std::uint64_t hits_of(std::uint32_t table) const { return state(table).hits.load(std::memory_order_relaxed); }
  // Throws std::logic_error that says which rule is broken. Slow.
  void check_integrity() const;

 private:
  friend class CachePipeline;

  // The arrays that readers search. `old` is set while the index moves from one array to another: then it is searched
  // first, for rows only ever move out of it. No reader holds an older view when a row moves.
  struct View {
    CacheBuckets* fresh = nullptr;
    CacheBuckets* old = nullptr;
  };
  struct alignas(64) TableState {
    std::atomic<std::uint64_t> lookups{0}, hits{0}, rows{0}, evicted{0};
    // Lookups whose uses the writer gets to know: only they move the policy's clock.
    std::atomic<std::uint64_t> told_lookups{0}, told_hits{0};
    std::atomic<std::uint64_t> lost_samples{0}, skipped_samples{0};  // samples that the curve has not counted yet
    std::atomic<bool> complete{false};
    std::uint64_t in_curve = 0;  // lookups that the curve knows of
  };
  struct Place {
    CacheBucket* bucket = nullptr;
    int at = 0;
    std::uint64_t word() const { return bucket->words[at].load(std::memory_order_relaxed); }
    std::int64_t id() const { return bucket->ids[at].load(std::memory_order_relaxed); }
  };
  // Writers take turns; the one that resizes lets those go first who wait.
  class Turn {
   public:
    explicit Turn(const Cache& cache);
    ~Turn();
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

   private:
    const Cache& cache_;
  };

  const TableState& state(std::uint32_t table) const { return states_[table]; }
  TableState& state(std::uint32_t table) { return states_[table]; }
  CacheBuckets& fresh() const { return *buckets_; }
  std::uint64_t bucket_count() const { return buckets_->count() + (old_buckets_ ? old_buckets_->count() : 0); }
  CacheBucket& bucket_at(std::uint64_t index) const {
    return index < buckets_->count() ? buckets_->bucket(index) : old_buckets_->bucket(index - buckets_->count());
  }
  static std::uint64_t mixed_of(std::int64_t id, std::uint32_t table) { return mix_owner(id, table_salt(table)); }

  // write.cpp, in a turn
  Place find_place(std::int64_t id, std::uint32_t table, std::uint64_t mixed) const;
  bool insert_new(std::int64_t id, std::uint32_t table, std::uint64_t mixed, const char* row, std::uint8_t code,
                  bool must);
  void replace_row(Place where, const char* row);
  void remove(Place where);
  void evict(Place where);
  Place coldest(std::uint64_t most_buckets);
  void note_readers();
  void age_buckets();

  // placement.cpp, in a turn
  bool place(std::int64_t id, std::uint64_t mixed, std::uint64_t word);
  bool try_place(std::int64_t id, std::uint64_t mixed, std::uint64_t word);
  bool try_bucket(CacheBucket& bucket, std::int64_t id, std::uint64_t mixed, std::uint64_t word);
  bool displace(std::int64_t id, std::uint64_t mixed, std::uint64_t word);
  Place coldest_of_two(std::uint64_t mixed) const;
  bool may_change_owner(const CacheBucket& bucket, int at);
  std::uint64_t& changed(const CacheBucket& bucket, int at);

  // resize.cpp
  void shed(std::uint64_t rows);
  void move_index(std::uint64_t capacity_rows);
  void move_rows_down(std::uint32_t most_slots);
  void publish(View view);

  std::size_t row_bytes_;
  std::atomic<std::uint64_t> capacity_;
  std::atomic<std::uint64_t> size_{0};
  std::vector<TableState> states_;
  std::atomic<const View*> view_;
  std::atomic<std::uint64_t> sample_mask_{0}, skip_mask_{0};
  mutable UseLog log_;  // uses that const readers report

  mutable std::mutex mutex_;
  mutable std::atomic<int> waiting_{0};
  std::mutex resizing_;
  Grace grace_;
  std::unique_ptr<CacheBuckets> buckets_, old_buckets_;
  std::unique_ptr<const View> owned_view_;
  RowSlots slots_;
  FrequencyPolicy policy_;
  MissRatioCurve curve_;
  // Grace group of the last change of owner, by hash of the position: an older entry is overwritten, never forgotten
  // early.
  std::vector<std::uint64_t> changed_;
  bool blocked_ = false;  // a position was free but too recently changed
  std::uint64_t victim_hand_ = 0, age_hand_ = 0;
  std::uint64_t cut_left_ = 0;  // buckets whose counts are still to be cut after a change of traffic
  std::uint64_t seen_lookups_ = 0, seen_told_lookups_ = 0, seen_told_hits_ = 0;
  std::uint32_t until_sum_ = 0;
  CacheStats stats_;
};

// Writes a word and leaves the bucket's flags, which stand in the first.
inline void store_word(CacheBucket& bucket, int at, std::uint64_t word) {
  if (at == 0) word |= bucket.words[0].load(std::memory_order_relaxed) & word::kFlags;
  bucket.words[at].store(word, std::memory_order_release);
}

}  // namespace emberline
