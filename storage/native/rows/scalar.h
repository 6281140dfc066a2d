// Codecs of one value of an encoded row at a time, in plain C++: the meaning of the row types, to which every faster
// path is held. Internal linkage throughout: the files that include this are compiled for different instruction sets,
// and the linker must not pick one file's copy for another.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

namespace emberline {
namespace {

inline std::uint32_t bits_of(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

inline float float_of(std::uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

inline std::uint16_t to_half(float value) {
  const std::uint32_t bits = bits_of(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000u;
  const std::uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u)
    return static_cast<std::uint16_t>(sign | 0x7E00u | ((magnitude >> 13) & 0x3FFu));  // a quiet NaN
  if (magnitude >= 0x477FF000u) return static_cast<std::uint16_t>(sign | 0x7C00u);  // 65520 and more round to infinity
  if (magnitude < 0x38800000u) {
    // Below 2^-14: a multiple of 2^-24. One half has exactly that unit, so that the addition rounds as wanted.
    const float sum = float_of(magnitude) + 0.5f;
    return static_cast<std::uint16_t>(sign | (bits_of(sum) - bits_of(0.5f)));
  }
  const std::uint32_t rounded = magnitude + 0xFFFu + ((magnitude >> 13) & 1u);
  return static_cast<std::uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}

inline float from_half(std::uint16_t half) {
  const std::uint32_t sign = (half & 0x8000u) << 16;
  const std::uint32_t exponent = (half >> 10) & 31u;
  const std::uint32_t mantissa = half & 0x3FFu;
  if (exponent == 31) return float_of(sign | 0x7F800000u | (mantissa << 13) | (mantissa != 0 ? 0x400000u : 0));
  if (exponent != 0) return float_of(sign | ((exponent + 112) << 23) | (mantissa << 13));
  return float_of(sign | bits_of(static_cast<float>(mantissa) * 0x1p-24f));
}

inline std::uint16_t to_bfloat(float value) {
  const std::uint32_t bits = bits_of(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<std::uint16_t>((bits >> 16) | 0x40u);  // a quiet NaN
  return static_cast<std::uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

inline float from_bfloat(std::uint16_t value) { return float_of(static_cast<std::uint32_t>(value) << 16); }

// Returns the scale of a row whose largest magnitude is given. A subnormal scale has too few bits to restore the row:
// such a row is all zeros.
inline float int8_scale(float largest) {
  const float scale = largest / 127.0f;
  return scale < 0x1p-126f ? 0 : scale;
}

// scale is not 0. Rounded by the FPU's mode, which is to the nearest, ties to even.
inline std::int8_t to_int8(float value, float scale) {
  const float q = std::nearbyintf(value / scale);
  return static_cast<std::int8_t>(q > 127.0f ? 127.0f : q < -127.0f ? -127.0f : q);
}

template <class T>
inline T load_as(const char* from) {
  T value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

// Value d of a row, by row type.
struct Fp32Row {
  explicit Fp32Row(const char* at) : row(at) {}
  float operator[](std::uint32_t d) const { return load_as<float>(row + std::size_t{4} * d); }
  const char* row;
};
struct Fp16Row {
  explicit Fp16Row(const char* at) : row(at) {}
  float operator[](std::uint32_t d) const { return from_half(load_as<std::uint16_t>(row + std::size_t{2} * d)); }
  const char* row;
};
struct Bf16Row {
  explicit Bf16Row(const char* at) : row(at) {}
  float operator[](std::uint32_t d) const { return from_bfloat(load_as<std::uint16_t>(row + std::size_t{2} * d)); }
  const char* row;
};
struct Int8Row {
  explicit Int8Row(const char* at) : row(at + 4), scale(load_as<float>(at)) {}
  float operator[](std::uint32_t d) const { return scale * static_cast<float>(static_cast<std::int8_t>(row[d])); }
  const char* row;
  float scale;
};

}  // namespace
}  // namespace emberline
