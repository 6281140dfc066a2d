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
#include <memory>
#include <vector>

namespace emberline {

// Ids in blocks: adding one never moves the others.
class IdList {
 public:
  void push_back(std::int64_t id) {
    if (size_ % kBlock == 0 && size_ / kBlock == blocks_.size()) {
      blocks_.push_back(std::make_unique_for_overwrite<std::int64_t[]>(kBlock));
    }
    blocks_[size_ / kBlock][size_ % kBlock] = id;
    ++size_;
  }

  template <class Visit>
  void each(Visit visit) const {
    for (std::size_t i = 0; i < size_; ++i) visit(blocks_[i / kBlock][i % kBlock]);
  }

  std::size_t size() const { return size_; }
  std::size_t bytes() const { return blocks_.size() * kBlock * sizeof(std::int64_t) + 64; }

 private:
  static constexpr std::size_t kBlock = 512;

  std::vector<std::unique_ptr<std::int64_t[]>> blocks_;
  std::size_t size_ = 0;
};

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
    for (auto list = lists_.upper_bound(after); list != end; ++list) append_latest(*list, latest, found);
    sort(found);
    return found;
  }

  // Drops what was overtaken, once the entries are twice as many as the ids that can be in them.
  template <class Latest>
  void compact(std::size_t ids, Latest latest) {
    if (entries_ < 2 * ids + kSlack) return;
    current_ = nullptr;
    entries_ = 0;
    for (auto list = lists_.begin(); list != lists_.end();) {
      std::vector<std::int64_t> kept;
      append_latest(*list, latest, kept);
      sort(kept);
      list->second = IdList();
      for (const std::int64_t id : kept) list->second.push_back(id);
      entries_ += kept.size();
      list = kept.empty() ? lists_.erase(list) : std::next(list);
    }
  }

  // Drops the lists up to a stamp, whose ids have gone.
  void forget(std::uint32_t upto) {
    const auto end = lists_.upper_bound(upto);
    for (auto list = lists_.begin(); list != end; list = lists_.erase(list)) entries_ -= list->second.size();
    current_ = nullptr;
  }

  std::size_t bytes() const {
    std::size_t total = 0;
    for (const auto& [stamp, entries] : lists_) total += entries.bytes() + 64;
    return total;
  }

 private:
  static constexpr std::size_t kSlack = 4096;

  template <class Latest>
  static void append_latest(const std::pair<const std::uint32_t, IdList>& list, Latest latest,
                            std::vector<std::int64_t>& out) {
    list.second.each([&](std::int64_t id) {
      if (latest(id) == list.first) out.push_back(id);
    });
  }

  static void sort(std::vector<std::int64_t>& ids) {
    std::sort(ids.begin(), ids.end());
    ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  }

  std::map<std::uint32_t, IdList> lists_;
  IdList* current_ = nullptr;
  std::uint32_t current_stamp_ = 0;
  std::size_t entries_ = 0;
};

}  // namespace emberline
