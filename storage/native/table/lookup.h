// The lookups of one session: the ids of all features of a batch against shared tables, misses answered from outside.
//
// begin() answers from the tables every bag whose rows are all there. A bag with a miss is kept aside: its rows are
// copied, because no reader section may last while a disk is read; finish() pools it in the order of its ids.
//
// An id that no tier has reads as its feature says (rows/absent.h), zeros by default; one whose tier did not answer in
// time as zeros.
//
// A mask of overlays makes staged deltas visible: an overlay's entry for an id overrides the table's row. B batch, D
// dim.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "table/lookup_part.h"

namespace emberline {

class Lookup {
 public:
  static constexpr std::size_t kMostThreads = 64;
  static constexpr std::size_t kTileBytes = 256 << 10, kLeastTile = 16;
  // A thread more is worth waking for so many ids.
  static constexpr std::size_t kIdsPerThread = 2048;

  // The tables outlive the lookup. overlays: one a table, or none at all. Throws std::invalid_argument.
  Lookup(std::vector<const RowSource*> tables, std::vector<LookupFeature> features,
         std::vector<const OverlayTable*> overlays = {});

  const std::vector<LookupFeature>& features() const { return schema_.features; }
  RowFormat format(std::size_t table) const { return schema_.formats[table]; }
  std::size_t table_count() const { return schema_.tables.size(); }

  // inputs: one a feature. mask: bit i makes overlay i visible. threads: at most, this one included. Returns the number
  // of missing ids, each counted once a table.
  std::size_t begin(std::size_t batch, const std::vector<LookupInput>& inputs, std::uint64_t mask = 0,
                    std::size_t threads = 1);
  const std::vector<std::int64_t>& missing(std::size_t table) const { return missing_[table].ids; }
  // (m) where the rows of missing(table) lie: the overlay that spilled it, or kNoOverlay for the base.
  const std::vector<std::uint8_t>& missing_sources(std::size_t table) const { return missing_[table].sources; }
  // rows (m, D) or encoded (m, row_bytes), states (m) for the ids of missing(table), copied.
  void supply(std::size_t table, RowInput rows, const std::uint8_t* states);
  // Finds the absent ids of features that fall back, after all tables with missing ids were supplied; of no use when
  // nothing was missing and no overlay is visible. Returns how many there are.
  std::size_t settle();
  const FallbackRows& fallback(std::size_t feature) const { return fallback_[feature]; }
  // rows (m, D), has_row (m) for the m absent ids of a feature, in their order, copied.
  void fall_back(std::size_t feature, const float* rows, const std::uint8_t* has_row);
  // Pools the late bags. Throws std::invalid_argument when a table with missing ids was not supplied.
  LookupTotals finish();
  // Totals of the last finish(), by table.
  const std::vector<LookupTotals>& table_totals() const { return totals_; }

 private:
  void check(std::size_t batch, const std::vector<LookupInput>& inputs, std::uint64_t mask, std::size_t threads);
  std::size_t tile_of(std::size_t batch) const;
  void share_out(std::size_t batch, const std::vector<LookupInput>& inputs, std::size_t parts);
  void gather_misses();
  void check_supplied(const char* by) const;

  LookupSchema schema_;
  std::vector<std::uint8_t> singles_;  // of the features whose bags all have one id, 1
  std::vector<LookupPart> parts_;  // as many as one call ever needed; part_count_ of them are in use
  std::size_t part_count_ = 1;
  std::vector<MissingRows> missing_;
  std::vector<FallbackRows> fallback_;  // by feature; empty where none falls back
  bool settled_ = false;
  std::vector<LookupTotals> totals_;
};

}  // namespace emberline
