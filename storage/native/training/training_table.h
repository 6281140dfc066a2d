// A table that trains: rows are created when an id was seen often enough, and written in place by fused optimizers.
//
// A row is dim weights, then the optimizer's slots. Phases: there is one caller and no other reader; a mutex keeps
// callers apart. Every change carries a stamp, a number that the caller advances: changes after a stamp can be listed
// at any later time, at a cost that follows the changes and not the table. Use carries a tick, a number that the caller
// sets from steps or seconds, so that rows without use can be found. N ids, D dim.
//
// No call copies the table: index, rows and what is known of them grow in small steps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <vector>

#include "rows/codec.h"
#include "rows/initial.h"
#include "table/id_map.h"
#include "table/slab.h"
#include "training/changes.h"
#include "training/chunks.h"
#include "training/counting_bloom.h"
#include "training/id_index.h"
#include "training/optimizer.h"
#include "training/row_parts.h"

namespace emberline {

struct TrainingOptions {
  std::uint32_t dim = 0;
  Rule rule = Rule::kSgd;
  // Of Adagrad's and FTRL's sums.
  float initial_accumulator = 0.0f;
  std::uint64_t seed = 0;
  Initializer rows;
  // What an id without a row reads as.
  Initializer absent;
  // Occurrences that make a row.
  std::uint32_t admit_after = 1;
  // A part of the rows lies in a store of the caller's; tier.cpp.
  bool tiered = false;
  // With expected_ids, occurrences are counted in a filter instead of exactly.
  BloomOptions bloom;
  // Rows are kept by parts, for idle().
  bool evicts = false;
  // No id gets a row but by `restore`, and ids without one are not counted.
  bool fixed = false;
};

struct TrainingRows {
  std::vector<std::int64_t> ids;  // ascending
  std::vector<float> rows;  // (n, D)
  std::vector<float> slots;  // (n, slots)
  std::vector<std::uint32_t> counts;
  std::vector<std::uint32_t> stamps;  // stamps of the last change
  std::vector<std::uint32_t> ticks;  // ticks of the last use
};

struct IdCounts {
  std::vector<std::int64_t> ids;  // ascending
  std::vector<std::uint32_t> counts;
};

struct IdStamps {
  std::vector<std::int64_t> ids;  // ascending
  std::vector<std::uint32_t> stamps;
};

// Rows that lie beside the table, for a lookup that must not bring them in. ids: each once.
struct SideRows {
  const std::int64_t* ids = nullptr;
  std::size_t n = 0;
  const float* rows = nullptr;  // (n, D)
};

// Which rows are idle, by the tick of their last use.
struct IdleRows {
  std::uint32_t unused = 0;  // those used last at this tick or before
  // And those used last at a tick in (norm_after, norm_upto] whose Euclidean norm is below `norm`.
  std::uint32_t norm_after = 0;
  std::uint32_t norm_upto = 0;
  float norm = 0.0f;
};

// The ids of a lookup, each once, and what the table has of them.
struct FoundRows {
  std::vector<std::int64_t> ids;
  std::vector<std::uint32_t> counts;  // occurrences in the lookup
  std::vector<std::uint32_t> slots;  // 0: no row
  std::vector<const float*> rows;  // null: zeros
  std::vector<float> absent;  // rows of ids without one
  std::vector<std::uint8_t> beside;  // 1: the row lies beside the table
  // The state of the table in which `slots` are right and their use is noted.
  std::uint64_t layout = 0;
  std::uint32_t stamp = 0;
};

// Rows as a store keeps them: count, stamp and tick (u32 each), D weights, the slots (float32), little endian.
struct PackedRows {
  std::vector<std::uint8_t> records;  // (n, record_bytes)
  std::vector<std::uint32_t> stamps;  // stamps of the last change
  std::vector<std::uint32_t> written;  // stamp in the store's copy; 0: it has none
  std::vector<std::uint8_t> dirty;  // 1: the store's copy is not this row
};

// Ids without a row. A count, or an erasure, of 0 is none.
struct BareIds {
  std::vector<std::int64_t> ids;
  std::vector<std::uint32_t> counts;
  std::vector<std::uint32_t> waiting;  // stamp of the count's last change, 0 when it is forgotten
  std::vector<std::uint32_t> removed;  // stamp of the erasure
};

class TrainingTable {
 public:
  // Throws std::invalid_argument.
  explicit TrainingTable(const TrainingOptions& options);
  TrainingTable(const TrainingTable&) = delete;
  TrainingTable& operator=(const TrainingTable&) = delete;

  std::uint32_t dim() const { return options_.dim; }
  std::uint32_t slots() const { return slot_count_; }
  const TrainingOptions& options() const { return options_; }
  RowFormat format() const { return {RowType::kFp32, options_.dim}; }
  std::uint64_t size() const;
  std::size_t memory_bytes() const;

  // out (n, D). train: counts every occurrence, creates the rows of ids that reach admit_after; others read as absent.
  // All occurrences of an id in one call see the same row. Returns the ids (occurrences) that have a row.
  std::size_t lookup(const std::int64_t* ids, std::size_t n, float* out, bool train, const SideRows& side = {});

  // For lookups of several tables (batch_lookup.h), which hold this meanwhile.
  std::mutex& mutex() const { return mutex_; }
  // found: with ids and counts. The addresses hold until the table's layout changes.
  void find(FoundRows& found, bool train, const SideRows& side = {});
  // Brings `slots` up to date before a step, and notes that the rows are used.
  void find_again(FoundRows& found);
  float* row(std::uint32_t slot) const { return reinterpret_cast<float*>(slab_.row(slot)); }
  // Steps of the optimizer so far.
  std::uint64_t steps() const { return steps_; }
  void set_steps(std::uint64_t steps) { steps_ = steps; }

  // Thresholds that may change between two batches. admit_after: 1 or more; with a filter at least 2, and at most one
  // more than its counters hold. Throws std::invalid_argument.
  void set_admit_after(std::uint32_t admit_after);

  TrainingRows export_rows() const;
  IdCounts export_counts() const;  // ids seen and not admitted
  // The rows of these ids, in their order. Throws std::invalid_argument for an id without one.
  TrainingRows export_ids(const std::int64_t* ids, std::size_t n) const;
  // ticks: null for the tick of now.
  void restore(const std::int64_t* ids, std::size_t n, const float* rows, const float* slots,
               const std::uint32_t* counts, const std::uint32_t* stamps, const std::uint32_t* ticks);
  void restore_counts(const std::int64_t* ids, std::size_t n, const std::uint32_t* counts);
  void restore_removed(const std::int64_t* ids, std::size_t n, const std::uint32_t* stamps);

  // The filter that counts ids without a row; null: they are counted exactly.
  CountingBloom* bloom() const { return bloom_.get(); }

  // Forgets everything about these ids but that they were removed; a filter cannot forget their counts. Returns how
  // many had a row.
  std::size_t erase(const std::int64_t* ids, std::size_t n);

  std::uint32_t stamp() const;  // stamp of later changes
  std::uint32_t advance();  // closes the stamp and returns it
  void set_stamp(std::uint32_t stamp);  // only raises it; throws std::invalid_argument
  // Ids, ascending, of rows created, stepped or looked up in training after a stamp.
  std::vector<std::int64_t> changed_since(std::uint32_t stamp) const;
  // Ids, ascending, of rows that changed last at that stamp or before.
  std::vector<std::int64_t> expired(std::uint32_t stamp) const;
  // Ids that were erased after a stamp and have no row now.
  std::vector<std::int64_t> removed_since(std::uint32_t stamp) const;
  IdStamps removed() const;
  void forget_removed(std::uint32_t upto_stamp);
  // Ids without a row whose count changed after a stamp, and their counts; 0: it has a row now, or was erased. The
  // stamp must be one of the last 64; throws std::invalid_argument.
  IdCounts waiting_since(std::uint32_t stamp) const;

  // tick: of later uses; 1 at the start, only raised.
  std::uint32_t tick() const;
  void set_tick(std::uint32_t tick);
  // Ids, ascending, of the idle rows in one of RowParts::kParts parts, into which ids are divided by their hash. Throws
  // std::invalid_argument.
  std::vector<std::int64_t> idle(std::uint32_t part, const IdleRows& wanted);
  static std::vector<std::uint32_t> parts_of(const std::int64_t* ids, std::size_t n);
  // Sums of squares of rows (n, D), rounded as `idle` rounds them.
  std::vector<float> squares(const float* rows, std::size_t n) const;

  // Rows beyond DRAM; tier.cpp. What the table knows of an id is newer than what the store has of it.
  std::size_t record_bytes() const {
    return 3 * sizeof(std::uint32_t) + (std::size_t{dim()} + slots()) * sizeof(float);
  }
  // A new batch: what the one before held may leave.
  void begin();
  // Returns ids, each once in the order given, that only the store can answer. hold: the rows here stay until begin().
  // rowless: distinct ids without a row here.
  std::vector<std::int64_t> unknown(const std::int64_t* ids, std::size_t n, bool hold, std::size_t* rowless);
  // The store has nothing of these ids, until begin().
  void settle(const std::int64_t* ids, std::size_t n);
  // Takes in what the store has. Ids that are known here already are left as they are.
  void bring(const std::int64_t* ids, std::size_t n, const std::uint8_t* records);
  void bring_bare(const std::int64_t* ids, std::size_t n, const std::uint32_t* counts, const std::uint32_t* waiting,
                  const std::uint32_t* removed);
  // Ids, ascending, of the rows that were used least, at most n; none that is held.
  std::vector<std::int64_t> coldest(std::size_t n);
  std::size_t held() const;
  // Throws std::invalid_argument for an id without a row here.
  PackedRows pack(const std::int64_t* ids, std::size_t n) const;
  std::vector<std::uint8_t> encode(std::size_t n, const float* rows, const float* slots, const std::uint32_t* counts,
                                   const std::uint32_t* stamps, const std::uint32_t* ticks) const;
  // The store has these rows: they leave without a trace.
  void let_go(const std::int64_t* ids, std::size_t n);
  // The store has rows of these ids, which have none here: their counts and erasures are over.
  void forget(const std::int64_t* ids, std::size_t n);
  // Ids with a count or an erasure, ascending; and behind them, ascending, ids that lost their count lately (count 0,
  // removed 0).
  BareIds pack_bare() const;
  void drop_bare();
  std::size_t bare_size() const;
  std::size_t waiting_size() const;
  std::vector<std::int64_t> row_ids() const;  // ascending
  std::vector<std::uint8_t> has_row(const std::int64_t* ids, std::size_t n) const;
  std::vector<std::uint8_t> has_waited(const std::int64_t* ids, std::size_t n) const;
  std::vector<std::uint32_t> written(const std::int64_t* ids, std::size_t n) const;  // 0: none, or no row here

 private:
  static constexpr std::uint32_t kWaitingStamps = 64;
  static constexpr std::size_t kWaitingSlack = 4096;

  // Use of a row, by slot.
  struct Use {
    std::uint32_t count = 0;
    std::uint32_t stamp = 0;
    std::uint32_t tick = 0;
  };

  // State of a row, by slot, in a tiered table.
  struct Tier {
    std::uint32_t written = 0;  // stamp of the store's copy
    std::uint32_t used = 0;  // batch
    std::uint16_t heat = 0;  // batches that used it, aged
    bool live = false;
    bool dirty = false;
  };

  void locate(FoundRows& found) const;
  void admit(FoundRows& found);
  void add_side(FoundRows& found, const SideRows& side);
  void check_stamp(std::uint32_t stamp) const;
  void use_now(std::uint32_t slot);
  void age();
  std::uint32_t create(std::int64_t id, Use use);
  void remove(std::int64_t id, std::uint32_t slot);
  void set_use(std::int64_t id, std::uint32_t slot, Use use);
  void touch(std::int64_t id, std::uint32_t slot) {
    Use& use = uses_[slot];
    if (options_.tiered) tiers_[slot].dirty = true;
    if (use.stamp != stamp_) {
      use.stamp = stamp_;
      changes_.note(id, stamp_);
    }
    use.tick = tick_;
  }
  std::uint32_t count_seen(std::int64_t id, std::uint32_t more);
  void note_waiting(std::int64_t id);
  void forget_waiting();
  void fill(TrainingRows& all, std::int64_t id, std::uint32_t slot) const;
  std::uint32_t latest(std::int64_t id) const;

  mutable std::mutex mutex_;
  TrainingOptions options_;
  std::uint32_t slot_count_;
  Slab slab_;
  std::vector<std::uint32_t> free_;  // slots of rows that have gone
  IdIndex index_;  // id -> slot
  Chunks<Use> uses_;  // by slot
  Chunks<Tier> tiers_;  // by slot
  std::unique_ptr<RowParts> parts_;  // with options_.evicts
  std::unique_ptr<CountingBloom> bloom_;  // with options_.bloom, instead of seen_
  IdIndex seen_;  // ids without a row -> occurrences
  IdIndex removed_;  // ids that had a row -> stamp
  std::uint32_t stamp_ = 1;
  std::uint32_t tick_ = 1;
  std::uint64_t steps_ = 0;
  // Counts what makes slots that were found before wrong.
  std::uint64_t layout_ = 1;
  ChangeLog changes_;
  ChangeLog waiting_;  // changes of seen_
  IdIndex waiting_stamps_;  // id -> stamp of its last change in seen_
  IdMap settled_;  // ids that the store has nothing of
  std::uint32_t batch_ = 1;
  std::uint64_t marks_ = 0;  // uses since the last ageing
  // scratch
  IdMap positions_;
  FoundRows found_;
  std::vector<std::uint32_t> places_;
};

}  // namespace emberline
