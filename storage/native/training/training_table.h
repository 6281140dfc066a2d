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
#include "training/row_tier.h"

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
  std::vector<std::uint8_t> beside;  // 1: the row is in the file, and was not brought
  std::vector<std::uint8_t> created;  // 1: this lookup gave the id its row
  // The state of the table in which `slots` are right and their use is noted.
  std::uint64_t layout = 0;
  std::uint32_t stamp = 0;

  bool has_row(std::size_t i) const { return slots[i] != 0 || beside[i] != 0; }
};

// Rows in the file of a tiered table that have left DRAM.
struct OutsideRows {
  std::vector<std::int64_t> ids;  // in no order
  // (n, record_bytes), when they are asked for: count, stamp and tick (u32 each), D weights, the slots (float32)
  std::vector<std::uint8_t> records;
  std::size_t next = 0;  // the page to go on from; 0: this was all
};

// Ids without a row in the file of a tiered table. A count, or an erasure, of 0 is none.
struct OutsideBare {
  std::vector<std::int64_t> ids;  // in no order
  std::vector<std::uint32_t> counts;
  std::vector<std::uint32_t> waiting;  // stamp of the count's last change, 0 when it is forgotten
  std::vector<std::uint32_t> removed;  // stamp of the erasure
  std::size_t next = 0;  // as OutsideRows
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
  std::uint64_t size() const;  // rows, wherever they are
  std::size_t memory_bytes() const;

  // out (n, D). train: counts every occurrence, creates the rows of ids that reach admit_after; others read as absent.
  // All occurrences of an id in one call see the same row. Returns the ids (occurrences) that have a row.
  std::size_t lookup(const std::int64_t* ids, std::size_t n, float* out, bool train);
  // As `lookup`, of ids that stand for counts[i] occurrences each. has_row (n): 1 for an id with a row, 0 for others.
  void lookup_counted(const std::int64_t* ids, const std::uint32_t* counts, std::size_t n, float* out,
                      std::uint8_t* has_row, bool train);

  // For lookups of several tables (batch_lookup.h), which hold this meanwhile.
  std::mutex& mutex() const { return mutex_; }
  // found: with ids and counts. The addresses hold until the table's layout changes.
  void find(FoundRows& found, bool train);
  // Fills the slots of rows that a step will change. found: with ids and counts.
  void find_to_step(FoundRows& found);
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
  // The rows in DRAM that were seen most, at most n, the most frequent first, and their counts.
  IdCounts most_seen(std::size_t n) const;
  // The rows of these ids, in their order. Throws std::invalid_argument for an id without one.
  TrainingRows export_ids(const std::int64_t* ids, std::size_t n) const;
  // Gives rows the values that a copy elsewhere has of them: rows (N, D), slots (N, slots). Neither their use nor when
  // they changed is noted. Ids without a row are left out.
  void write(const std::int64_t* ids, std::size_t n, const float* rows, const float* slots);
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

  // Rows beyond DRAM; tier*.cpp. What DRAM knows of an id is newer than what the file has of it, and every use of an
  // id brings to DRAM what the file has. So the table behaves as with every row in DRAM, to the bit, but for
  // changed_since, expired, removed, removed_since, waiting_since, export_rows and export_counts: these are about what
  // is in DRAM, and the caller adds what outside_rows and outside_bare give.
  //
  // From now on rows leave DRAM when their memory is needed. name: of the table, in messages. folder: of its file,
  // which is made when the first row leaves. The table must be empty. Throws BudgetExceeded.
  void attach(std::string name, std::shared_ptr<RowBudget> budget, const std::string& folder);
  bool is_tiered() const { return tier_ != nullptr; }
  std::size_t record_bytes() const { return sizeof(RecordHead) + (std::size_t{dim()} + slots()) * sizeof(float); }
  // A new batch: the rows of the one before may leave.
  void begin();
  // Asks the kernel to read what the file has of these ids, without waiting. Another thread than training may ask.
  void read_ahead(const std::int64_t* ids, std::size_t n) const;
  TierFigures figures() const;
  // Rows whose last change has a stamp in (after, upto], from page `first` on: some at a time.
  OutsideRows outside_rows(std::size_t first, std::uint32_t after, std::uint32_t upto, bool records) const;
  // Ids without a row, and ids that lost their count lately (count 0, erasure 0), some at a time: all, or from pages
  // where a count changed after `waiting_after` or an id was erased after `removed_after`.
  OutsideBare outside_bare(std::size_t first, std::uint32_t waiting_after, std::uint32_t removed_after, bool all) const;
  std::vector<std::int64_t> row_ids() const;  // ascending, of the rows in DRAM
  std::vector<std::uint8_t> has_waited(const std::int64_t* ids, std::size_t n) const;  // by what DRAM knows
  std::size_t waiting_size() const;  // ids that were seen and have no row; with a filter, an estimate

 private:
  static constexpr std::uint32_t kWaitingStamps = 64;
  static constexpr std::size_t kWaitingSlack = 4096;

  // Use of a row, by slot.
  struct Use {
    std::uint32_t count = 0;
    std::uint32_t stamp = 0;
    std::uint32_t tick = 0;
  };

  void find_ids(const std::int64_t* ids, const std::uint32_t* counts, std::size_t n, float* out, bool train);
  void locate(FoundRows& found) const;
  void admit(FoundRows& found);
  void check_stamp(std::uint32_t stamp) const;
  // Rows beyond DRAM.
  void use_now(std::uint32_t slot);
  void bring(FoundRows& found);
  void fetch(FoundRows& found);
  bool read_outside(FoundRows& found) const;
  bool has_row(std::int64_t id) const;
  std::size_t used_bytes(std::size_t more_rows) const;
  void make_room(const FoundRows& found, std::size_t rowless);
  void leave(std::size_t surplus_bytes);
  std::vector<std::uint32_t> coldest(std::size_t n);
  void age();
  void spill_bare_if_many();
  void spill_bare();
  void sweep_bare();
  void bring_bare(std::int64_t id);
  std::size_t bare_bytes() const;
  void forget_removed_outside(std::uint32_t upto_stamp);
  void know(std::int64_t id, std::size_t i);
  bool restores_outside(std::size_t n);
  void restore_outside(std::int64_t id, const Use& use, const float* values, const float* slot_values);
  std::size_t rows_of_all() const { return index_.size() + (tier_ == nullptr ? 0 : tier_->rows_outside); }
  std::vector<std::int64_t> changed_between(std::uint32_t after, std::uint32_t upto) const;
  bool is_idle(std::uint32_t tick, const float* row, const IdleRows& wanted) const;
  void add_idle_outside(std::uint32_t part, const IdleRows& wanted, std::vector<std::int64_t>& found);
  std::uint32_t create(std::int64_t id, Use use);
  void remove(std::int64_t id, std::uint32_t slot);
  void set_use(std::int64_t id, std::uint32_t slot, Use use);
  void touch(std::int64_t id, std::uint32_t slot) {
    Use& use = uses_[slot];
    if (tier_ != nullptr) tier_->slots[slot].dirty = true;
    if (use.stamp != stamp_) {
      use.stamp = stamp_;
      if (tier_ == nullptr) changes_.note(id, stamp_);
    }
    use.tick = tick_;
  }
  std::uint32_t count_seen(std::int64_t id, std::uint32_t more);
  void note_waiting(std::int64_t id);
  void forget_waiting();
  TrainingRows rows_at(std::vector<std::int64_t> ids) const;
  std::uint32_t latest(std::int64_t id) const;

  mutable std::mutex mutex_;
  TrainingOptions options_;
  std::uint32_t slot_count_;
  Slab slab_;
  std::vector<std::uint32_t> free_;  // slots of rows that have gone
  IdIndex index_;  // id -> slot
  Chunks<Use> uses_;  // by slot
  std::unique_ptr<RowTier> tier_;
  std::unique_ptr<RowParts> parts_;  // with options_.evicts
  std::unique_ptr<CountingBloom> bloom_;  // with options_.bloom, instead of seen_
  IdIndex seen_;  // ids without a row -> occurrences
  IdIndex removed_;  // ids that had a row -> stamp
  std::uint32_t stamp_ = 1;
  std::uint32_t tick_ = 1;
  std::uint64_t steps_ = 0;
  // Counts what makes slots that were found before wrong.
  std::uint64_t layout_ = 1;
  ChangeLog changes_;  // of a table whose rows are all in DRAM
  ChangeLog waiting_;  // changes of seen_
  IdIndex waiting_stamps_;  // id -> stamp of its last change in seen_
  // scratch
  FoundRows found_;
  std::vector<std::uint32_t> places_;
};

}  // namespace emberline
