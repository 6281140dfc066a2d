// KServe's binary form of BYTES: each element is a little-endian uint32 length and then its bytes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace emberline::features {

struct ByteRanges {
  std::vector<std::int64_t> starts;
  std::vector<std::int64_t> ends;
};

// Returns the ranges of the `count` elements of a buffer. Throws InvalidInput unless they fill it exactly; what is
// allocated is bounded by the buffer's size, not by the count claimed.
ByteRanges split_wire_bytes(const char* data, std::int64_t size, std::int64_t count, const std::string& field);

}  // namespace emberline::features
