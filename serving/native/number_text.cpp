#include "number_text.h"

#include <charconv>
#include <cstdlib>
#include <cstring>
#include <string_view>

namespace emberline::front {

namespace {

template <class T>
void append_whole(std::string& out, T value) {
  char text[24];
  out.append(text, std::to_chars(text, text + sizeof text, value).ptr);
}

// Without an exponent from 10**least to below 10**most.
template <class T>
void append_decimal(std::string& out, T value, int least, int most) {
  char text[40];
  // d.ddde+xx or de-xx, with the fewest digits that are read as this value.
  const char* end = std::to_chars(text, text + sizeof text, value, std::chars_format::scientific).ptr;
  const char* begin = text;
  if (*begin == '-') out += *begin++;
  const char* mark = static_cast<const char*>(std::memchr(begin, 'e', static_cast<std::size_t>(end - begin)));
  int exponent = 0;
  std::from_chars(mark + (mark[1] == '+' ? 2 : 1), end, exponent);
  const char first = *begin;
  const std::string_view rest = mark - begin > 2 ? std::string_view(begin + 2, mark) : std::string_view();
  const auto digits = static_cast<int>(rest.size());
  if (exponent < least || exponent >= most) {
    out += first;
    if (digits != 0) out.append(1, '.').append(rest);
    out += exponent < 0 ? "e-" : "e+";
    append_whole(out, std::abs(exponent));
  } else if (exponent < 0) {
    out.append("0.").append(static_cast<std::size_t>(-exponent - 1), '0').append(1, first).append(rest);
  } else if (digits <= exponent) {
    out.append(1, first).append(rest).append(static_cast<std::size_t>(exponent - digits), '0').append(".0");
  } else {
    const auto whole = static_cast<std::size_t>(exponent);
    out.append(1, first).append(rest.substr(0, whole)).append(1, '.').append(rest.substr(whole));
  }
}

}  // namespace

void append_number(std::string& out, std::int64_t value) { append_whole(out, value); }

void append_number(std::string& out, std::int32_t value) { append_whole(out, value); }

void append_number(std::string& out, std::uint64_t value) { append_whole(out, value); }

void append_number(std::string& out, float value) { append_decimal(out, value, -6, 13); }

void append_number(std::string& out, double value) { append_decimal(out, value, -5, 16); }

}  // namespace emberline::front
