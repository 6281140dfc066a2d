#include "json_scan.h"

#include <cstddef>

namespace emberline::front {

namespace {

constexpr int kMostDigits = 18;
// Longer numbers are for a full parser, as nobody writes them for a reason.
constexpr std::ptrdiff_t kLongestNumber = 40;

bool is_digit(char byte) { return byte >= '0' && byte <= '9'; }

// Whether a number goes on with this byte after its digits.
bool is_of_number(char byte) { return byte == '.' || byte == 'e' || byte == 'E' || byte == '+' || byte == '-'; }

const char* skip_digits(const char* at, const char* end) {
  while (at != end && is_digit(*at)) ++at;
  return at;
}

}  // namespace

void JsonScan::skip_space() {
  while (at_ != end_ && (*at_ == ' ' || *at_ == '\n' || *at_ == '\t' || *at_ == '\r')) ++at_;
}

bool JsonScan::take(char mark) {
  skip_space();
  if (at_ == end_ || *at_ != mark) return false;
  ++at_;
  return true;
}

std::optional<std::string_view> JsonScan::string() {
  if (!take('"')) return std::nullopt;
  const char* begin = at_;
  for (; at_ != end_; ++at_) {
    const auto byte = static_cast<unsigned char>(*at_);
    if (byte == '"') return std::string_view(begin, static_cast<std::size_t>(at_++ - begin));
    if (byte < 0x20 || byte > 0x7e || byte == '\\') break;
  }
  return std::nullopt;
}

std::optional<std::int64_t> JsonScan::number() {
  skip_space();
  const auto has_digit = [&] { return at_ != end_ && is_digit(*at_); };
  const char* begin = at_;
  std::int64_t value = 0;
  while (has_digit() && at_ - begin < kMostDigits) value = value * 10 + (*at_++ - '0');
  const auto digits = at_ - begin;
  if (digits == 0 || has_digit() || (digits > 1 && *begin == '0')) return std::nullopt;
  if (at_ != end_ && is_of_number(*at_)) return std::nullopt;
  return value;
}

std::optional<std::string_view> JsonScan::whole_text() {
  skip_space();
  const char* begin = at_;
  if (at_ != end_ && *at_ == '-') ++at_;
  const char* digits = at_;
  at_ = skip_digits(at_, end_);
  if (at_ == digits || at_ - begin > kLongestNumber || (at_ != end_ && is_of_number(*at_))) return std::nullopt;
  if (*digits == '0' && (at_ - digits > 1 || digits != begin)) return std::nullopt;
  return std::string_view(begin, static_cast<std::size_t>(at_ - begin));
}

std::optional<double> JsonScan::decimal() {
  skip_space();
  const char* begin = at_;
  if (at_ != end_ && *at_ == '-') ++at_;
  const char* digits = at_;
  at_ = skip_digits(at_, end_);
  if (at_ == digits || (*digits == '0' && at_ - digits > 1)) return std::nullopt;
  bool is_whole = true;
  if (at_ != end_ && *at_ == '.') {
    const char* fraction = ++at_;
    at_ = skip_digits(at_, end_);
    if (at_ == fraction) return std::nullopt;
    is_whole = false;
  }
  if (at_ != end_ && (*at_ == 'e' || *at_ == 'E')) {
    ++at_;
    if (at_ != end_ && (*at_ == '+' || *at_ == '-')) ++at_;
    const char* exponent = at_;
    at_ = skip_digits(at_, end_);
    if (at_ == exponent) return std::nullopt;
    is_whole = false;
  }
  if (at_ - begin > kLongestNumber || (is_whole && *begin == '-' && *digits == '0')) return std::nullopt;
  double value = 0.0;
  const auto [stop, error] = std::from_chars(begin, at_, value);
  return stop == at_ && error == std::errc() ? std::optional(value) : std::nullopt;
}

bool JsonScan::sees(char mark) {
  skip_space();
  return at_ != end_ && *at_ == mark;
}

std::optional<bool> JsonScan::boolean() {
  skip_space();
  const std::string_view rest(at_, static_cast<std::size_t>(end_ - at_));
  for (const bool value : {true, false}) {
    const std::string_view word = value ? "true" : "false";
    if (rest.substr(0, word.size()) != word) continue;
    at_ += word.size();
    return value;
  }
  return std::nullopt;
}

bool JsonScan::is_end() {
  skip_space();
  return at_ == end_;
}

}  // namespace emberline::front
