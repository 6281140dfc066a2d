#include "pages/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#define EMBERLINE_CRC_TARGET __attribute__((target("sse4.2")))
#elif defined(__ARM_FEATURE_CRC32)
#include <arm_acle.h>
#define EMBERLINE_CRC_TARGET
#endif

namespace emberline::pages {
namespace {

constexpr std::uint32_t kPolynomial = 0x82F63B78u;

// Eight bytes a step: table k holds the effect of a byte that k zero bytes follow.
using Tables = std::array<std::array<std::uint32_t, 256>, 8>;

const Tables& tables() {
  static const Tables all = [] {
    Tables t{};
    for (std::uint32_t byte = 0; byte < 256; ++byte) {
      std::uint32_t crc = byte;
      for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) ? kPolynomial : 0);
      t[0][byte] = crc;
    }
    for (std::size_t k = 1; k < 8; ++k) {
      for (std::size_t byte = 0; byte < 256; ++byte) t[k][byte] = (t[k - 1][byte] >> 8) ^ t[0][t[k - 1][byte] & 0xFF];
    }
    return t;
  }();
  return all;
}

// Computes the checksum without the inversions at both ends, so that parts can be joined.
std::uint32_t raw_by_table(std::uint32_t crc, const unsigned char* p, std::size_t n) {
  const Tables& t = tables();
  for (; n >= 8; n -= 8, p += 8) {
    std::uint32_t low, high;
    std::memcpy(&low, p, 4);
    std::memcpy(&high, p + 4, 4);
    low ^= crc;
    crc = t[7][low & 0xFF] ^ t[6][low >> 8 & 0xFF] ^ t[5][low >> 16 & 0xFF] ^ t[4][low >> 24] ^ t[3][high & 0xFF] ^
          t[2][high >> 8 & 0xFF] ^ t[1][high >> 16 & 0xFF] ^ t[0][high >> 24];
  }
  for (; n > 0; --n, ++p) crc = (crc >> 8) ^ t[0][(crc ^ *p) & 0xFF];
  return crc;
}

#ifdef EMBERLINE_CRC_TARGET

// Appends a number of zero bytes to a checksum. The operation is linear: a table a byte of the checksum.
struct Shift {
  std::array<std::array<std::uint32_t, 256>, 4> of_byte{};

  explicit Shift(std::size_t zeros) {
    const unsigned char nothing[64] = {};
    std::array<std::uint32_t, 32> of_bit{};
    for (int bit = 0; bit < 32; ++bit) {
      std::uint32_t crc = 1u << bit;
      for (std::size_t left = zeros; left > 0;) {
        const std::size_t step = left < sizeof nothing ? left : sizeof nothing;
        crc = raw_by_table(crc, nothing, step);
        left -= step;
      }
      of_bit[static_cast<std::size_t>(bit)] = crc;
    }
    for (std::size_t place = 0; place < 4; ++place) {
      for (std::size_t byte = 0; byte < 256; ++byte) {
        std::uint32_t crc = 0;
        for (std::size_t bit = 0; bit < 8; ++bit) crc ^= (byte >> bit & 1) ? of_bit[place * 8 + bit] : 0;
        of_byte[place][byte] = crc;
      }
    }
  }

  std::uint32_t operator()(std::uint32_t crc) const {
    return of_byte[0][crc & 0xFF] ^ of_byte[1][crc >> 8 & 0xFF] ^ of_byte[2][crc >> 16 & 0xFF] ^ of_byte[3][crc >> 24];
  }
};

EMBERLINE_CRC_TARGET inline std::uint32_t step8(std::uint32_t crc, const unsigned char* p) {
  std::uint64_t word;
  std::memcpy(&word, p, 8);
#if defined(__x86_64__)
  return static_cast<std::uint32_t>(_mm_crc32_u64(crc, word));
#else
  return __crc32cd(crc, word);
#endif
}

EMBERLINE_CRC_TARGET inline std::uint32_t step1(std::uint32_t crc, unsigned char byte) {
#if defined(__x86_64__)
  return _mm_crc32_u8(crc, byte);
#else
  return __crc32cb(crc, byte);
#endif
}

// The instruction takes three cycles and one can start in each: three parts side by side, joined afterwards.
template <std::size_t Part>
EMBERLINE_CRC_TARGET std::uint32_t three_parts(std::uint32_t crc, const unsigned char*& p, std::size_t& n) {
  static const Shift shift(Part);
  while (n >= 3 * Part) {
    std::uint32_t b = 0, c = 0;
    for (std::size_t i = 0; i < Part; i += 8) {
      crc = step8(crc, p + i);
      b = step8(b, p + Part + i);
      c = step8(c, p + 2 * Part + i);
    }
    crc = shift(shift(crc) ^ b) ^ c;
    p += 3 * Part;
    n -= 3 * Part;
  }
  return crc;
}

EMBERLINE_CRC_TARGET std::uint32_t raw_by_instruction(std::uint32_t crc, const unsigned char* p, std::size_t n) {
  crc = three_parts<1344>(crc, p, n);  // most of a 4 KiB page
  crc = three_parts<256>(crc, p, n);
  for (; n >= 8; n -= 8, p += 8) crc = step8(crc, p);
  for (; n > 0; --n, ++p) crc = step1(crc, *p);
  return crc;
}

#endif

}  // namespace

bool has_crc32c_instruction() {
#if defined(__x86_64__)
  static const bool has = __builtin_cpu_supports("sse4.2");
  return has;
#elif defined(EMBERLINE_CRC_TARGET)
  return true;
#else
  return false;
#endif
}

std::uint32_t crc32c_table(const void* data, std::size_t bytes, std::uint32_t before) {
  return ~raw_by_table(~before, static_cast<const unsigned char*>(data), bytes);
}

std::uint32_t crc32c(const void* data, std::size_t bytes, std::uint32_t before) {
#ifdef EMBERLINE_CRC_TARGET
  if (has_crc32c_instruction()) return ~raw_by_instruction(~before, static_cast<const unsigned char*>(data), bytes);
#endif
  return crc32c_table(data, bytes, before);
}

}  // namespace emberline::pages
