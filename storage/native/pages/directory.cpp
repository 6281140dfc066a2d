#include "pages/directory.h"

#include <algorithm>
#include <utility>

namespace emberline::pages {

Directory::Directory(std::vector<std::int64_t> firsts) {
  if (firsts.empty()) return;
  levels_.push_back(std::move(firsts));
  while (levels_.back().size() > kFan) {
    const std::vector<std::int64_t>& below = levels_.back();
    std::vector<std::int64_t> level;
    level.reserve((below.size() + kFan - 1) / kFan);
    for (std::size_t i = 0; i < below.size(); i += kFan) level.push_back(below[i]);
    levels_.push_back(std::move(level));
  }
}

void Directory::find(const std::int64_t* ids, std::size_t n, std::uint64_t* pages) const {
  constexpr std::size_t kTogether = 16;
  for (std::size_t start = 0; start < n; start += kTogether) {
    const std::size_t count = std::min(kTogether, n - start);
    std::uint64_t at[kTogether] = {};
    for (std::size_t depth = levels_.size(); depth-- > 0;) {
      const std::vector<std::int64_t>& level = levels_[depth];
      for (std::size_t i = 0; i < count; ++i) {
        if (at[i] == kNoPage) continue;
        const std::size_t base = at[i] * kFan;
        const std::size_t end = std::min(kFan, level.size() - base);
        const std::int64_t* const keys = level.data() + base;
        std::size_t not_above = 0;
        for (std::size_t k = 0; k < end; ++k) not_above += keys[k] <= ids[start + i];
        // Below the first level the first key of the sixteen is the one that led here, so there is always one.
        at[i] = not_above == 0 ? kNoPage : base + not_above - 1;
        if (depth > 0 && at[i] != kNoPage) {
          const std::int64_t* const next = levels_[depth - 1].data() + at[i] * kFan;
          __builtin_prefetch(next);
          __builtin_prefetch(next + 8);
        }
      }
    }
    for (std::size_t i = 0; i < count; ++i) pages[start + i] = levels_.empty() ? kNoPage : at[i];
  }
}

std::size_t Directory::memory_bytes() const {
  std::size_t bytes = 0;
  for (const std::vector<std::int64_t>& level : levels_) bytes += level.size() * sizeof(std::int64_t);
  return bytes;
}

}  // namespace emberline::pages
