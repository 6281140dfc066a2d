// The hit rate that a cache would have with another number of rows, estimated beside the traffic.
//
// A lookup is sampled by its owner's mixed id, so all uses of a sampled row are seen (spatial sampling: C. Waldspurger
// et al., SHARDS, 2015). Time is cut into periods. A row is ranked by its faded uses before the last period and judged
// by its uses in it: what a frequency cache would have kept, and what that would have given. Ranking and judging by the
// same uses would flatter every size, for rows asked for once by chance would count as known. The hottest rows may be
// in the sample or not, which would move the estimate by more than all others do; they hit at any size, so misses are
// estimated, over all lookups. Bounded: when the cells run out, every second sampled row is dropped and sampled no
// more. Used under the writer's mutex.
#pragma once

#include <cstdint>
#include <vector>

namespace emberline {

struct CurvePoint {
  std::uint64_t rows = 0;
  double hit_rate = 0;
};

class MissRatioCurve {
 public:
  static constexpr std::uint32_t kParts = 8;

  // cells: a power of two, 16 bytes each. period: lookups.
  MissRatioCurve(std::uint64_t cells, std::uint32_t tables, std::uint64_t period);

  static bool sampled(std::uint64_t mixed, std::uint64_t mask) { return ((mixed >> 16) & mask) == 0; }
  std::uint64_t mask() const { return mask_; }

  // Blocks of lookups whose bits of chance are 0 under it are reported: narrower while samples got lost for want of
  // room.
  std::uint64_t skip_mask() const { return skip_mask_; }

  void add(std::uint64_t mixed, std::uint32_t table, bool hit = true);  // a sampled lookup
  // The id has a row. An id that was neither found nor offered has none: it can hit at no size, and is left out.
  void offer(std::uint64_t mixed, std::uint32_t table);
  // Counts lookups of all tables. Returns true when the period is over: end it.
  bool pass(std::uint64_t lookups);
  // More of a table's lookups, and those of its sampled lookups that were not added: `lost` for want of room, `skipped`
  // by chance. Blocks of lookups are lost and skipped whole, so the share that was kept differs from table to table.
  void tell(std::uint32_t table, std::uint64_t lookups, std::uint64_t lost = 0, std::uint64_t skipped = 0);
  void end_period();
  void set_period(std::uint64_t lookups) { period_ = lookups; }

  // Hit rates at growing numbers of rows, 0 first; of all tables, or of one by the rows that it has itself. Empty until
  // two periods have passed.
  std::vector<CurvePoint> curve() const;
  std::vector<CurvePoint> curve_of(std::uint32_t table) const;
  // Returns the hit rates of each part of the sample alone, at the points `at`: their spread shows the sample's
  // quality.
  std::vector<double> parts(const std::vector<CurvePoint>& at) const;
  // The hit rate with so many rows in all: of all lookups, or of one table's. Negative until two periods have passed.
  double predict(std::uint64_t rows) const;
  double predict_of(std::uint32_t table, std::uint64_t rows) const;

  static std::size_t bytes(std::uint64_t cells, std::uint32_t tables);
  std::size_t bytes() const;

 private:
  struct Cell {
    std::uint64_t owner = 0;  // table in the high 16 bits, mixed id in the others; 0: empty
    float past = 0;
    std::uint16_t last = 0;
    std::uint16_t now : 15 = 0, real : 1 = 0;
  };
  static constexpr std::uint16_t kMostUses = (1u << 15) - 1;
  struct Ranked {
    std::uint64_t owner;
    float past;
    double last;  // ids of the last period, extrapolated to those that were not added
  };
  struct Told {
    std::uint64_t lookups = 0, kept = 0, untold = 0;
    double kept_share() const {
      return kept + untold == 0 ? 1.0 : static_cast<double>(kept) / static_cast<double>(kept + untold);
    }
  };
  static std::uint32_t part_of(std::uint64_t owner);
  static std::uint64_t owner_of(std::uint64_t mixed, std::uint32_t table);
  Cell& place(std::uint64_t owner);
  void rebuild(const std::vector<Cell>& kept);
  void thin();
  std::vector<Ranked> ranked(bool all, std::uint32_t table) const;
  std::vector<CurvePoint> points(bool all, std::uint32_t table) const;
  double hit_rate(bool all, std::uint32_t table, std::uint64_t rows) const;
  double expected(bool all, std::uint32_t table) const;
  double rate() const { return 1.0 / (static_cast<double>(mask_) + 1.0); }

  std::vector<Cell> cells_;
  std::uint64_t used_ = 0;
  std::uint64_t mask_ = 0;
  std::uint64_t period_;
  std::uint64_t periods_ = 0;
  std::uint64_t passed_ = 0;
  std::uint64_t now_lost_ = 0;
  std::uint64_t skip_mask_ = 0;
  std::vector<Told> last_, now_;  // by table
};

}  // namespace emberline
