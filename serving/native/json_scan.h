// Reads a plain part of JSON: objects, arrays, strings of printable ASCII without escapes, whole numbers and booleans.
//
// It recognises and does not judge: what it does not take may be good JSON or bad, and is for a full parser to decide.
// What it takes, every parser reads in the same way.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace emberline::front {

// Every call returns nothing, or false, where the text continues in another way; the scan is of no use after that.
class JsonScan {
 public:
  explicit JsonScan(std::string_view text) : at_(text.data()), end_(text.data() + text.size()) {}

  // Takes one mark, such as '{', with the white space before it.
  bool take(char mark);
  // A string without its quotes; views the text.
  std::optional<std::string_view> string();
  // A whole number of at most 18 digits, 0 or more, without leading zeros, fraction and exponent.
  std::optional<std::int64_t> number();
  std::optional<bool> boolean();
  // Whether nothing but white space follows.
  bool is_end();

 private:
  void skip_space();

  const char* at_;
  const char* end_;
};

}  // namespace emberline::front
