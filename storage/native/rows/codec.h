// Rows as they are stored: the float32 values of a row, encoded. Every tier moves them as so many opaque bytes; only
// what leaves a lookup is float32 again.
//
//   fp32   D float32, the bits as they came
//   fp16   D IEEE half precision, rounded to the nearest, ties to even; beyond 65504 infinite
//   bf16   D bfloat16, rounded likewise
//   int8   a float32 scale, then D int8 q: value = scale * q, scale = max|x| / 127, q = x / scale rounded likewise; a
//          scale that would be subnormal is 0, and all q are
//
// Little-endian, then zeros up to a multiple of 4 bytes. Decoding and encoding again gives the same bytes. N rows, D
// values a row.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace emberline {

enum class RowType : int { kFp32 = 0, kFp16 = 1, kBf16 = 2, kInt8 = 3 };
constexpr int kRowTypes = 4;

const char* row_type_name(RowType type);
// Throws std::invalid_argument that names the field `row_type`.
RowType row_type_named(const std::string& name);

// Bytes of an encoded row.
constexpr std::size_t row_bytes(RowType type, std::uint32_t dim) {
  const std::size_t d = dim;
  const std::size_t bytes = type == RowType::kFp32 ? 4 * d : type == RowType::kInt8 ? 4 + d : 2 * d;
  return (bytes + 3) / 4 * 4;
}

// Encoding and size of a table's rows.
struct RowFormat {
  RowType type = RowType::kFp32;
  std::uint32_t dim = 0;

  constexpr std::size_t bytes() const { return row_bytes(type, dim); }
  friend constexpr bool operator==(const RowFormat&, const RowFormat&) = default;
};

// rows (N, D), encoded (N, row_bytes). Throws std::invalid_argument for a value that int8 cannot scale: not finite.
void encode_rows(RowFormat format, const float* rows, std::size_t n, char* encoded);
void decode_rows(RowFormat format, const char* encoded, std::size_t n, float* rows);
// The check of encode_rows alone, for a writer that must know before it begins.
void check_encodable(RowFormat format, const float* rows, std::size_t n);

// Rows to be written: float32 (N, D), encoded on the way, or encoded already.
struct RowInput {
  RowInput() = default;
  RowInput(std::nullptr_t) {}
  RowInput(const float* rows) : floats(rows) {}
  RowInput(const char* rows) : encoded(rows) {}

  bool empty() const { return floats == nullptr && encoded == nullptr; }

  const float* floats = nullptr;
  const char* encoded = nullptr;
};

}  // namespace emberline
