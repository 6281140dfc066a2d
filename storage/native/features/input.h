// One raw input: checks a column, and defines missing, null and empty.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "features/cells.h"
#include "features/column.h"

namespace emberline::features {

// Values that stand in for a null: one (fixed) or a row of them (list).
using Default = std::variant<std::vector<std::int64_t>, std::vector<double>, std::vector<std::string>>;

// A column over all rows of a run; the columns of several requests are joined to one.
struct WholeColumn {
  Wire wire = Wire::kInt64;
  std::int64_t rows = 0;
  std::int64_t count = 0;                 // values
  const void* values = nullptr;           // aligned; BYTES as string_views
  const std::int64_t* offsets = nullptr;  // lists: rows + 1
  const std::uint8_t* valid = nullptr;    // 0 = null; one a value (fixed) or one a row (list); nullptr: no nulls
  // With an index, which BYTES alone have, `values`, and `valid` of a fixed input, are those of `entries` values, and
  // place i of `count` has number index[i].
  const std::int32_t* index = nullptr;
  std::int64_t entries = 0;
};

struct Input {
  std::string name;
  Wire wire = Wire::kInt64;
  bool is_list = false;
  std::int64_t width = 1;  // fixed
  std::int64_t max_length = 0;  // list
  bool user_side = false;  // one row may stand for the whole batch
  bool missing_is_null = false;
  bool empty_is_null = false;  // "" (fixed BYTES) or an empty list
  std::optional<Default> fallback;

  // Throws InvalidInput naming the input, and the row where there is one, unless `column` is whole and fits.
  void check(const ColumnView& column, std::int64_t batch) const;
  // The same without its values: the rows, the width, the lengths and the flags.
  void check_form(const ColumnView& column, std::int64_t batch) const;
  // The values with nulls resolved; nullptr = missing, which is one null row that stands for all. The column has been
  // checked; cells borrow its memory. NaN is null where the spec says what a missing value is (a default, or
  // missing_is_null); elsewhere it throws InvalidInput naming the row.
  Cells load(const WholeColumn* column, Arena& arena) const;
  // The same of an input of weights: NaN is null, and it is the caller who knows whether the value beside it is null
  // too.
  Cells load_weights(const WholeColumn* column, Arena& arena) const;

 private:
  [[noreturn]] void refuse(const std::string& problem) const;
  [[noreturn]] void refuse_nan(std::int64_t row) const;
  Cells load(const WholeColumn* column, bool nan_is_null, Arena& arena) const;
  Cells all_null(Arena& arena) const;
  Cells borrow(const WholeColumn& column, Arena& arena) const;
  void mark_nulls(const WholeColumn& column, bool nan_is_null, Cells& cells, Arena& arena) const;
  void mark_nan(bool nan_is_null, Cells& cells, Arena& arena) const;
  void replace_nulls(Cells& cells, Arena& arena) const;
  void replace_null_rows(const WholeColumn& column, Cells& cells, Arena& arena) const;
  Cells fallback_row(Arena& arena) const;
};

}  // namespace emberline::features
