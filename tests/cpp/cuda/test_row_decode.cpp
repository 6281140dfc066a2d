// Rows decoded as a GPU does it, against the host's codec, and fp8 against its definition: to the bit.
#include "row_decode.cuh"

#include "check.h"
#include "replica.h"

using namespace emberline;

namespace {

template <int kType>
float decoded(const char* row, std::int64_t d) {
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(row);
  const float scale = row_scale<kType>(bytes);
  const std::int64_t word = d / values_in_word<kType>() + (has_scale<kType>() ? 1 : 0);
  std::uint32_t value;
  std::memcpy(&value, row + 4 * word, 4);
  return decode_value<kType>(value, static_cast<int>(d - first_value<kType>(word)), scale);
}

bool equal(float a, float b) { return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b); }

float host(RowType type, const char* row, std::uint32_t dim, std::uint32_t d) {
  std::vector<float> out(dim);
  decode_rows({type, dim}, row, 1, out.data());
  return out[d];
}

const std::vector<float> kScales{1.0f, 0.0f, 0.007874016f, 1e-38f, 3e38f, -2.5f};

}  // namespace

TEST(every_half_and_every_bfloat_decodes_as_on_the_host) {
  int wrong = 0;
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    alignas(4) char row[4];
    const auto low = static_cast<std::uint16_t>(bits), high = static_cast<std::uint16_t>(~bits);
    std::memcpy(row, &low, 2);
    std::memcpy(row + 2, &high, 2);
    for (std::uint32_t d = 0; d < 2; ++d) {
      wrong += !equal(decoded<kRowFp16>(row, d), host(RowType::kFp16, row, 2, d));
      wrong += !equal(decoded<kRowBf16>(row, d), host(RowType::kBf16, row, 2, d));
    }
  }
  CHECK(wrong == 0);
}

TEST(every_byte_times_a_scale_decodes_as_defined) {
  int wrong = 0;
  for (const float scale : kScales) {
    alignas(4) char row[4 + 256];
    std::memcpy(row, &scale, 4);
    for (int byte = 0; byte < 256; ++byte) row[4 + byte] = static_cast<char>(byte);
    for (std::uint32_t d = 0; d < 256; ++d) {
      wrong += !equal(decoded<kRowInt8>(row, d), host(RowType::kInt8, row, 256, d));
      const float fp8 = replica::e4m3(static_cast<std::uint8_t>(d));
      wrong += !(equal(decoded<kRowFp8>(row, d), scale * fp8) || std::isnan(fp8));
      wrong += std::isnan(fp8) && !std::isnan(decoded<kRowFp8>(row, d));
    }
  }
  CHECK(wrong == 0);
  CHECK(replica::e4m3(0x7E) == 448 && replica::e4m3(0x01) == 0.001953125f && replica::e4m3(0x38) == 1);
}

TEST(floats_round_to_halves_as_on_the_host) {
  int wrong = 0;
  const auto check_one = [&](std::uint32_t bits) {
    const float value = std::bit_cast<float>(bits);
    char row[4];
    std::uint16_t expected;
    encode_rows({RowType::kFp16, 1}, &value, 1, row);
    std::memcpy(&expected, row, 2);
    wrong += float_to_half(value) != expected;
    encode_rows({RowType::kBf16, 1}, &value, 1, row);
    std::memcpy(&expected, row, 2);
    wrong += float_to_bfloat(value) != expected;
  };
  // Around every half: its float, its neighbours, and the ties between halves.
  for (std::uint32_t half = 0; half < 65536; ++half) {
    const std::uint32_t bits = float_bits(half_to_float(half));
    for (const std::uint32_t step : {0u, 1u, 0xFFFFFFFFu, 0x0FFFu, 0x1000u, 0x1001u}) check_one(bits + step);
  }
  std::mt19937 random(1);
  for (int i = 0; i < 300000; ++i) check_one(random());
  CHECK(wrong == 0);
}

TEST(rows_are_as_long_as_on_the_host) {
  for (std::uint32_t dim = 1; dim <= 1024; ++dim) {
    for (const int type : {kRowFp32, kRowFp16, kRowBf16, kRowInt8}) {
      CHECK(encoded_bytes(type, dim) == static_cast<std::int64_t>(row_bytes(static_cast<RowType>(type), dim)));
    }
    CHECK(encoded_bytes(kRowFp8, dim) == encoded_bytes(kRowInt8, dim));
  }
}

RUN_ALL_TESTS()
