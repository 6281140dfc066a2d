// The row kernels in plain C++, for any machine, and the reference for the others.
#include <algorithm>
#include <cmath>

#include "rows/kernels.h"
#include "rows/scalar.h"

namespace emberline {
namespace {

template <class Row>
constexpr RowType type_of();
template <>
constexpr RowType type_of<Fp32Row>() {
  return RowType::kFp32;
}
template <>
constexpr RowType type_of<Fp16Row>() {
  return RowType::kFp16;
}
template <>
constexpr RowType type_of<Bf16Row>() {
  return RowType::kBf16;
}
template <>
constexpr RowType type_of<Int8Row>() {
  return RowType::kInt8;
}

void encode_fp32(const float* rows, std::size_t n, std::uint32_t dim, char* encoded) {
  std::memcpy(encoded, rows, n * dim * sizeof(float));
}

template <RowType kType>
void encode_halves(const float* rows, std::size_t n, std::uint32_t dim, char* encoded) {
  const std::size_t bytes = row_bytes(kType, dim);
  for (std::size_t i = 0; i < n; ++i, rows += dim, encoded += bytes) {
    for (std::uint32_t d = 0; d < dim; ++d) {
      const std::uint16_t value = kType == RowType::kFp16 ? to_half(rows[d]) : to_bfloat(rows[d]);
      std::memcpy(encoded + std::size_t{2} * d, &value, sizeof(value));
    }
    std::memset(encoded + std::size_t{2} * dim, 0, bytes - std::size_t{2} * dim);
  }
}

void encode_int8(const float* rows, std::size_t n, std::uint32_t dim, char* encoded) {
  const std::size_t bytes = row_bytes(RowType::kInt8, dim);
  for (std::size_t i = 0; i < n; ++i, rows += dim, encoded += bytes) {
    float largest = 0;
    for (std::uint32_t d = 0; d < dim; ++d) largest = std::max(largest, std::fabs(rows[d]));
    const float scale = int8_scale(largest);
    std::memcpy(encoded, &scale, sizeof(scale));
    for (std::uint32_t d = 0; d < dim; ++d) {
      encoded[4 + std::size_t{d}] = scale == 0 ? 0 : static_cast<char>(to_int8(rows[d], scale));
    }
    std::memset(encoded + 4 + dim, 0, bytes - 4 - dim);
  }
}

template <class Row>
void decode(const char* encoded, std::size_t n, std::uint32_t dim, float* rows) {
  const std::size_t bytes = row_bytes(type_of<Row>(), dim);
  for (std::size_t i = 0; i < n; ++i, rows += dim, encoded += bytes) {
    const Row row(encoded);
    for (std::uint32_t d = 0; d < dim; ++d) rows[d] = row[d];
  }
}

template <class Row>
void gather(const char* const* rows, std::size_t n, std::uint32_t dim, float* __restrict out) {
  for (std::size_t i = 0; i < n; ++i, out += dim) {
    const Row row(rows[i]);
    for (std::uint32_t d = 0; d < dim; ++d) out[d] = row[d];
  }
}

template <class Row>
void singles(const char* const* rows, std::size_t n, std::uint32_t dim, float* __restrict out, std::size_t stride) {
  for (std::size_t i = 0; i < n; ++i, out += stride) {
    const Row row(rows[i]);
    for (std::uint32_t d = 0; d < dim; ++d) out[d] = 0.0f + row[d];
  }
}

template <class Row>
void pool(const char* const* rows, const float* weights, std::size_t n, std::uint32_t dim, float divisor,
          float* __restrict out) {
  std::memset(out, 0, dim * sizeof(float));
  for (std::size_t i = 0; i < n; ++i) {
    if (rows[i] == nullptr) continue;
    const Row row(rows[i]);
    if (weights == nullptr) {
      for (std::uint32_t d = 0; d < dim; ++d) out[d] += row[d];
    } else {
      for (std::uint32_t d = 0; d < dim; ++d) out[d] += weights[i] * row[d];
    }
  }
  if (divisor != 1) {
    for (std::uint32_t d = 0; d < dim; ++d) out[d] /= divisor;
  }
}

}  // namespace

const RowKernels kPortableRows = {
    {encode_fp32, encode_halves<RowType::kFp16>, encode_halves<RowType::kBf16>, encode_int8},
    {decode<Fp32Row>, decode<Fp16Row>, decode<Bf16Row>, decode<Int8Row>},
    {gather<Fp32Row>, gather<Fp16Row>, gather<Bf16Row>, gather<Int8Row>},
    {pool<Fp32Row>, pool<Fp16Row>, pool<Bf16Row>, pool<Int8Row>},
    {singles<Fp32Row>, singles<Fp16Row>, singles<Bf16Row>, singles<Int8Row>},
};

}  // namespace emberline
