// Reads a plain part of JSON: objects, arrays, strings of printable ASCII without escapes, numbers and booleans.
//
// It recognises and does not judge: what it does not take may be good JSON or bad, and is for a full parser to decide.
// What it takes, every parser reads in the same way.
#pragma once

#include <charconv>
#include <cstdint>
#include <optional>
#include <string_view>
#include <system_error>

namespace emberline::front {

// Every call returns nothing, or false, where the text continues in another way; the scan is of no use after that.
class JsonScan {
 public:
  explicit JsonScan(std::string_view text) : at_(text.data()), end_(text.data() + text.size()) {}

  // Bytes that were not read yet.
  std::size_t left() const { return static_cast<std::size_t>(end_ - at_); }
  // Takes one mark, such as '{', with the white space before it.
  bool take(char mark);
  // A string without its quotes; views the text.
  std::optional<std::string_view> string();
  // A whole number of at most 18 digits, 0 or more, without leading zeros, fraction and exponent.
  std::optional<std::int64_t> number();
  std::optional<bool> boolean();
  // A whole number, also below 0, that T holds; not -0, which readers take for a whole number or for a decimal one.
  template <class T>
  std::optional<T> whole() {
    const std::optional<std::string_view> text = whole_text();
    T value{};
    if (!text) return std::nullopt;
    const char* end = text->data() + text->size();
    const auto [stop, error] = std::from_chars(text->data(), end, value);
    return stop == end && error == std::errc() ? std::optional(value) : std::nullopt;
  }
  // A number in any form, to the nearest double; not one that is nearer to 0 or to infinity than to all others.
  std::optional<double> decimal();
  // Whether this mark follows, after white space. It is not taken.
  bool sees(char mark);
  // Whether nothing but white space follows.
  bool is_end();

 private:
  void skip_space();
  std::optional<std::string_view> whole_text();

  const char* at_;
  const char* end_;
};

}  // namespace emberline::front
