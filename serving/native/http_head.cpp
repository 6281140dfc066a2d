#include "http_head.h"

#include <algorithm>
#include <array>
#include <utility>

#include "request_context.h"

namespace emberline::front {

namespace {

constexpr std::size_t kMostBytes = 16 << 10;
constexpr int kMostHeaders = 128;
constexpr int kMostDigits = 18;
constexpr std::size_t kLongestKey = 1024;
constexpr std::string_view kBegin = "POST /v2/models/";
constexpr std::string_view kEnd = " HTTP/1.1";

constexpr bool is_alphanumeric(unsigned char byte) {
  return (byte >= '0' && byte <= '9') || (byte >= 'A' && byte <= 'Z') || (byte >= 'a' && byte <= 'z');
}

// The bytes of a token of RFC 9110.
constexpr std::array<bool, 256> kToken = [] {
  std::array<bool, 256> made{};
  for (int byte = 0; byte < 256; ++byte) {
    made[static_cast<std::size_t>(byte)] =
        is_alphanumeric(static_cast<unsigned char>(byte)) ||
        std::string_view("!#$%&'*+-.^_`|~").find(static_cast<char>(byte)) != std::string_view::npos;
  }
  return made;
}();

bool equals(std::string_view given, std::string_view lower) {
  return given.size() == lower.size() && std::equal(given.begin(), given.end(), lower.begin(), [](char a, char b) {
           return (a >= 'A' && a <= 'Z' ? static_cast<char>(a + 'a' - 'A') : a) == b;
         });
}

std::optional<std::int64_t> whole_number(std::string_view text) {
  if (text.empty() || text.size() > kMostDigits) return std::nullopt;
  std::int64_t value = 0;
  for (const char digit : text) {
    if (digit < '0' || digit > '9') return std::nullopt;
    value = value * 10 + (digit - '0');
  }
  return value;
}

bool is_host(std::string_view text) {
  if (text.empty()) return false;
  return std::all_of(text.begin(), text.end(),
                     [](char byte) {
                       return is_alphanumeric(static_cast<unsigned char>(byte)) || byte == '.' || byte == '-' ||
                              byte == '_' || byte == ':';
                     }) &&
         std::count(text.begin(), text.end(), ':') <= 1 &&
         (text.find(':') == std::string_view::npos || text.find(':') + 1 == text.size() ||
          whole_number(text.substr(text.find(':') + 1)).has_value());
}

// Whether a path, after /v2/models/, is NAME/infer or NAME/versions/NUMBER/infer, of plain characters.
bool is_infer_path(std::string_view rest) {
  const auto plain = [](std::string_view name) {
    return !name.empty() && std::all_of(name.begin(), name.end(), [](char byte) {
      return is_alphanumeric(static_cast<unsigned char>(byte)) || byte == '.' || byte == '-' || byte == '_';
    });
  };
  const std::size_t slash = rest.find('/');
  if (slash == std::string_view::npos || !plain(rest.substr(0, slash))) return false;
  rest.remove_prefix(slash + 1);
  constexpr std::string_view kVersions = "versions/";
  if (rest.substr(0, kVersions.size()) == kVersions) {
    rest.remove_prefix(kVersions.size());
    const std::size_t end = rest.find('/');
    if (end == std::string_view::npos || !whole_number(rest.substr(0, end))) return false;
    rest.remove_prefix(end + 1);
  }
  return rest == "infer";
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

// Whether each CR so far is in front of an LF, and each LF behind a CR. With another line end, the end of the head may
// never be found, while the Python path refuses what has come.
bool has_whole_line_ends(std::string_view bytes) {
  for (std::size_t at = bytes.find_first_of("\r\n"); at != std::string_view::npos;
       at = bytes.find_first_of("\r\n", at)) {
    if (bytes[at] != '\r') return false;
    if (++at == bytes.size()) return true;
    if (bytes[at] != '\n') return false;
    ++at;
  }
  return true;
}

// What is known of the headers so far.
struct Headers {
  int count = 0;
  bool has_host = false;
  std::optional<std::int64_t> content_length, json_length;
  std::optional<std::string_view> routing_key;
  std::optional<std::string_view> authorization;
  std::string_view request_id, traceparent;
  bool has_traceparent = false;
  bool accepts_encoding = false;

  // Adds a header; returns false for one that an ordinary request does not have.
  bool add(std::string_view name, std::string_view value) {
    if (++count > kMostHeaders) return false;
    switch (name.size()) {
      case 2: return !equals(name, "te");
      case 4:
        if (!equals(name, "host")) return true;
        if (has_host || !is_host(value)) return false;
        return has_host = true;
      case 6: return !equals(name, "expect");
      case 7: return !equals(name, "upgrade") && !equals(name, "trailer");
      case 10: return !equals(name, "connection") || equals(value, "keep-alive");
      case 11:
        if (!equals(name, kTraceparentHeader)) break;
        // Of two, neither counts.
        traceparent = std::exchange(has_traceparent, true) ? std::string_view() : value;
        return true;
      case 12:
        if (!equals(name, kRequestIdHeader)) break;
        request_id = is_request_id(value) ? value : std::string_view();
        return true;
      case 13:
        // Two of them are for Python to refuse.
        if (!equals(name, "authorization")) break;
        if (authorization) return false;
        authorization = value;
        return true;
      case 14: return !equals(name, "content-length") || set(content_length, value);
      case 15:
        // Clients that want no encoding often say so.
        accepts_encoding = accepts_encoding || (equals(name, "accept-encoding") && !equals(value, "identity"));
        return true;
      case 16: return !equals(name, "content-encoding") && !equals(name, "proxy-connection");
      case 17: return !equals(name, "transfer-encoding");
      case 18: return equals(name, "emberline-affinity") || !equals(name.substr(0, 9), "emberline");
      case 21:
        if (!equals(name, "emberline-routing-key")) break;
        if (routing_key || value.size() > kLongestKey) return false;
        routing_key = value;
        return true;
      case 31: return !equals(name, "inference-header-content-length") || set(json_length, value);
      default: break;
    }
    return name.size() < 9 || !equals(name.substr(0, 9), "emberline");
  }

 private:
  static bool set(std::optional<std::int64_t>& number, std::string_view value) {
    if (number) return false;
    number = whole_number(value);
    return number.has_value();
  }
};

}  // namespace

HeadState read_head(std::string_view bytes, InferHead& head) {
  const std::size_t known = std::min(bytes.size(), kBegin.size());
  if (bytes.substr(0, known) != kBegin.substr(0, known)) return HeadState::kOther;
  const std::size_t end = bytes.find("\r\n\r\n");
  if (end == std::string_view::npos) {
    return bytes.size() > kMostBytes || !has_whole_line_ends(bytes) ? HeadState::kOther : HeadState::kIncomplete;
  }
  if (end > kMostBytes) return HeadState::kOther;
  std::string_view rest = bytes.substr(0, end + 2);
  const auto line = [&] {
    const std::size_t size = rest.find("\r\n");
    const std::string_view found = rest.substr(0, size);
    rest.remove_prefix(size + 2);
    return found;
  };
  const std::string_view request = line();
  if (request.size() < kBegin.size() + kEnd.size() || request.substr(request.size() - kEnd.size()) != kEnd) {
    return HeadState::kOther;
  }
  constexpr std::size_t kMethod = std::string_view("POST ").size();
  head.path = request.substr(kMethod, request.size() - kMethod - kEnd.size());
  if (!is_infer_path(head.path.substr(kBegin.size() - kMethod))) return HeadState::kOther;
  Headers headers;
  while (!rest.empty()) {
    const std::string_view header = line();
    const std::size_t colon = header.find(':');
    if (colon == std::string_view::npos || colon == 0) return HeadState::kOther;
    const std::string_view name = header.substr(0, colon), value = trimmed(header.substr(colon + 1));
    const bool is_plain =
        std::all_of(name.begin(), name.end(), [](char byte) { return kToken[static_cast<unsigned char>(byte)]; }) &&
        std::all_of(value.begin(), value.end(),
                    [](char byte) { return (byte >= 0x20 && byte < 0x7f) || byte == '\t'; });
    if (!is_plain || !headers.add(name, value)) return HeadState::kOther;
  }
  if (!headers.has_host || !headers.content_length) return HeadState::kOther;
  head.size = end + 4;
  head.content_length = *headers.content_length;
  head.json_length = headers.json_length.value_or(head.content_length);
  if (head.json_length == 0 || head.json_length > head.content_length) return HeadState::kOther;
  head.routing_key = headers.routing_key.value_or("");
  head.request_id = headers.request_id;
  head.traceparent = headers.traceparent;
  head.authorization = headers.authorization;
  head.accepts_encoding = headers.accepts_encoding;
  return HeadState::kInference;
}

}  // namespace emberline::front
