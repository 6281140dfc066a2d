// Rows as they are stored (storage/native/rows/codec.h), decoded on a GPU bit for bit as on a host (rows/scalar.h),
// and float32 rounded to the two half precisions. Integer arithmetic throughout where a NaN could tell the difference.
//
// One row type more than the host has: fp8 is a float32 scale, then D values of E4M3 (four bits of exponent, bias 7,
// three of mantissa, no infinities; 0x7F and 0xFF are NaN): value = scale * q.
//
// A row is read in units of 16 bytes, or of 4 where the distance between rows is not a multiple of 16, and a unit is
// decoded by its words of 4 bytes. Without fused multiply-add, and subnormal values are kept: compiled without -ftz.
#pragma once

#include "host_device.cuh"

#if !defined(__CUDACC__) && !defined(__CUDACC_RTC__)
#include <cstring>
#endif

namespace emberline {

// The first four as RowType of rows/codec.h.
constexpr int kRowFp32 = 0;
constexpr int kRowFp16 = 1;
constexpr int kRowBf16 = 2;
constexpr int kRowInt8 = 3;
constexpr int kRowFp8 = 4;

#if defined(__CUDA_ARCH__)
EMBERLINE_HD uint32_t float_bits(float value) { return __float_as_uint(value); }
EMBERLINE_HD float bits_float(uint32_t bits) { return __uint_as_float(bits); }
EMBERLINE_HD float multiply(float a, float b) { return __fmul_rn(a, b); }
EMBERLINE_HD float add(float a, float b) { return __fadd_rn(a, b); }
EMBERLINE_HD float divide(float a, float b) { return __fdiv_rn(a, b); }
#elif defined(__CUDACC_RTC__)
// NVRTC's pass over host code, which nothing comes of.
EMBERLINE_HD uint32_t float_bits(float) { return 0; }
EMBERLINE_HD float bits_float(uint32_t) { return 0; }
EMBERLINE_HD float multiply(float a, float b) { return a * b; }
EMBERLINE_HD float add(float a, float b) { return a + b; }
EMBERLINE_HD float divide(float a, float b) { return a / b; }
#else
EMBERLINE_HD uint32_t float_bits(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof(bits));
  return bits;
}
EMBERLINE_HD float bits_float(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof(value));
  return value;
}
// A host compiles these with -ffp-contract=off.
EMBERLINE_HD float multiply(float a, float b) { return a * b; }
EMBERLINE_HD float add(float a, float b) { return a + b; }
EMBERLINE_HD float divide(float a, float b) { return a / b; }
#endif

EMBERLINE_HD float half_to_float(uint32_t half) {
  const uint32_t magnitude = (half & 0x7FFFu) << 13;
  const uint32_t sign = (half & 0x8000u) << 16;
  // Infinities and NaN, which become quiet.
  if (magnitude >= 0x0F800000u)
    return bits_float(sign | 0x70000000u | magnitude | (magnitude > 0x0F800000u ? 0x400000u : 0u));
  // The exponent's bias, 127 instead of 15, by a product that is exact: subnormal halves become normal floats.
  return bits_float(sign | float_bits(multiply(bits_float(magnitude), 0x1p112f)));
}

EMBERLINE_HD float bfloat_to_float(uint32_t value) { return bits_float(value << 16); }

EMBERLINE_HD float e4m3_to_float(uint32_t byte) {
  const uint32_t magnitude = byte & 0x7Fu;
  const uint32_t sign = (byte & 0x80u) << 24;
  if (magnitude == 0x7Fu) return bits_float(sign | 0x7FC00000u);
  return bits_float(sign | float_bits(multiply(bits_float(magnitude << 20), 0x1p120f)));
}

// Rounded to the nearest, ties to even.
EMBERLINE_HD uint16_t float_to_half(float value) {
  const uint32_t bits = float_bits(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return static_cast<uint16_t>(sign | 0x7E00u | ((magnitude >> 13) & 0x3FFu));
#if defined(__CUDA_ARCH__)
  // What follows, in one instruction: sixteen of them would be branches enough to spill registers.
  uint16_t half;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(value));
  return half;
#else
  if (magnitude >= 0x477FF000u) return static_cast<uint16_t>(sign | 0x7C00u);
  if (magnitude < 0x38800000u) {
    return static_cast<uint16_t>(sign | (float_bits(add(bits_float(magnitude), 0.5f)) - 0x3F000000u));
  }
  return static_cast<uint16_t>(sign | ((magnitude + 0xFFFu + ((magnitude >> 13) & 1u) - 0x38000000u) >> 13));
#endif
}

EMBERLINE_HD uint16_t float_to_bfloat(float value) {
  const uint32_t bits = float_bits(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

// Of a row type: values in a word of 4 bytes, and whether a scale comes before them.
template <int kType>
EMBERLINE_HD constexpr int values_in_word() {
  return kType == kRowFp32 ? 1 : kType == kRowFp16 || kType == kRowBf16 ? 2 : 4;
}
template <int kType>
EMBERLINE_HD constexpr bool has_scale() {
  return kType == kRowInt8 || kType == kRowFp8;
}
EMBERLINE_HD int64_t encoded_bytes(int type, int64_t dim) {
  const int64_t bytes = type == kRowFp32 ? 4 * dim : type == kRowFp16 || type == kRowBf16 ? 2 * dim : 4 + dim;
  return (bytes + 3) / 4 * 4;
}

template <int kWords>
struct alignas(4 * kWords) RowUnit {
  uint32_t words[kWords];
};

// The number of the first value in a word of a row. Below 0 in the word of the scale: nothing is there.
template <int kType>
EMBERLINE_HD int64_t first_value(int64_t row_word) {
  return (row_word - (has_scale<kType>() ? 1 : 0)) * values_in_word<kType>();
}

// The value `at` of a word. scale: of the row, where its type has one.
template <int kType>
EMBERLINE_HD float decode_value(uint32_t word, int at, float scale) {
  if (kType == kRowFp32) return bits_float(word);
  if (kType == kRowFp16) return half_to_float((word >> (16 * at)) & 0xFFFFu);
  if (kType == kRowBf16) return bfloat_to_float((word >> (16 * at)) & 0xFFFFu);
  const uint32_t byte = (word >> (8 * at)) & 0xFFu;
  if (kType == kRowFp8) return multiply(scale, e4m3_to_float(byte));
  return multiply(scale, static_cast<float>(static_cast<int>(byte ^ 0x80u) - 0x80));
}

template <int kType>
EMBERLINE_HD float row_scale(const uint8_t* row) {
  return has_scale<kType>() ? bits_float(*reinterpret_cast<const uint32_t*>(row)) : 0.0f;
}

}  // namespace emberline
