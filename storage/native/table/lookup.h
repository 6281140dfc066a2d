// The lookups of one serving lane: the ids of all features of a batch against shared tables, misses answered from outside.
//
// begin() answers from the tables every bag whose rows are all there. A bag with a miss is kept aside: its rows are copied,
// because no reader section may last while a disk is read; finish() pools it in the order of its ids.
//
// A mask of overlays makes staged deltas visible: what they say of an id goes before the table's row. B batch, D dim.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "rows/pooling.h"
#include "table/id_map.h"
#include "table/overlay.h"
#include "table/source.h"

namespace emberline {

enum class RowState : std::uint8_t { kAbsent = 0, kFound = 1, kUnresolved = 2 };

struct LookupFeature {
  std::uint32_t table;
  Pooling pooling;
  std::uint32_t length;  // of an unpooled feature
};

// One feature's share of a batch. Pointers must hold until finish().
struct LookupInput {
  const std::int64_t* values;
  std::size_t value_count;
  const std::int64_t* offsets;  // (B + 1)
  float* output;                // (B, D) or (B, length, D)
  std::uint8_t* mask;           // (B, length) or null
  const float* weights = nullptr;  // (N) of a weighted feature
};

struct LookupTotals {
  std::uint64_t dram = 0, supplied = 0, absent = 0, unresolved = 0, overlay = 0;

  void add(const LookupTotals& other);
};

class Lookup {
 public:
  // The tables outlive the lookup. overlays: one a table, or none at all. Throws std::invalid_argument.
  Lookup(std::vector<const RowSource*> tables, std::vector<LookupFeature> features,
         std::vector<const OverlayTable*> overlays = {});

  const std::vector<LookupFeature>& features() const { return features_; }
  RowFormat format(std::size_t table) const { return tables_[table]->format(); }
  std::size_t table_count() const { return tables_.size(); }

  // inputs: one a feature. mask: bit i makes overlay i visible. Returns the number of missing ids, each counted once a table.
  std::size_t begin(std::size_t batch, const std::vector<LookupInput>& inputs, std::uint64_t mask = 0);
  const std::vector<std::int64_t>& missing(std::size_t table) const { return misses_[table].ids; }
  // (m) where the rows of missing(table) lie: the overlay that spilled it, or kNoOverlay for the base.
  const std::vector<std::uint8_t>& missing_sources(std::size_t table) const { return misses_[table].sources; }
  // rows (m, D) or encoded (m, row_bytes), states (m) for the ids of missing(table), copied.
  void supply(std::size_t table, RowInput rows, const std::uint8_t* states);
  // Pools the late bags. Throws std::invalid_argument when a table with missing ids was not supplied.
  LookupTotals finish();
  // By table, what the last finish() gave for all.
  const std::vector<LookupTotals>& table_totals() const { return finished_; }

 private:
  struct Misses {
    IdMap positions;  // id -> position + 1
    std::vector<std::int64_t> ids;
    std::vector<std::uint8_t> sources;
    std::vector<float> rows;
    std::vector<std::uint8_t> states;
    bool supplied = false;
  };
  // A bag, or one position of an unpooled feature, that waits for rows.
  struct Late {
    std::uint32_t feature;
    std::uint32_t count;      // ids
    std::size_t first;        // in sources_
    const float* weights;     // (count), or null
    float* output;
    std::uint8_t* mask;       // of the one position, or null
  };

  void begin_pooled(std::uint32_t feature, std::size_t batch, const LookupInput& input);
  template <bool kCovered>
  void pool_window(std::uint32_t feature, const LookupInput& input, std::size_t bag, std::size_t last, RowPipeline& pipeline);
  void begin_unpooled(std::uint32_t feature, std::size_t batch, const LookupInput& input);
  bool ask_overlay(std::uint32_t table, const std::int64_t* ids, std::size_t n);
  std::size_t lay_over(const Cover* covers, std::size_t n, const char** rows, LookupTotals& totals);
  void keep_aside(std::uint32_t feature, const std::int64_t* ids, const char* const* rows, const Cover* covers,
                  std::size_t n, const float* weights, float* output);
  std::int64_t miss(std::uint32_t table, std::int64_t id, std::uint8_t source);

  std::vector<const RowSource*> tables_;
  std::vector<LookupFeature> features_;
  std::vector<const OverlayTable*> overlays_;
  std::vector<Misses> misses_;
  std::vector<Late> late_;
  // Where a late id's row is: >= 0 offset in kept_, kNowhere removed by an overlay, else -1 - position among the misses.
  std::vector<std::int64_t> sources_;
  std::vector<float> kept_;
  std::vector<const char*> rows_;
  std::vector<Cover> covers_;  // beside rows_, where a window is covered
  std::uint64_t mask_ = 0;
  std::vector<std::int64_t> window_ids_;
  std::vector<LookupTotals> totals_;    // by table
  std::vector<LookupTotals> finished_;  // of the last finish()
};

}  // namespace emberline
