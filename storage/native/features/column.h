// The input of the engine (a borrowed raw column) and the values between transforms (cells). B rows, n values.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace emberline::features {

// The caller's data is wrong; `field` is the input at fault.
class InvalidInput : public std::runtime_error {
 public:
  InvalidInput(std::string field, const std::string& message) : std::runtime_error(message), field_(std::move(field)) {}
  const std::string& field() const { return field_; }

 private:
  std::string field_;
};

// KServe's dtypes, in the order of storage/features/dtypes.py.
enum class Wire : std::uint8_t { kInt64, kInt32, kUint64, kBytes, kFp32, kFp64, kBool };
inline constexpr int kWires = 7;
const char* wire_name(Wire wire);

enum class Type : std::uint8_t { kBytes, kInt, kFloat };
Type type_of(Wire wire);
// Returns whether an input declared as `declared` takes a column of dtype `sent`.
bool accepts(Wire declared, Wire sent);

// A raw column in the caller's memory. Nothing about it is trusted before `check_column`.
struct ColumnView {
  Wire wire = Wire::kInt64;
  std::int64_t rows = 0;
  std::int64_t width = 1;
  std::int64_t count = 0;                  // values
  const void* values = nullptr;            // numeric: count values of the dtype
  const char* data = nullptr;              // BYTES: value i is data[starts[i], ends[i])
  std::int64_t data_size = 0;
  const std::int64_t* starts = nullptr;
  const std::int64_t* ends = nullptr;
  const std::int64_t* offsets = nullptr;   // lists: offsets_count = rows + 1 of them
  std::int64_t offsets_count = 0;
  const std::uint8_t* valid = nullptr;     // 0 = null; one a value (fixed) or one a row (list)
  std::int64_t valid_count = 0;
};

// Rows of values between two transforms. Exactly one of the three vectors is in use. A null value keeps its place until
// the end. rows is B, or 1 when every row is the same (user side), and then it is broadcast at the very end.
struct Cells {
  Type type = Type::kInt;
  std::vector<std::string_view> bytes;
  std::vector<std::int64_t> ints;
  std::vector<double> floats;
  std::vector<std::uint8_t> null;          // empty: no nulls
  std::vector<double> weights;             // one for each value where `weighted`, else empty
  bool weighted = false;
  std::vector<std::int64_t> offsets{0};    // rows + 1

  std::int64_t rows() const { return static_cast<std::int64_t>(offsets.size()) - 1; }
  std::int64_t size() const { return offsets.back(); }
  bool is_null(std::int64_t place) const { return !null.empty() && null[static_cast<std::size_t>(place)] != 0; }
  void make_null(std::int64_t place) {
    if (null.empty()) null.resize(static_cast<std::size_t>(size()), 0);
    null[static_cast<std::size_t>(place)] = 1;
  }
  // int -> double, rounding to nearest; floats stay.
  void to_floats();
  // Repeats the one row `rows` times.
  void repeat(std::int64_t rows);
};

}  // namespace emberline::features
