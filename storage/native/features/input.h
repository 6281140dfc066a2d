// One raw input: checks a column, and defines missing, null and empty.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "features/column.h"

namespace emberline::features {

// Values that stand in for a null: one (fixed) or a row of them (list).
using Default = std::variant<std::vector<std::int64_t>, std::vector<double>, std::vector<std::string>>;

struct Input {
  std::string name;
  Wire wire = Wire::kInt64;
  bool is_list = false;
  std::int64_t width = 1;           // fixed
  std::int64_t max_length = 0;      // list
  bool user_side = false;           // one row may stand for the whole batch
  bool missing_is_null = false;
  bool empty_is_null = false;       // "" (fixed BYTES) or an empty list
  std::optional<Default> fallback;

  // Throws InvalidInput naming the input, and the row where there is one, unless `column` is whole and fits.
  void check(const ColumnView& column, std::int64_t batch) const;
  // The values with nulls resolved; nullptr = missing. The column has been checked; cells borrow its bytes. NaN is null
  // where the spec says what a missing value is (a default, or missing_is_null); elsewhere it throws InvalidInput
  // naming the row.
  Cells load(const ColumnView* column) const;
  // The same of an input of weights: NaN is null, and it is the caller who knows whether the value beside it is null
  // too.
  Cells load_weights(const ColumnView* column) const;

 private:
  [[noreturn]] void refuse(const std::string& problem) const;
  [[noreturn]] void refuse_nan(std::int64_t row) const;
  Cells load(const ColumnView* column, bool nan_is_null) const;
  Cells load_fixed(const ColumnView& column, bool nan_is_null) const;
  Cells load_list(const ColumnView& column, bool nan_is_null) const;
  Cells all_null() const;
  void append_fallback(Cells& cells) const;
};

}  // namespace emberline::features
