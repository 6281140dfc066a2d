// A table that trains: rows are created when an id was seen often enough, and written in place by fused sparse
// optimizers.
//
// A row is dim weights, then the optimizer's slots. Phases: there is one caller and no other reader; a mutex keeps
// callers apart. Every change carries a stamp, a number that the caller advances: changes after a stamp can be listed
// at any later time, at a cost that follows the changes and not the table. N ids, B batch, D dim. Floats are added and
// multiplied in float32 in the order given, without contraction.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include "rows/pooling.h"
#include "table/changes.h"
#include "table/id_map.h"
#include "table/table.h"

namespace emberline {

struct TrainingRows {
  std::vector<std::int64_t> ids;  // ascending
  std::vector<float> rows;  // (n, D)
  std::vector<float> slots;  // (n, slots)
  std::vector<std::uint32_t> counts;
  std::vector<std::uint32_t> stamps;  // stamps of the last change
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

// Rows as a store keeps them: count and stamp (u32 each), D weights, the slots (float32), little endian.
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
  // tiered: a part of the rows lies in a store of the caller's; training_tier.cpp.
  TrainingTable(std::uint32_t dim, std::uint32_t slots, std::uint64_t seed, float init_scale, std::uint32_t admit_after,
                bool tiered = false);

  std::uint32_t dim() const { return table_.dim(); }
  std::uint32_t slots() const { return table_.extra(); }
  std::uint64_t size() const { return table_.size(); }
  std::size_t memory_bytes() const;

  // out (n, D). train: counts every occurrence, creates the rows of ids that reach admit_after; ids below give zeros.
  // Returns the ids (occurrences) that have a row.
  std::size_t lookup(const std::int64_t* ids, std::size_t n, float* out, bool train, float initial_slot,
                     const SideRows& side = {});
  std::size_t pool(const std::int64_t* values, const std::int64_t* offsets, std::size_t batch, std::size_t value_count,
                   Pooling pooling, float* out, bool train, float initial_slot, const SideRows& side = {});

  // grads (n, D). Gradients of one id are added in order, then the row takes one step. Returns the rows stepped.
  std::size_t adagrad(const std::int64_t* ids, std::size_t n, const float* grads, float lr, float eps);
  std::size_t sgd(const std::int64_t* ids, std::size_t n, const float* grads, float lr);

  TrainingRows export_rows() const;
  IdCounts export_counts() const;  // ids seen and not admitted
  // The rows of these ids, in their order. Throws std::invalid_argument for an id without one.
  TrainingRows export_ids(const std::int64_t* ids, std::size_t n) const;
  void restore(const std::int64_t* ids, std::size_t n, const float* rows, const float* slots,
               const std::uint32_t* counts, const std::uint32_t* stamps);
  void restore_counts(const std::int64_t* ids, std::size_t n, const std::uint32_t* counts);
  void restore_removed(const std::int64_t* ids, std::size_t n, const std::uint32_t* stamps);

  // Forgets everything about these ids but that they were removed. Returns how many had a row.
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

  // Rows beyond DRAM; training_tier.cpp. What the table knows of an id is newer than what the store has of it.
  std::size_t record_bytes() const {
    return 2 * sizeof(std::uint32_t) + (std::size_t{dim()} + slots()) * sizeof(float);
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
                                   const std::uint32_t* stamps) const;
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
  };

  // State of a row, by slot, in a tiered table.
  struct Tier {
    std::uint32_t written = 0;  // stamp of the store's copy
    std::uint32_t used = 0;  // batch
    std::uint16_t heat = 0;  // batches that used it, aged
    bool live = false;
    bool dirty = false;
  };

  void locate_rows(const std::int64_t* ids, std::size_t n);
  void find_rows(const std::int64_t* ids, std::size_t n, bool train, float initial_slot);
  void add_side(const std::int64_t* ids, std::size_t n, const SideRows& side);
  void check_stamp(std::uint32_t stamp) const;
  void use_now(std::uint32_t slot);
  void age();
  std::uint32_t admit(std::int64_t id, std::uint32_t count, float initial_slot);
  void set_use(std::int64_t id, std::uint32_t slot, Use use);
  void touch(std::int64_t id, std::uint32_t slot) {
    Use& use = uses_[slot];
    if (tiered_) tiers_[slot].dirty = true;
    if (use.stamp == stamp_) return;
    use.stamp = stamp_;
    changes_.note(id, stamp_);
  }
  void note_waiting(std::int64_t id);
  void forget_waiting();
  std::uint32_t last_waiting(std::int64_t id) const;
  void fill(TrainingRows& all, std::int64_t id, std::uint32_t slot) const;
  std::uint32_t latest(std::int64_t id) const;
  std::size_t gather_gradients(const std::int64_t* ids, std::size_t n, const float* grads);

  mutable std::mutex mutex_;
  Table table_;
  std::uint64_t seed_;
  float init_scale_;
  std::uint32_t admit_after_;
  bool tiered_;
  std::vector<Use> uses_;  // by slot
  std::vector<Tier> tiers_;  // by slot
  IdMap seen_;  // ids without a row -> occurrences
  IdMap removed_;  // ids that had a row -> stamp
  std::uint32_t stamp_ = 1;
  ChangeLog changes_;
  ChangeLog waiting_;  // changes of seen_
  IdMap waiting_stamps_;  // id -> stamp of its last change in seen_
  IdMap settled_;  // ids that the store has nothing of
  std::uint32_t batch_ = 1;
  std::uint64_t marks_ = 0;  // uses since the last ageing
  // scratch
  std::vector<const char*> rows_;
  std::vector<std::uint32_t> slots_;
  IdMap positions_;
  std::vector<std::uint32_t> stepped_;  // slots
  std::vector<float> sums_;
};

// Value j of a new row: uniform in [-scale, scale), from the seed and the id alone. With mix and mix_id of bucket.cuh:
// u = mix(mix_id(id) + mix(seed) + j * 0x9E3779B97F4A7C15) >> 40; scale * (u * 2^-23 - 1).
float initial_value(std::uint64_t seed, std::int64_t id, std::uint32_t j, float scale);

// grads (N, D): the gradient of a bag for each of its ids; mean divides it by the ids of the bag.
void pool_backward(const std::int64_t* offsets, std::size_t batch, std::uint32_t dim, Pooling pooling,
                   const float* grad, float* grads);

}  // namespace emberline
