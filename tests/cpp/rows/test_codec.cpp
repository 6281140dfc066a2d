// What the row types mean: known values, every half-precision number, rounding to even, and that decoding and encoding
// again gives the same bytes.
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <stdexcept>
#include <vector>

#include "every_isa.h"
#include "rows/codec.h"

using namespace emberline;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr RowType kAll[] = {RowType::kFp32, RowType::kFp16, RowType::kBf16, RowType::kInt8};

std::vector<char> encoded(RowType type, const std::vector<float>& row) {
  const RowFormat format{type, static_cast<std::uint32_t>(row.size())};
  std::vector<char> bytes(format.bytes(), 'x');
  encode_rows(format, row.data(), 1, bytes.data());
  return bytes;
}

std::vector<float> decoded(RowType type, const std::vector<char>& bytes, std::uint32_t dim) {
  std::vector<float> row(dim);
  decode_rows({type, dim}, bytes.data(), 1, row.data());
  return row;
}

std::uint16_t half_bits(RowType type, float value) {
  // In the middle of a row that is long enough for every vector, and at its end.
  std::vector<float> row(35, 1.0f);
  row[3] = row[34] = value;
  const std::vector<char> bytes = encoded(type, row);
  std::uint16_t first, last;
  std::memcpy(&first, bytes.data() + 6, 2);
  std::memcpy(&last, bytes.data() + 68, 2);
  CHECK(first == last);
  return first;
}

float float_of_bits(std::uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

}  // namespace

TEST(a_row_takes_the_bytes_that_its_type_says) {
  CHECK(row_bytes(RowType::kFp32, 5) == 20);
  CHECK(row_bytes(RowType::kFp16, 5) == 12 && row_bytes(RowType::kFp16, 6) == 12);
  CHECK(row_bytes(RowType::kBf16, 1) == 4);
  CHECK(row_bytes(RowType::kInt8, 4) == 8 && row_bytes(RowType::kInt8, 5) == 12);
  for (const RowType type : kAll) CHECK(row_type_named(row_type_name(type)) == type);
  CHECK_THROWS(row_type_named("fp8"), std::invalid_argument);
}

TEST(padding_is_zero) {
  for (const RowType type : {RowType::kFp16, RowType::kBf16}) {
    const std::vector<char> bytes = encoded(type, std::vector<float>(3, 1.0f));
    CHECK(bytes[6] == 0 && bytes[7] == 0);
  }
  const std::vector<char> bytes = encoded(RowType::kInt8, std::vector<float>(17, 1.0f));
  CHECK(bytes.size() == 24 && bytes[20] == 127 && bytes[21] == 0 && bytes[22] == 0 && bytes[23] == 0);
}

TEST(half_precision_rounds_to_the_nearest_ties_to_even) {
  CHECK(half_bits(RowType::kFp16, 1.0f) == 0x3C00);
  CHECK(half_bits(RowType::kFp16, -2.5f) == 0xC100);
  CHECK(half_bits(RowType::kFp16, 1.0f + 0x1p-11f) == 0x3C00);  // a tie, to even
  CHECK(half_bits(RowType::kFp16, 1.0f + 3 * 0x1p-11f) == 0x3C02);  // a tie, up to even
  CHECK(half_bits(RowType::kFp16, 1.0f + 0x1p-11f + 0x1p-20f) == 0x3C01);
  CHECK(half_bits(RowType::kFp16, 65504.0f) == 0x7BFF);
  CHECK(half_bits(RowType::kFp16, 65519.99f) == 0x7BFF);
  CHECK(half_bits(RowType::kFp16, 65520.0f) == 0x7C00);
  CHECK(half_bits(RowType::kFp16, -1e30f) == 0xFC00);
  CHECK(half_bits(RowType::kFp16, kInf) == 0x7C00);
  CHECK(half_bits(RowType::kFp16, -0.0f) == 0x8000);
  CHECK(half_bits(RowType::kFp16, 0x1p-24f) == 0x0001);
  CHECK(half_bits(RowType::kFp16, 0x1p-25f) == 0x0000);  // a tie, to even
  CHECK(half_bits(RowType::kFp16, 1.5f * 0x1p-24f) == 0x0002);  // a tie, up to even
  CHECK(half_bits(RowType::kFp16, -(0x1p-14f - 0x1p-25f)) == 0x8400);  // up to the smallest normal one
  CHECK(half_bits(RowType::kFp16, 1e-45f) == 0x0000);
  CHECK((half_bits(RowType::kFp16, float_of_bits(0x7F800001)) & 0x7E00) == 0x7E00);  // NaN stays NaN, quiet
}

TEST(bfloat_rounds_to_the_nearest_ties_to_even) {
  CHECK(half_bits(RowType::kBf16, 1.0f) == 0x3F80);
  CHECK(half_bits(RowType::kBf16, float_of_bits(0x3F808000)) == 0x3F80);
  CHECK(half_bits(RowType::kBf16, float_of_bits(0x3F818000)) == 0x3F82);
  CHECK(half_bits(RowType::kBf16, float_of_bits(0x3F808001)) == 0x3F81);
  CHECK(half_bits(RowType::kBf16, std::numeric_limits<float>::max()) == 0x7F80);
  CHECK(half_bits(RowType::kBf16, -kInf) == 0xFF80);
  CHECK(half_bits(RowType::kBf16, float_of_bits(0x00000001)) == 0x0000);
  CHECK(half_bits(RowType::kBf16, float_of_bits(0x00018000)) == 0x0002);  // subnormal: the bits round as any others
  CHECK(half_bits(RowType::kBf16, float_of_bits(0x7F800001)) == 0x7FC0);
  CHECK(half_bits(RowType::kBf16, float_of_bits(0xFFFFFFFF)) == 0xFFFF);
}

TEST(every_half_precision_number_is_decoded_exactly_and_encoded_to_itself) {
  for (const RowType type : {RowType::kFp16, RowType::kBf16}) {
    constexpr std::uint32_t kCount = 1 << 16;
    std::vector<std::uint16_t> all(kCount), again(kCount);
    for (std::uint32_t i = 0; i < kCount; ++i) all[i] = static_cast<std::uint16_t>(i);
    std::vector<float> values(kCount);
    decode_rows({type, kCount}, reinterpret_cast<const char*>(all.data()), 1, values.data());
    encode_rows({type, kCount}, values.data(), 1, reinterpret_cast<char*>(again.data()));
    for (std::uint32_t i = 0; i < kCount; ++i) {
      const int exponent_bits = type == RowType::kFp16 ? 5 : 8, mantissa_bits = 15 - exponent_bits;
      const int exponent = static_cast<int>(i >> mantissa_bits) & ((1 << exponent_bits) - 1);
      const double mantissa = i & ((1u << mantissa_bits) - 1);
      if (exponent == (1 << exponent_bits) - 1 && mantissa != 0) {
        CHECK(std::isnan(values[i]));
        CHECK(again[i] == (i | 1u << (mantissa_bits - 1)));
        continue;
      }
      CHECK(again[i] == all[i]);
      const int bias = (1 << (exponent_bits - 1)) - 1;
      double wanted = exponent == 0 ? std::ldexp(mantissa, 1 - bias - mantissa_bits)
                                    : std::ldexp(1.0 + std::ldexp(mantissa, -mantissa_bits), exponent - bias);
      if (exponent == (1 << exponent_bits) - 1) wanted = std::numeric_limits<double>::infinity();
      if ((i & 0x8000u) != 0) wanted = -wanted;
      CHECK(values[i] == wanted && std::signbit(values[i]) == ((i & 0x8000u) != 0));
    }
  }
}

TEST(int8_scales_a_row_by_its_largest_value) {
  std::vector<float> row(20, 0.0f);
  row[0] = -12.7f;
  row[1] = 6.0f;
  row[19] = 0.05f;  // half a step, to even: 0
  const std::vector<char> bytes = encoded(RowType::kInt8, row);
  float scale;
  std::memcpy(&scale, bytes.data(), sizeof(scale));
  CHECK(scale == 12.7f / 127.0f);
  const auto step = [&](std::size_t at) { return static_cast<std::int8_t>(bytes[4 + at]); };  // char has no sign on ARM
  CHECK(step(0) == -127 && step(1) == 60 && step(2) == 0);
  const std::vector<float> back = decoded(RowType::kInt8, bytes, 20);
  CHECK(back[0] == scale * -127.0f && back[1] == scale * 60.0f && back[2] == 0.0f);

  const std::vector<char> zero = encoded(RowType::kInt8, std::vector<float>(20, -0.0f));
  CHECK(zero == std::vector<char>(24, 0));
  CHECK(encoded(RowType::kInt8, std::vector<float>(20, 1e-37f)) ==
        std::vector<char>(24, 0));  // its scale would be subnormal
}

TEST(int8_refuses_what_is_not_finite_and_names_the_place) {
  std::vector<float> rows(3 * 9, 1.0f);
  rows[2 * 9 + 4] = kInf;
  std::vector<char> bytes(3 * row_bytes(RowType::kInt8, 9));
  bool named = false;
  try {
    encode_rows({RowType::kInt8, 9}, rows.data(), 3, bytes.data());
  } catch (const std::invalid_argument& error) {
    named = std::string(error.what()).find("row 2") != std::string::npos;
  }
  CHECK(named);
  rows[2 * 9 + 4] = std::nanf("");
  CHECK_THROWS(encode_rows({RowType::kInt8, 9}, rows.data(), 3, bytes.data()), std::invalid_argument);
  encode_rows({RowType::kFp16, 9}, rows.data(), 3, std::vector<char>(60).data());
}

TEST(decoding_and_encoding_again_gives_the_same_bytes) {
  std::mt19937 random(5);
  for (const RowType type : kAll) {
    for (const std::uint32_t dim : {1u, 7u, 16u, 33u, 128u}) {
      for (int trial = 0; trial < 300; ++trial) {
        std::vector<float> row(dim);
        const float scale = std::ldexp(1.0f, static_cast<int>(random() % 240) - 120);
        for (float& value : row) value = std::normal_distribution<float>()(random) * scale;
        if (trial % 7 == 0) row[random() % dim] = 0;
        const std::vector<char> once = encoded(type, row);
        CHECK(encoded(type, decoded(type, once, dim)) == once);
      }
    }
  }
}

RUN_ALL_TESTS_ON_EVERY_ISA()
