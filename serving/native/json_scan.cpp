#include "json_scan.h"

#include <cstring>

namespace emberline::front {

namespace {

constexpr int kMostDigits = 18;

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
  const auto is_digit = [&] { return at_ != end_ && *at_ >= '0' && *at_ <= '9'; };
  const char* begin = at_;
  std::int64_t value = 0;
  while (is_digit() && at_ - begin < kMostDigits) value = value * 10 + (*at_++ - '0');
  const auto digits = at_ - begin;
  if (digits == 0 || is_digit() || (digits > 1 && *begin == '0')) return std::nullopt;
  if (at_ != end_ && std::strchr(".eE+-", *at_) != nullptr && *at_ != '\0') return std::nullopt;
  return value;
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
