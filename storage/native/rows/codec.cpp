#include "rows/codec.h"

#include <bit>
#include <stdexcept>

#include "rows/kernels.h"
#include "rows/scalar.h"

namespace emberline {
namespace {

static_assert(std::endian::native == std::endian::little, "rows are stored little-endian");

constexpr const char* kNames[kRowTypes] = {"fp32", "fp16", "bf16", "int8"};

}  // namespace

const char* row_type_name(RowType type) { return kNames[static_cast<int>(type)]; }

RowType row_type_named(const std::string& name) {
  for (int i = 0; i < kRowTypes; ++i) {
    if (name == kNames[i]) return static_cast<RowType>(i);
  }
  throw std::invalid_argument("row_type: expected fp32, fp16, bf16 or int8, got " + name);
}

void check_encodable(RowFormat format, const float* rows, std::size_t n) {
  if (format.type != RowType::kInt8) return;
  for (std::size_t i = 0; i < n * format.dim; ++i) {
    if ((bits_of(rows[i]) & 0x7F800000u) != 0x7F800000u) continue;
    throw std::invalid_argument("rows: row " + std::to_string(i / format.dim) + " has a value that is not finite at " +
                                std::to_string(i % format.dim) + ", which int8 cannot hold");
  }
}

void encode_rows(RowFormat format, const float* rows, std::size_t n, char* encoded) {
  check_encodable(format, rows, n);
  row_kernels().encode[static_cast<int>(format.type)](rows, n, format.dim, encoded);
}

void decode_rows(RowFormat format, const char* encoded, std::size_t n, float* rows) {
  row_kernels().decode[static_cast<int>(format.type)](encoded, n, format.dim, rows);
}

}  // namespace emberline
