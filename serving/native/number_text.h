// Writes numbers into JSON as the Python path does, which leaves it to orjson.
#pragma once

#include <cstdint>
#include <string>

namespace emberline::front {

// The most characters that a number takes: -1.7976931348623157e+308 and its like.
constexpr std::size_t kLongestNumberText = 25;

void append_number(std::string& out, std::int64_t value);
void append_number(std::string& out, std::int32_t value);
void append_number(std::string& out, std::uint64_t value);
// The shortest digits that are read as the same value, which must be finite: 0.5, 1.0, 1.5e-7, 1e20.
void append_number(std::string& out, float value);
void append_number(std::string& out, double value);

}  // namespace emberline::front
