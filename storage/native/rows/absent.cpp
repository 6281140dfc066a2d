#include "rows/absent.h"

#include <algorithm>

namespace emberline {

AbsentRows::AbsentRows(const SeededInitializer& from, RowFormat format) : from_(from), format_(format) {
  if (is_zero() || from.initializer.kind != Initial::kConstant) return;
  std::vector<float> row(format.dim);
  make(0, row.data());
  constant_ = std::move(row);
}

void AbsentRows::write(std::int64_t id, float* out) const {
  if (is_zero()) {
    std::fill_n(out, format_.dim, 0.0f);
  } else if (is_constant()) {
    std::copy(constant_.begin(), constant_.end(), out);
  } else {
    make(id, out);
  }
}

void AbsentRows::make(std::int64_t id, float* out) const {
  initial_row(from_.initializer, from_.seed, id, format_.dim, out);
  if (format_.type == RowType::kFp32) return;
  thread_local std::vector<char> encoded;
  encoded.resize(format_.bytes());
  encode_rows(format_, out, 1, encoded.data());
  decode_rows(format_, encoded.data(), 1, out);
}

}  // namespace emberline
