// One raw input: what is checked about a column, and what missing, null and empty mean.
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
  // The values with nulls resolved; nullptr = missing. The column has been checked; cells borrow its bytes.
  Cells load(const ColumnView* column) const;

 private:
  [[noreturn]] void refuse(const std::string& problem) const;
  Cells load_fixed(const ColumnView& column) const;
  Cells load_list(const ColumnView& column) const;
  Cells all_null() const;
  void append_fallback(Cells& cells) const;
};

}  // namespace emberline::features
