// Records which ids changed under which stamp: lists that are appended to, never searched, so that recent changes are
// found without a pass over a table.
//
// An id stands in the list of every stamp under which it changed; only its latest stamp counts, which the owner returns
// as `latest(id)` (0: the id has gone). Entries that a later change has overtaken are dropped when they are half of
// all.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

namespace emberline {

class ChangeLog {
 public:
  void note(std::int64_t id, std::uint32_t stamp) {
    if (current_ == nullptr || stamp != current_stamp_) {
      current_ = &lists_[stamp];  // a map's values never move
      current_stamp_ = stamp;
    }
    current_->push_back(id);
    ++entries_;
  }

  // Ids whose latest stamp lies in (after, upto], ascending, each once.
  template <class Latest>
  std::vector<std::int64_t> between(std::uint32_t after, std::uint32_t upto, Latest latest) const {
    std::vector<std::int64_t> found;
    const auto end = lists_.upper_bound(upto);
    for (auto list = lists_.upper_bound(after); list != end; ++list) {
      for (const std::int64_t id : list->second) {
        if (latest(id) == list->first) found.push_back(id);
      }
    }
    std::sort(found.begin(), found.end());
    found.erase(std::unique(found.begin(), found.end()), found.end());
    return found;
  }

  // Drops what was overtaken, once the entries are twice as many as the ids that can be in them.
  template <class Latest>
  void compact(std::size_t ids, Latest latest) {
    if (entries_ < 2 * ids + kSlack) return;
    current_ = nullptr;
    entries_ = 0;
    for (auto list = lists_.begin(); list != lists_.end();) {
      std::vector<std::int64_t>& entries = list->second;
      const std::uint32_t stamp = list->first;
      std::erase_if(entries, [&](std::int64_t id) { return latest(id) != stamp; });
      std::sort(entries.begin(), entries.end());
      entries.erase(std::unique(entries.begin(), entries.end()), entries.end());
      entries.shrink_to_fit();
      entries_ += entries.size();
      list = entries.empty() ? lists_.erase(list) : std::next(list);
    }
  }

  std::size_t bytes() const {
    std::size_t total = 0;
    for (const auto& [stamp, entries] : lists_) total += entries.capacity() * sizeof(std::int64_t) + 64;
    return total;
  }

 private:
  static constexpr std::size_t kSlack = 4096;

  std::map<std::uint32_t, std::vector<std::int64_t>> lists_;
  std::vector<std::int64_t>* current_ = nullptr;
  std::uint32_t current_stamp_ = 0;
  std::size_t entries_ = 0;
};

}  // namespace emberline
