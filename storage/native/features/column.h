// The input of the engine: a borrowed raw column. B rows, n values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

namespace emberline::features {

// The caller's data is wrong; `field` is the input at fault, and `request`, of several, the one that it belongs to.
class InvalidInput : public std::runtime_error {
 public:
  InvalidInput(std::string field, const std::string& message, std::optional<std::size_t> request = std::nullopt)
      : std::runtime_error(message), field_(std::move(field)), request_(request) {}
  const std::string& field() const { return field_; }
  std::optional<std::size_t> request() const { return request_; }

 private:
  std::string field_;
  std::optional<std::size_t> request_;
};

// KServe's dtypes, in the order of storage/features/dtypes.py.
enum class Wire : std::uint8_t { kInt64, kInt32, kUint64, kBytes, kFp32, kFp64, kBool };
inline constexpr int kWires = 7;
const char* wire_name(Wire wire);

enum class Type : std::uint8_t { kBytes, kInt, kFloat };
Type type_of(Wire wire);
// Returns whether an input declared as `declared` takes a column of dtype `sent`.
bool accepts(Wire declared, Wire sent);

// A raw column in the caller's memory. Nothing about it is trusted before `Input::check`.
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

}  // namespace emberline::features
