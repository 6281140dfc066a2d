// One thread's part of a lookup: a share of the bags of each feature, and the rows it keeps of them until the missing
// ones arrive.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "rows/absent.h"
#include "rows/pooling.h"
#include "table/id_map.h"
#include "table/overlay.h"
#include "table/source.h"

namespace emberline {

enum class RowState : std::uint8_t { kAbsent = 0, kFound = 1, kUnresolved = 2 };

struct LookupFeature {
  std::uint32_t table;
  Pooling pooling;
  std::uint32_t length;  // length of an unpooled feature
  SeededInitializer absent = {};  // what ids without a row read as
  bool falls_back = false;  // whether the caller is asked for rows of absent ids (`Lookup::settle`)
};

// The absent ids of a feature that falls back, and the rows that the caller gave for them, in this order.
struct FallbackRows {
  std::vector<std::int64_t> absent;  // their places among the values of the feature
  std::vector<std::int64_t> unresolved;  // places of ids that are not known to be absent: their rows did not come
  std::vector<float> rows;  // (absent, D)
  std::vector<std::uint8_t> has_row;  // (absent): 0 where the id reads as the feature says after all

  void clear();
};

// One feature's share of a batch. Pointers must stay valid until finish().
struct LookupInput {
  const std::int64_t* values;
  std::size_t value_count;
  const std::int64_t* offsets;  // (B + 1)
  float* output;  // (B, D) or (B, length, D)
  std::uint8_t* mask;  // (B, length) or null
  const float* weights = nullptr;  // (N) of a weighted feature
  std::size_t stride = 0;  // floats from a bag's output to the next one's; 0: they lie side by side
};

// Occurrences of ids.
struct LookupTotals {
  std::uint64_t dram = 0, supplied = 0, absent = 0, unresolved = 0, overlay = 0;

  void add(const LookupTotals& other) {
    dram += other.dram;
    supplied += other.supplied;
    absent += other.absent;
    unresolved += other.unresolved;
    overlay += other.overlay;
  }
};

// What a lookup reads from and for which features; fixed when the Lookup is made, shared by all of its parts.
struct LookupSchema {
  std::vector<const RowSource*> tables;
  std::vector<RowFormat> formats;  // formats of the tables
  std::vector<LookupFeature> features;
  std::vector<const OverlayTable*> overlays;  // one a table, or empty
  std::vector<AbsentRows> absent;  // of the features
};

// The missing ids of one table, each once, and what the caller supplied for them.
struct MissingRows {
  IdMap positions;  // id -> position + 1
  std::vector<std::int64_t> ids;
  std::vector<std::uint8_t> sources;
  std::vector<float> rows;  // (m, D)
  std::vector<std::uint8_t> states;
  bool supplied = false;

  // The position of an id, which is entered when it is new.
  std::uint32_t enter(std::int64_t id, std::uint8_t source);
  void clear();
};

class LookupPart {
 public:
  struct Share {
    std::uint32_t feature;
    std::size_t first, last;  // bags
  };

  // schema: outlives the lookups.
  void reset(const LookupSchema& schema, std::uint64_t mask);
  void add_share(Share share) { shares_.push_back(share); }
  // Answers the shares. inputs: one a feature of the schema. singles: 1 for a feature whose bags all have one id.
  void begin(const std::vector<LookupInput>& inputs, const std::vector<std::uint8_t>& singles);
  MissingRows& misses(std::size_t table) { return misses_[table]; }
  // Positions (m) of the part's missing ids among those of the whole lookup; empty where they are the same.
  std::vector<std::uint32_t>& places(std::size_t table) { return places_[table]; }
  // Adds the absent and the unresolved ids of features that fall back. missing: of the whole lookup, supplied.
  void settle(const std::vector<MissingRows>& missing, std::vector<FallbackRows>& fallback);
  // Pools what waited. missing: of the whole lookup, supplied, one a table. fallback: one a feature, with rows; empty
  // where no feature falls back.
  void finish(const std::vector<MissingRows>& missing, const std::vector<FallbackRows>& fallback);
  const std::vector<LookupTotals>& totals() const { return totals_; }

 private:
  // A bag, or one position of an unpooled feature, that waits for rows.
  struct Late {
    std::uint32_t feature;
    std::uint32_t count;  // ids
    std::size_t first;  // index in sources_
    const float* weights;  // (count), or null
    float* output;
    std::uint8_t* mask;  // mask of the one position, or null
    std::size_t place;  // of its first id among the values of the feature
  };
  // Ids of one reader section, and where their bags go.
  struct Window {
    std::uint32_t feature;
    std::uint32_t table;
    RowFormat format;
    const std::int64_t* ids;
    const float* weights;
    std::size_t count;
    std::size_t place;  // of its first id among the values of the feature, where no bag is cut
  };

  std::size_t stride_of(std::uint32_t feature, const LookupInput& input) const;
  void begin_pooled(const Share& share, const LookupInput& input, bool all_single);
  template <bool kCovered>
  void pool_bags(const Window& window, const LookupInput& input, std::size_t bag, std::size_t last,
                 RowPipeline& pipeline);
  void pool_singles(const Window& window, float* output, std::size_t stride, RowPipeline& pipeline);
  void begin_unpooled(const Share& share, const LookupInput& input);
  void put_flat(const Window& window, float* output, std::uint8_t* mask, RowPipeline& pipeline);
  template <bool kCovered>
  void put_row(const Window& window, std::size_t at, std::size_t place, float* output, std::uint8_t* mask);
  bool ask_overlay(const Window& window);
  std::size_t lay_over(const Window& window, std::size_t at, std::size_t n);
  void keep_aside(const Window& window, std::size_t at, std::size_t n, bool covered, float* output);
  std::int64_t miss(const Window& window, std::size_t at, std::uint8_t source);
  // The state of a late id that no overlay covers.
  RowState state_of(std::int64_t source, const MissingRows& misses, std::uint32_t table) const;
  std::size_t collect(const Late& late, const MissingRows& misses, const FallbackRows* fallback);

  const LookupSchema* schema_ = nullptr;
  std::uint64_t mask_ = 0;
  std::vector<const std::int64_t*> values_;  // by feature: its ids, which outlive `finish`
  std::vector<Share> shares_;
  std::vector<MissingRows> misses_;
  std::vector<std::vector<std::uint32_t>> places_;
  std::vector<LookupTotals> totals_;
  std::vector<Late> late_;
  // Place of a missed id's row: >= 0 offset in kept_, kNowhere removed by an overlay, else -1 - position among the
  // misses.
  std::vector<std::int64_t> sources_;
  std::vector<float> kept_;
  std::vector<float> absent_;  // rows of a late bag that are made of their ids
  // By feature: which of FallbackRows.absent this part began with in `settle`, and comes next in `finish`.
  std::vector<std::size_t> next_fallback_;
  std::vector<const char*> rows_;
  std::vector<Cover> covers_;  // beside rows_, where a window is covered
  std::vector<std::int64_t> window_ids_;
};

}  // namespace emberline
