// The chains of a lookup: what ids without a row read, and what rows begin with that were just created.
#include <algorithm>
#include <stdexcept>
#include <string>

#include "rows/mixed.h"
#include "training/batch_lookup.h"

namespace emberline {

void BatchLookup::check_level(std::uint32_t feature, const FallbackLevel& level) const {
  const std::string name = "features[" + std::to_string(feature) + "]: the fallback " + std::to_string(level.feature);
  if (level.feature >= features_.size() || level.feature == feature) {
    throw std::invalid_argument(name + " is no other feature");
  }
  const std::uint32_t own = tables_[features_[feature].table]->dim();
  const std::uint32_t table = features_[level.feature].table;
  if (table >= tables_.size() || tables_[table]->dim() != own) {
    throw std::invalid_argument(name + " must have rows of " + std::to_string(own) + " values");
  }
}

const std::uint32_t* BatchLookup::level_place(std::uint32_t feature, const FallbackLevel& level, std::size_t bag,
                                              std::size_t in_bag) {
  const std::int64_t* offsets = ids_[level.feature].offsets;
  const std::int64_t given = offsets[bag + 1] - offsets[bag];
  if (given == 0) return nullptr;
  const std::int64_t own = ids_[feature].offsets[bag + 1] - ids_[feature].offsets[bag];
  if (given != (level.parallel ? own : 1)) {
    throw std::invalid_argument("row " + std::to_string(bag) + ": " + std::to_string(own) + " ids fall back to " +
                                std::to_string(given) +
                                (level.parallel ? ", expected as many or none" : ", expected one or none"));
  }
  const std::size_t at = level.parallel ? in_bag : 0;
  if (features_[level.feature].pooling != Pooling::kNone) return places(level.feature) + offsets[bag] + at;
  if (at >= used(level.feature, bag)) return nullptr;
  std::vector<std::size_t>& firsts = firsts_[level.feature];
  if (firsts.empty()) {
    firsts.push_back(0);
    for (std::size_t before = 0; before < batch_; ++before)
      firsts.push_back(firsts.back() + used(level.feature, before));
  }
  return places(level.feature) + firsts[bag] + at;
}

// Rows that were just created begin as the first row of their chain that was there before this batch.
void BatchLookup::begin_from_chain(std::uint32_t feature) {
  const FeatureLookup& how = features_[feature];
  FoundRows& found = parts_[how.table].gradients.found;
  if (std::find(found.created.begin(), found.created.end(), 1) == found.created.end()) return;
  const std::uint32_t* place = places(feature);
  for (std::size_t bag = 0; bag < batch_; ++bag) {
    const std::size_t n = used(feature, bag);
    for (std::size_t i = 0; i < n; ++i, ++place) {
      if (found.created[*place] != 1) continue;
      const float* from = nullptr;
      for (const FallbackLevel& level : how.fallback) {
        const std::uint32_t* at = level_place(feature, level, bag, i);
        const FoundRows& rows = parts_[features_[level.feature].table].gradients.found;
        if (at == nullptr || !rows.has_row(*at) || rows.created[*at] != 0) continue;
        from = rows.rows[*at];
        break;
      }
      if (from == nullptr) from = how.mean;
      if (from == nullptr) continue;
      std::copy_n(from, tables_[how.table]->dim(), tables_[how.table]->row(found.slots[*place]));
      found.created[*place] = 2;
    }
  }
}

// Finds what each id without a row reads.
void BatchLookup::follow_chain(std::uint32_t feature, const std::optional<std::uint64_t>& stand_in_seed) {
  const FeatureLookup& how = features_[feature];
  const FoundRows& found = parts_[how.table].gradients.found;
  Chain& chain = chains_[feature];
  chain.rows.clear();
  chain.levels.clear();
  const bool draws = stand_in_seed && how.stand_in > 0.0f;
  bool all = !draws;
  for (std::size_t i = 0; all && i < found.ids.size(); ++i) all = found.has_row(i);
  if (all) return;
  const bool ends_in_zeros =
      own_[feature] ? own_[feature]->absent.is_zero() : tables_[how.table]->options().absent.is_zero();
  const auto most = static_cast<std::uint64_t>(static_cast<double>(how.stand_in) * 0x1p53);
  std::uint64_t drawn = draws ? mixed(*stand_in_seed + feature) : 0;
  const std::vector<const float*>& rows = own_[feature] ? own_[feature]->rows : found.rows;
  const std::uint32_t* place = places(feature);
  const auto last = static_cast<std::uint8_t>(how.fallback.size() + 1);
  for (std::size_t bag = 0; bag < batch_; ++bag) {
    const std::size_t n = used(feature, bag);
    for (std::size_t i = 0; i < n; ++i, ++place) {
      const float* row = rows[*place];
      std::uint8_t read = 0;
      const bool has_row = found.has_row(*place);
      if (!has_row || (draws && mixed(drawn++) >> 11 < most)) {
        if (how.mean != nullptr) {
          row = how.mean;
          read = last;
        } else if (!has_row || ends_in_zeros) {  // absent rows of other kinds were made for absent ids alone
          row = has_row ? nullptr : row;
          read = static_cast<std::uint8_t>(last + 1);
        }
        for (std::size_t level = 0; level < how.fallback.size(); ++level) {
          const std::uint32_t* at = level_place(feature, how.fallback[level], bag, i);
          Part& part = parts_[features_[how.fallback[level].feature].table];
          if (at == nullptr || !part.gradients.found.has_row(*at)) continue;
          row = part.gradients.found.rows[*at];
          read = static_cast<std::uint8_t>(level + 1);
          part.borrowed.push_back({feature, static_cast<std::uint32_t>(bag), static_cast<std::uint32_t>(i), *at});
          break;
        }
      }
      chain.rows.push_back(row);
      chain.levels.push_back(read);
    }
  }
}

}  // namespace emberline
