// CRC-32C (Castagnoli, reflected polynomial 0x82F63B78), the checksum of pages: two bits of a page never turn
// unnoticed.
#pragma once

#include <cstddef>
#include <cstdint>

namespace emberline::pages {

// Returns the CRC-32C of bytes, continuing from the checksum of the bytes before them (0: none).
std::uint32_t crc32c(const void* data, std::size_t bytes, std::uint32_t before = 0);

// The two ways to compute it; crc32c takes the processor's own instruction where there is one.
std::uint32_t crc32c_table(const void* data, std::size_t bytes, std::uint32_t before = 0);
bool has_crc32c_instruction();

}  // namespace emberline::pages
