#include "cache/curve.h"

#include <algorithm>
#include <cmath>

#include "bucket.cuh"

namespace emberline {
namespace {

constexpr float kKeep = 0.9f;         // share of the past that is kept, a period
constexpr float kForgotten = 0.05f;   // uses that are not worth a cell
// when more than one sample in this many is lost, half of all blocks are skipped
constexpr std::uint64_t kLostOne = 50;
constexpr std::uint64_t kMostSkipped = 255;
constexpr double kPointStep = 1.189207115002721;  // four points an octave

}  // namespace

MissRatioCurve::MissRatioCurve(std::uint64_t cells, std::uint32_t tables, std::uint64_t period)
    : cells_(cells), period_(period), last_(tables), now_(tables) {}

std::size_t MissRatioCurve::bytes(std::uint64_t cells, std::uint32_t tables) {
  return cells * sizeof(Cell) + std::size_t{tables} * 2 * sizeof(Told);
}

std::size_t MissRatioCurve::bytes() const { return bytes(cells_.size(), static_cast<std::uint32_t>(last_.size())); }

// The bits that decide about sampling stay in it, so that a narrower mask can be applied later.
std::uint64_t MissRatioCurve::owner_of(std::uint64_t mixed, std::uint32_t table) {
  return std::max<std::uint64_t>(1, (std::uint64_t{table} << 48) | (mixed >> 16));
}

MissRatioCurve::Cell& MissRatioCurve::place(std::uint64_t owner) {
  std::uint64_t at = mix(owner) & (cells_.size() - 1);
  while (cells_[at].owner != 0 && cells_[at].owner != owner) at = (at + 1) & (cells_.size() - 1);
  return cells_[at];
}

std::uint32_t MissRatioCurve::part_of(std::uint64_t owner) {
  return static_cast<std::uint32_t>(mix(owner) >> 40) % kParts;
}

void MissRatioCurve::offer(std::uint64_t mixed, std::uint32_t table) {
  if (!sampled(mixed, mask_)) return;
  if (Cell& cell = place(owner_of(mixed, table)); cell.owner != 0) cell.real = 1;
}

void MissRatioCurve::add(std::uint64_t mixed, std::uint32_t table, bool hit) {
  if (!sampled(mixed, mask_)) return;  // sampled before the mask was narrowed
  ++now_[table].kept;
  const std::uint64_t owner = owner_of(mixed, table);
  Cell* cell = &place(owner);
  if (cell->owner == 0) {
    if (used_ * 4 >= cells_.size() * 3) {
      thin();
      if (!sampled(mixed, mask_)) return;
      cell = &place(owner);
    }
    cell->owner = owner;
    ++used_;
  }
  if (cell->now < kMostUses) ++cell->now;
  if (hit) cell->real = 1;
}

void MissRatioCurve::tell(std::uint32_t table, std::uint64_t lookups, std::uint64_t lost, std::uint64_t skipped) {
  now_[table].lookups += lookups;
  now_[table].untold += lost + skipped;
  now_lost_ += lost;
}

bool MissRatioCurve::pass(std::uint64_t lookups) {
  passed_ += lookups;
  return passed_ >= period_;
}

void MissRatioCurve::end_period() {
  std::vector<Cell> kept;
  kept.reserve(used_);
  for (Cell& cell : cells_) {
    if (cell.owner == 0) continue;
    cell.past = cell.past * kKeep + static_cast<float>(cell.last);
    cell.last = cell.now;
    cell.now = 0;
    if (cell.past >= kForgotten || cell.last > 0) kept.push_back(cell);
  }
  rebuild(kept);
  std::uint64_t seen = 0;
  for (const Told& table : now_) seen += table.kept + table.untold;
  if (now_lost_ * kLostOne > seen && skip_mask_ < kMostSkipped) skip_mask_ = skip_mask_ * 2 + 1;
  now_lost_ = passed_ = 0;
  std::swap(last_, now_);
  std::fill(now_.begin(), now_.end(), Told{});
  ++periods_;
}

void MissRatioCurve::rebuild(const std::vector<Cell>& kept) {
  std::fill(cells_.begin(), cells_.end(), Cell{});
  for (const Cell& cell : kept) place(cell.owner) = cell;
  used_ = kept.size();
}

// Drops the rows that one more bit of the mask leaves out, and again while that is not enough.
void MissRatioCurve::thin() {
  while (used_ * 4 >= cells_.size() * 2 && mask_ < (std::uint64_t{1} << 40)) {
    mask_ = mask_ * 2 + 1;
    now_lost_ /= 2;
    for (Told& table : now_) table.kept /= 2, table.untold /= 2;
    skip_mask_ /= 2;  // half as many samples: there is room for them again
    std::vector<Cell> kept;
    for (const Cell& cell : cells_) {
      if (cell.owner != 0 && (cell.owner & mask_) == 0) kept.push_back(cell);
    }
    rebuild(kept);
  }
}

std::vector<MissRatioCurve::Ranked> MissRatioCurve::ranked(bool all, std::uint32_t table) const {
  std::vector<Ranked> rows;
  rows.reserve(used_);
  for (const Cell& cell : cells_) {
    if (cell.owner == 0 || cell.real == 0 || (!all && (cell.owner >> 48) != table)) continue;
    rows.push_back({cell.owner, cell.past, cell.last / last_[cell.owner >> 48].kept_share()});
  }
  // Equals in an order that means nothing.
  std::sort(rows.begin(), rows.end(), [](const Ranked& a, const Ranked& b) {
    return a.past != b.past ? a.past > b.past : mix(a.owner) < mix(b.owner);
  });
  return rows;
}

// Sampled lookups of the last period, had the hottest rows their share in the sample and none been lost or skipped.
double MissRatioCurve::expected(bool all, std::uint32_t table) const {
  std::uint64_t lookups = 0;
  if (all) {
    for (const Told& of_table : last_) lookups += of_table.lookups;
  } else {
    lookups = last_[table].lookups;
  }
  return static_cast<double>(lookups) * rate();
}

double MissRatioCurve::hit_rate(bool all, std::uint32_t table, std::uint64_t rows) const {
  const double total = expected(all, table);
  if (periods_ < 2 || total <= 0) return -1;
  const std::vector<Ranked> ranks = ranked(true, 0);
  const double inside = static_cast<double>(rows) * rate();
  double missed = 0;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (!all && (ranks[i].owner >> 48) != table) continue;
    const double known = ranks[i].past > 0 ? std::clamp(inside - static_cast<double>(i), 0.0, 1.0) : 0.0;
    missed += ranks[i].last * (1 - known);
  }
  return std::clamp(1 - missed / total, 0.0, 1.0);
}

std::vector<CurvePoint> MissRatioCurve::points(bool all, std::uint32_t table) const {
  std::vector<CurvePoint> out;
  const double total = expected(all, table);
  if (periods_ < 2 || total <= 0) return out;
  const std::vector<Ranked> ranks = ranked(all, table);
  double missed = 0;
  for (const Ranked& rank : ranks) missed += rank.last;
  const auto known = static_cast<std::size_t>(
      std::count_if(ranks.begin(), ranks.end(), [](const Ranked& rank) { return rank.past > 0; }));
  out.push_back({0, 0.0});
  std::size_t at = 0;
  double next = 1.0 / rate();
  for (const double end = static_cast<double>(known) / rate();; next *= kPointStep) {
    const double rows = std::min(next, end);
    const auto inside = static_cast<std::size_t>(rows * rate() + 1e-9);
    for (; at < inside && at < known; ++at) missed -= ranks[at].last;
    const auto whole = static_cast<std::uint64_t>(std::llround(rows));
    if (whole > out.back().rows) {
      out.push_back({whole, std::max(out.back().hit_rate, std::clamp(1 - missed / total, 0.0, 1.0))});
    }
    if (rows >= end) return out;
  }
}

std::vector<double> MissRatioCurve::parts(const std::vector<CurvePoint>& at) const {
  std::vector<double> out(at.size() * kParts, 0.0);
  if (at.empty()) return out;
  std::vector<std::vector<Ranked>> of_part(kParts);
  for (const Ranked& rank : ranked(true, 0)) of_part[part_of(rank.owner)].push_back(rank);
  const double total = expected(true, 0) / kParts;
  for (std::uint32_t part = 0; part < kParts; ++part) {
    const std::vector<Ranked>& ranks = of_part[part];
    double missed = 0;
    for (const Ranked& rank : ranks) missed += rank.last;
    std::size_t whole = 0;
    for (std::size_t point = 0; point < at.size(); ++point) {
      const double inside = static_cast<double>(at[point].rows) * rate() / kParts;
      for (; whole < ranks.size() && static_cast<double>(whole + 1) <= inside && ranks[whole].past > 0; ++whole)
        missed -= ranks[whole].last;
      const bool more = whole < ranks.size() && ranks[whole].past > 0;
      const double begun = more ? ranks[whole].last * std::clamp(inside - static_cast<double>(whole), 0.0, 1.0) : 0.0;
      out[part * at.size() + point] = at[point].rows == 0 ? 0.0 : std::clamp(1 - (missed - begun) / total, 0.0, 1.0);
    }
  }
  return out;
}

std::vector<CurvePoint> MissRatioCurve::curve() const { return points(true, 0); }
std::vector<CurvePoint> MissRatioCurve::curve_of(std::uint32_t table) const { return points(false, table); }
double MissRatioCurve::predict(std::uint64_t rows) const { return hit_rate(true, 0, rows); }
double MissRatioCurve::predict_of(std::uint32_t table, std::uint64_t rows) const {
  return hit_rate(false, table, rows);
}

}  // namespace emberline
