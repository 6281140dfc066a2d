// Two ways to make one sorted file of several: a file with the changes on top of it, and sorted runs side by side. Both
// work in bounded steps, so that the caller can keep a pace.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "pages/file.h"
#include "pages/writer.h"

namespace emberline::pages {

class ChangesMerge {
 public:
  // base may be null: there are only changes. The writer outlives this.
  ChangesMerge(const std::shared_ptr<const PageFile>& base, PageWriter& writer);
  ChangesMerge(const ChangesMerge&) = delete;
  ChangesMerge& operator=(const ChangesMerge&) = delete;

  // The next changes: ids strictly ascending over all calls; removed[i] != 0: the id has no row, rows[i] is not read.
  // Copied. Only when all before are taken.
  void offer(const std::int64_t* ids, const char* rows, const std::uint8_t* removed, std::size_t n);

  // Works until what was offered is taken (true) or about so many bytes were written (false). Base rows behind the last
  // change stay for `finish`.
  bool advance(std::size_t bytes);

  std::size_t row_bytes() const { return writer_.row_bytes(); }

  // Works as advance does on the rest of the base.
  bool finish(std::size_t bytes);

 private:
  void copy_base(std::size_t rows);

  PageCursor base_;
  PageWriter& writer_;
  std::vector<std::int64_t> ids_;
  std::vector<char> rows_;
  std::vector<std::uint8_t> removed_;
  std::size_t next_ = 0;  // change
};

class RunsMerge {
 public:
  // Each file is sorted; an id in two of them is an error of PageWriter::append.
  RunsMerge(const std::vector<std::shared_ptr<const PageFile>>& runs, PageWriter& writer);
  RunsMerge(const RunsMerge&) = delete;
  RunsMerge& operator=(const RunsMerge&) = delete;

  // Works until all is written (true) or about so many bytes were (false).
  bool advance(std::size_t bytes);

 private:
  void sift(std::size_t place);

  std::vector<std::unique_ptr<PageCursor>> heap_;  // smallest id first
  PageWriter& writer_;
};

}  // namespace emberline::pages
