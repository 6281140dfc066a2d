// What memory can do at best: ids without rows, rows without ids, and bytes in a row.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "limits/kernels.h"
#include "table/pages.h"

namespace emberline::limits {

// The probe alone: unique ids in lines of eight, four fifths full, on 2 MB pages. Nothing changes it once it is built.
class IndexLimit {
 public:
  // Throws std::invalid_argument for id 0, which marks an empty place, and for an id that stands twice.
  IndexLimit(const std::int64_t* ids, std::size_t n, const Kernels& kernels = best_kernels());

  std::size_t size() const { return size_; }
  std::size_t bytes() const { return pages_.bytes(); }
  const char* isa() const { return kernels_.name; }
  // places (n), written; kNowhere for an id that is not there. Returns how many are.
  std::size_t find(const std::int64_t* ids, std::size_t n, std::uint32_t* places) const;

 private:
  const IdLine* lines() const { return reinterpret_cast<const IdLine*>(pages_.data()); }

  const Kernels& kernels_;
  std::size_t size_;
  std::uint64_t line_count_;
  Pages pages_;
};

// Rows by their number, on 2 MB pages: the copy and the sum without any index. Row i is filled with the value i.
class RowLimit {
 public:
  RowLimit(std::size_t rows, std::size_t dim, const Kernels& kernels = best_kernels());

  std::size_t rows() const { return rows_; }
  std::size_t dim() const { return dim_; }
  const char* isa() const { return kernels_.name; }
  // numbers (n) below rows(); out (n, dim). Throws std::out_of_range for a number that is too large.
  void gather(const std::int64_t* numbers, std::size_t n, float* out) const;
  // offsets (bags + 1) ascending from 0 to n; out (bags, dim): the sums. Throws as gather.
  void pool(const std::int64_t* numbers, std::size_t n, const std::int64_t* offsets, std::size_t bags,
            float* out) const;

 private:
  void check(const std::int64_t* numbers, std::size_t n) const;

  const Kernels& kernels_;
  std::size_t rows_;
  std::size_t dim_;
  Pages pages_;
};

// Bytes on 2 MB pages, to be read or copied from end to end.
class ByteLimit {
 public:
  explicit ByteLimit(std::size_t bytes);

  std::size_t bytes() const { return half_; }
  // Reads bytes() once; the sum keeps the compiler from leaving it out.
  std::uint64_t read() const;
  // Copies bytes() once.
  void copy();

 private:
  std::size_t half_;
  Pages pages_;
};

}  // namespace emberline::limits
