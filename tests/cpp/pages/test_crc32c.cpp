// The checksum beside one bit at a time, and the value that every description of CRC-32C gives.
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "check.h"
#include "pages/crc32c.h"

using namespace emberline::pages;

namespace {

std::uint32_t bit_by_bit(const unsigned char* bytes, std::size_t n, std::uint32_t before) {
  std::uint32_t crc = ~before;
  for (std::size_t i = 0; i < n; ++i) {
    crc ^= bytes[i];
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ (crc & 1 ? 0x82F63B78u : 0u);
  }
  return ~crc;
}

}  // namespace

TEST(the_check_value_is_the_published_one) {
  CHECK(crc32c("123456789", 9) == 0xE3069283u);
  CHECK(crc32c_table("123456789", 9) == 0xE3069283u);
  CHECK(crc32c("", 0) == 0);
}

TEST(both_ways_are_the_slow_one_at_every_length_and_alignment) {
  std::mt19937_64 random(3);
  std::vector<unsigned char> bytes(9000);
  for (unsigned char& byte : bytes) byte = static_cast<unsigned char>(random());
  for (std::size_t n = 0; n < 8200; n += n < 1100 ? 1 : 97) {
    const std::size_t at = random() % 8;
    const auto before = static_cast<std::uint32_t>(random());
    const std::uint32_t expected = bit_by_bit(bytes.data() + at, n, before);
    CHECK(crc32c(bytes.data() + at, n, before) == expected);
    CHECK(crc32c_table(bytes.data() + at, n, before) == expected);
  }
}

TEST(parts_one_after_the_other_are_the_whole) {
  const std::string text(5000, 'x');
  for (std::size_t cut = 0; cut <= text.size(); cut += 333) {
    CHECK(crc32c(text.data() + cut, text.size() - cut, crc32c(text.data(), cut)) == crc32c(text.data(), text.size()));
  }
}

RUN_ALL_TESTS()
