// The host's side of a cache in GPU memory: which rows are there, in which slot, and where their ids stand in the
// index. The device holds a replica of the buckets and a slab of the rows (cuda/lookup.cuh); lists of changes bring it
// up to date, in the order that cuda/publish.cuh asks for.
//
// Changes are collected into a set. `take_set` returns the difference to the set that was taken last, position by
// position, and the rows that are new; `complete_set` says that the device has it and that every lookup that was
// running meanwhile has ended. One set is under way at a time; later changes go into the next. Rows lie here only until
// their set is taken.
//
// A slot that was given up waits for its set to be complete. So no more rows come in or are replaced in one set than
// there are free slots (`free_slots`). Where none is left, a row does not come in. One that would have been replaced
// must not stay as it is: its entry goes, or, when it is pinned, asks the host from now on.
//
// Pinned entries are not evicted and do not move within the index: a lookup finds them at every moment between the set
// that brought them and the one that takes them away. Others are missed for a moment when they move.
//
// Within a set nothing has an order for lookups. So a pinned entry that must not be missed is replaced, never erased
// and put in again; and what takes the place of another row, as after `adopt`, is on the GPU a set before that one is
// erased.
//
// Not thread-safe: the caller serialises calls. N ids.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "cache/hottest.h"
#include "cache/policy.h"
#include "gpu/buckets.h"
#include "gpu/slots.h"
#include "gpu/staged.h"

namespace emberline {

class BucketLocks;

struct GpuStats {
  std::uint64_t inserted = 0, admitted = 0, rejected = 0, evicted = 0, assigned = 0, erased = 0;
};

// The part of one GPU, where several share rows: each row is in one GPU's part (part_of of cache_bucket.cuh).
// base_tables: entries under a number that differs by a multiple of it are rows of the same table.
struct GpuPart {
  std::uint32_t base_tables = 1, parts = 1, part = 0;
};

// Lists of pairs, for publish.cuh. rows {slot, number in staged}; the others {bucket * 8 + place in the bucket, value}.
//
// Staged rows lie where they were given to `insert_absent`, which `owner` keeps, or in `staged`.
struct GpuSet {
  std::vector<std::int64_t> rows, emptied, ids, words;
  std::vector<std::uint8_t> staged;
  const std::uint8_t* lent = nullptr;
  std::size_t stride = 0;  // bytes from row to row of lent rows
  std::shared_ptr<void> owner;
};

class GpuCache {
 public:
  static constexpr std::uint64_t kMostRows = (std::uint64_t{1} << 31) - 2;
  static constexpr std::uint32_t kMostTables = 65536;
  static constexpr std::uint32_t kAskHost = 0xFFFFFFFF;  // the slot of an entry that asks the host

  // Throws std::invalid_argument that names the argument.
  GpuCache(std::size_t row_bytes, std::uint64_t capacity_rows, std::uint32_t tables);

  std::size_t row_bytes() const { return row_bytes_; }
  std::uint64_t capacity_rows() const { return capacity_; }
  std::uint32_t tables() const { return static_cast<std::uint32_t>(rows_of_.size()); }
  std::uint32_t slots() const { return slots_.most(); }
  std::uint64_t bucket_count() const { return buckets_.count(); }
  // Entries, those that share a slot or ask the host among them.
  std::uint64_t size() const { return size_; }
  std::uint64_t rows_of(std::uint32_t table) const { return rows_of_[table]; }
  std::uint64_t changed_rows() const { return staged_.size(); }
  std::uint64_t free_slots() const { return slots_.free(); }
  // Rows that could be offered and come in without an eviction.
  std::uint64_t free() const;
  // `free`, `offer` and `ask` leave room for so many rows, which `insert` and `insert_absent` alone take.
  void reserve(std::uint64_t rows) { reserved_ = rows < capacity_ ? rows : capacity_; }
  std::uint64_t reserved() const { return reserved_; }
  std::size_t memory_bytes() const;
  static std::size_t bytes_of(std::uint64_t capacity_rows);

  // found (N,): slot, kAskHost, or 0. threads, here and below: at most so many, one for each 2,048 ids.
  void find(std::uint32_t table, const std::int64_t* ids, std::size_t n, std::uint32_t* found,
            std::size_t threads = 1) const;
  // any (N,): whether there is an entry under table modulo base_tables, or under a number that differs by a multiple of
  // that.
  void contains_any(std::uint32_t table, std::uint32_t base_tables, const std::int64_t* ids, std::size_t n,
                    bool* any) const;

  // rows (N, stride), stride 0 for row_bytes; freq (N) codes of uses as in bucket.cuh, or null; in (N,): whether the
  // row is in.
  void insert(std::uint32_t table, const std::int64_t* ids, std::size_t n, const std::uint8_t* rows,
              const std::uint8_t* freq, bool pinned, bool* in, std::size_t stride = 0);
  // Pinned rows (N, stride) of ids that come once and have no entry. `rows` and their owner are the set's: it moves
  // rows there, and gives them on. Where slots are missing, or other rows are staged, as `insert`.
  void insert_absent(std::uint32_t table, const std::int64_t* ids, std::size_t n, std::uint8_t* rows,
                     std::size_t stride, std::shared_ptr<void> owner, std::size_t threads, bool* in);
  // Lets rows go until n more have room: the least used of each few buckets, but for those of this set and pinned ones.
  // Gives how many went.
  std::size_t evict_for(std::size_t n, std::size_t threads = 1);
  // Offers rows as Cache::insert_and_evict does. asked: `ask` has counted these uses.
  std::size_t offer(std::uint32_t table, const std::int64_t* ids, std::size_t n, const std::uint8_t* rows,
                    const std::uint8_t* freq, bool asked);
  void ask(std::uint32_t table, const std::int64_t* ids, std::size_t n, bool* admits);
  void insert_ask_host(std::uint32_t table, const std::int64_t* ids, std::size_t n, bool* in);
  std::size_t assign(std::uint32_t table, const std::int64_t* ids, std::size_t n, const std::uint8_t* rows);
  // More than one thread, here and in `erase`: for ids that come once.
  std::size_t adopt(std::uint32_t source, std::uint32_t target, const std::int64_t* ids, std::size_t n,
                    std::size_t threads = 1);
  std::size_t erase(std::uint32_t table, const std::int64_t* ids, std::size_t n, std::size_t threads = 1);
  std::size_t erase_table(std::uint32_t table, std::size_t threads = 1);

  // Throws std::runtime_error while the set before is not complete.
  GpuSet take_set(std::size_t threads = 1);
  // Throws std::runtime_error when no set is taken.
  void complete_set();

  // Counts marks (slots + 1). Rows of other GPUs' parts are left out: `use` counts them.
  void note_uses(const std::uint8_t* marks, std::uint32_t weight, GpuPart own);
  // parts (N,): whose each id of a table is.
  static void parts_of_ids(std::uint32_t table, const std::int64_t* ids, std::size_t n, std::uint32_t parts,
                           std::uint8_t* out);
  // Counts one use of each existing id.
  void use(std::uint32_t table, const std::int64_t* ids, std::size_t n);
  void pass_lookups(std::uint64_t lookups, std::uint64_t hits);
  HotIds hot_ids(std::size_t limit, std::uint32_t base_tables) const;

  // Returns bucket_count * 64 bytes: the buckets of the device after the last complete set.
  std::vector<std::uint8_t> published_buckets() const;
  const GpuStats& stats() const { return stats_; }
  // Throws std::logic_error that says which rule is broken. Slow.
  void check_integrity() const;

 private:
  // The content of a position when the set began, as on the device.
  struct Change {
    std::int64_t id;
    std::uint64_t word;
    std::uint32_t position;
  };

  static constexpr std::uint8_t kDeliberate = 4;  // uses of a row that was inserted on purpose, with no count given

  static std::uint64_t mixed_of(std::int64_t id, std::uint32_t table) { return mix_owner(id, table_salt(table)); }

  // Entries that one thread took out: their content when the set began, the words, and, of rows that are evicted, the
  // ids.
  struct Leaving {
    std::vector<Change> changes;
    std::vector<std::uint64_t> words;
    std::vector<std::int64_t> ids;
  };

  // bulk.cpp
  void leave(GpuPlace where, Leaving& part);
  std::size_t have_left(const std::vector<Leaving>& part_of);
  void let_go(const std::vector<std::uint64_t>& words);

  // write.cpp
  bool replace_row(GpuPlace where, const std::uint8_t* row);
  bool give_row(GpuPlace where, const std::uint8_t* row);
  bool insert_new(std::int64_t id, std::uint64_t mixed, const std::uint8_t* row, std::uint64_t word, bool must);
  bool find_place(std::int64_t id, std::uint64_t mixed, std::uint64_t word);
  bool put(std::int64_t id, std::uint64_t mixed, std::uint64_t word, bool must);
  void remove(GpuPlace where);
  void evict(GpuPlace where);
  bool make_room();
  GpuPlace coldest();
  GpuPlace coldest_of(std::uint64_t first, std::uint64_t count) const;
  std::uint64_t offered() const { return capacity_ - reserved_; }
  std::uint32_t stage(const std::uint8_t* row);
  void release(std::uint32_t slot, bool fresh);
  void check_in(std::uint32_t table, const std::int64_t* ids, std::size_t n, bool* in) const;
  void age_buckets();

  // sets.cpp
  void take_change(const Change& before, GpuSet& set);

  // placement.cpp
  void store(GpuPlace where, std::uint64_t word);
  void write(GpuPlace where, std::uint64_t word);
  void touch(GpuPlace where, std::vector<Change>& changes);
  bool fill_place(GpuBucket& bucket, std::int64_t id, std::uint64_t word, std::vector<Change>& changes);
  void mark_overflow(GpuBucket& bucket, std::vector<Change>& changes);
  struct Others {
    std::uint64_t bucket[kCacheBucketIds];
  };
  Others others_of(std::uint64_t index) const;
  bool place_second(std::int64_t id, std::uint64_t mixed, std::uint64_t word, BucketLocks& locks,
                    std::vector<Change>& changes);
  bool place_late(std::int64_t id, std::uint64_t mixed, std::uint64_t word, BucketLocks& locks,
                  std::vector<Change>& changes);
  bool make_place(std::uint64_t index, int moves, BucketLocks& locks, std::vector<Change>& changes);
  bool try_bucket(GpuBucket& bucket, std::int64_t id, std::uint64_t mixed, std::uint64_t word);
  bool displace(std::int64_t id, std::uint64_t mixed, std::uint64_t word);
  GpuPlace coldest_of_two(std::uint64_t mixed, bool fresh_too) const;

  std::size_t row_bytes_;
  std::uint64_t capacity_, reserved_ = 0;
  GpuIndex buckets_;
  GpuSlots slots_;
  FrequencyPolicy policy_;
  std::vector<std::uint64_t> rows_of_;
  std::uint64_t size_ = 0;
  GpuStats stats_;

  // The set that is being collected, and what was there before the one that is under way.
  std::vector<Change> changes_, taken_;
  bool under_way_ = false;
  StagedRows staged_;

  std::uint64_t victim_hand_ = 0, age_hand_ = 0;
  std::uint64_t fruitless_ = 0;  // buckets looked at since the last victim was found
  std::uint64_t cut_left_ = 0;  // buckets whose counts are still to be cut after a change of traffic
  std::uint64_t fresh_evicted_ = 0;
};

}  // namespace emberline
