// What the head of a request says of it: its id, and the trace that it belongs to.
#pragma once

#include <algorithm>
#include <string_view>

namespace emberline::front {

// The header, or the metadata key, by which clients and proxies name a request.
constexpr std::string_view kRequestIdHeader = "x-request-id";
// The header of W3C's trace context.
constexpr std::string_view kTraceparentHeader = "traceparent";
constexpr std::size_t kLongestRequestId = 256;

// Whether an id can be echoed in a header and in JSON as it is: visible ASCII without quotes and backslashes. Others
// count as none, as in serving/protocol/request_ids.py.
inline bool is_request_id(std::string_view text) {
  return !text.empty() && text.size() <= kLongestRequestId && std::all_of(text.begin(), text.end(), [](char byte) {
    return byte > 0x20 && byte < 0x7f && byte != '"' && byte != '\\';
  });
}

}  // namespace emberline::front
