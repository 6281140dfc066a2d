// BLAKE2b of RFC 7693 with a key, and a digest of 8 or of 32 bytes.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace emberline::front {

// Returns the digest as a number, its first byte the highest. key: 1 to 64 bytes.
std::uint64_t blake2b_64(std::string_view key, std::string_view message);
// Returns the digest as four numbers, whose bytes in little-endian order it is. key: 1 to 64 bytes.
std::array<std::uint64_t, 4> blake2b_256(std::string_view key, std::string_view message);

}  // namespace emberline::front
