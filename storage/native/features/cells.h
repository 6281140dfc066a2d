// The values between two transforms. B rows, n values. Nothing here owns memory: arrays lie in the caller's columns or
// in the scratch memory of the run.
#pragma once

#include <cstdint>
#include <string_view>

#include "features/arena.h"
#include "features/column.h"

namespace emberline::features {

// Rows of values. A null value keeps its place until the end. Where all rows have the same number of values (`width`),
// there are no offsets, and the values of row r begin at r * stride: columns of a wider input are not copied to select
// them. Otherwise rows lie one behind the other, as the offsets say.
//
// With an `index`, values and null flags are those of `entries` different values, of which place i of the rows has
// number index[i]: what is done to each value by itself is done to the entries. Some entries may be in no row.
struct Cells {
  Wire wire = Wire::kInt64;  // INT64, INT32, FP32 or FP64 as they lie in memory; BYTES as string_views
  std::int64_t rows = 0;  // B, or 1 when every row is the same (user side)
  std::int64_t width = 1;  // without offsets
  std::int64_t stride = 1;  // without offsets
  const std::int64_t* offsets = nullptr;  // (rows + 1)
  const void* values = nullptr;
  const std::uint8_t* null = nullptr;  // 1 = null, as far apart as the values; nullptr: no nulls
  const double* weights = nullptr;  // as far apart as the values; nullptr: none
  const std::int32_t* index = nullptr;  // (size()); nullptr: each place has a value of its own
  std::int64_t entries = 0;  // with an index

  Type type() const { return type_of(wire); }
  bool is_fixed() const { return offsets == nullptr; }
  std::int64_t size() const { return is_fixed() ? rows * width : offsets[rows]; }
  // How many values lie in memory one behind the other, once they are packed.
  std::int64_t count() const { return index != nullptr ? entries : size(); }
  std::int64_t begin(std::int64_t row) const { return is_fixed() ? row * stride : offsets[row]; }
  std::int64_t end(std::int64_t row) const { return is_fixed() ? row * stride + width : offsets[row + 1]; }
  // Whether no values lie between those of the rows.
  bool is_dense() const { return !is_fixed() || stride == width || rows <= 1; }

  // Of values that were packed, or of BYTES.
  const std::int64_t* ints() const { return static_cast<const std::int64_t*>(values); }
  const double* floats() const { return static_cast<const double*>(values); }
  const std::string_view* bytes() const { return static_cast<const std::string_view*>(values); }

  // Gives each place a value of its own.
  void spread(Arena& arena);
  // Makes the values int64, double or string_view, one behind the other; nulls and weights too.
  void pack(Arena& arena);
  // The same; integers become doubles, rounded to nearest.
  void pack_floats(Arena& arena);
  // Keeps the values [start, stop) of each row of cells without offsets and index. Nothing is copied.
  void keep_columns(std::int64_t start, std::int64_t stop);
  // Repeats the one row `count` times; packs.
  void repeat(std::int64_t count, Arena& arena);
  // Moves null flags into new memory that may be written, and returns it.
  std::uint8_t* own_nulls(Arena& arena);

  void set(const std::int64_t* ints) { values = ints, wire = Wire::kInt64; }
  void set(const double* floats) { values = floats, wire = Wire::kFp64; }
  void set(const std::string_view* bytes) { values = bytes, wire = Wire::kBytes; }
};

// Calls with the values as they lie in memory, a pointer of their type.
template <class Call>
auto with_values(const Cells& cells, Call&& call) {
  switch (cells.wire) {
    case Wire::kInt32: return call(static_cast<const std::int32_t*>(cells.values));
    case Wire::kFp32: return call(static_cast<const float*>(cells.values));
    case Wire::kFp64: return call(static_cast<const double*>(cells.values));
    case Wire::kBytes: return call(static_cast<const std::string_view*>(cells.values));
    default: return call(static_cast<const std::int64_t*>(cells.values));
  }
}

// Copies rows of `width` values that begin `stride` apart, one behind the other. `to` overlaps nothing.
template <class From, class To, class Convert>
void gather_rows(const From* from, std::int64_t rows, std::int64_t width, std::int64_t stride, To* __restrict to,
                 Convert&& convert) {
  if (width == stride || rows == 1) {
    for (std::int64_t i = 0; i < rows * width; ++i) to[i] = convert(from[i]);
  } else if (width == 1) {
    for (std::int64_t row = 0; row < rows; ++row) to[row] = convert(from[row * stride]);
  } else {
    for (std::int64_t row = 0; row < rows; ++row) {
      for (std::int64_t k = 0; k < width; ++k) to[row * width + k] = convert(from[row * stride + k]);
    }
  }
}

}  // namespace emberline::features
