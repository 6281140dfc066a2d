#include "pages/merge.h"

#include <algorithm>
#include <utility>

namespace emberline::pages {
namespace {

// Counts the rows below an id, up to the end of a cursor's page.
std::size_t rows_below(const PageCursor& cursor, std::int64_t id) {
  const std::int64_t* const ids = cursor.ids();
  if (ids[cursor.together() - 1] < id) return cursor.together();
  return static_cast<std::size_t>(std::lower_bound(ids, ids + cursor.together(), id) - ids);
}

void check_row_bytes(const std::shared_ptr<const PageFile>& file, const PageWriter& writer) {
  if (file && file->geometry().row_bytes != writer.row_bytes()) {
    throw std::invalid_argument(file->path() + ": its rows have " + std::to_string(file->geometry().row_bytes) +
                                " bytes, those of the new file " + std::to_string(writer.row_bytes()));
  }
}

}  // namespace

ChangesMerge::ChangesMerge(const std::shared_ptr<const PageFile>& base, PageWriter& writer)
    : base_(base), writer_(writer) {
  check_row_bytes(base, writer);
}

void ChangesMerge::offer(const std::int64_t* ids, const char* rows, const std::uint8_t* removed, std::size_t n) {
  if (next_ != ids_.size()) throw std::invalid_argument("offer: the changes offered before are not all taken yet");
  for (std::size_t i = 0; i < n; ++i) {
    if (i > 0 ? ids[i] <= ids[i - 1] : !ids_.empty() && ids[i] <= ids_.back()) {
      throw std::invalid_argument("ids: changes must come in ascending order, each id once; " + std::to_string(ids[i]) +
                                  " does not");
    }
  }
  if (n == 0) return;
  ids_.assign(ids, ids + n);
  rows_.assign(rows, rows + n * writer_.row_bytes());
  removed_.assign(removed, removed + n);
  next_ = 0;
}

void ChangesMerge::copy_base(std::size_t rows) {
  writer_.append(base_.ids(), base_.rows(), rows);
  base_.advance(rows);
}

bool ChangesMerge::advance(std::size_t bytes) {
  const std::uint64_t enough = writer_.bytes() + base_.bytes_read() + bytes;
  while (next_ < ids_.size()) {
    if (writer_.bytes() + base_.bytes_read() >= enough) return false;
    const std::int64_t id = ids_[next_];
    if (!base_.at_end()) {
      if (const std::size_t below = rows_below(base_, id); below > 0) {
        copy_base(below);
        continue;
      }
      if (base_.id() == id) base_.advance(1);
    }
    if (removed_[next_] == 0) writer_.append(&id, rows_.data() + next_ * writer_.row_bytes(), 1);
    ++next_;
  }
  return true;
}

bool ChangesMerge::finish(std::size_t bytes) {
  const std::uint64_t enough = writer_.bytes() + base_.bytes_read() + bytes;
  while (!base_.at_end()) {
    if (writer_.bytes() + base_.bytes_read() >= enough) return false;
    copy_base(base_.together());
  }
  return true;
}

RunsMerge::RunsMerge(const std::vector<std::shared_ptr<const PageFile>>& runs, PageWriter& writer) : writer_(writer) {
  for (const std::shared_ptr<const PageFile>& run : runs) {
    check_row_bytes(run, writer);
    auto cursor = std::make_unique<PageCursor>(run);
    if (!cursor->at_end()) heap_.push_back(std::move(cursor));
  }
  for (std::size_t place = heap_.size() / 2; place-- > 0;) sift(place);
}

void RunsMerge::sift(std::size_t place) {
  for (;;) {
    std::size_t least = place;
    for (const std::size_t child : {2 * place + 1, 2 * place + 2}) {
      if (child < heap_.size() && heap_[child]->id() < heap_[least]->id()) least = child;
    }
    if (least == place) return;
    std::swap(heap_[place], heap_[least]);
    place = least;
  }
}

bool RunsMerge::advance(std::size_t bytes) {
  const std::uint64_t enough = writer_.bytes() + bytes;
  while (!heap_.empty()) {
    if (writer_.bytes() >= enough) return false;
    PageCursor& first = *heap_[0];
    std::size_t rows = first.together();
    for (const std::size_t child : {std::size_t{1}, std::size_t{2}}) {
      // Take at least one, also when an id stands twice: the writer refuses it then.
      if (child < heap_.size()) rows = std::min(rows, std::max<std::size_t>(1, rows_below(first, heap_[child]->id())));
    }
    writer_.append(first.ids(), first.rows(), rows);
    first.advance(rows);
    if (first.at_end()) {
      std::swap(heap_[0], heap_.back());
      heap_.pop_back();
    }
    if (!heap_.empty()) sift(0);
  }
  return true;
}

}  // namespace emberline::pages
