// Recognises the head of an ordinary inference request in HTTP/1.1.
//
// Only requests that every reader of RFC 9112 understands in the same way are taken: a POST to a model's infer path
// with one Host, one Content-Length, and nothing that frames, expects or encodes the body. Everything else, good or
// bad, is for the parser of the Python path, which gets the same bytes.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace emberline::front {

struct InferHead {
  // Bytes of the head, with its empty line.
  std::size_t size = 0;
  // As in the request: /v2/models/NAME/infer or /v2/models/NAME/versions/NUMBER/infer.
  std::string_view path;
  std::int64_t content_length = 0;
  // Bytes of JSON at the beginning of the body; all of it where no header says so.
  std::int64_t json_length = 0;
  // Of the header Emberline-Routing-Key; empty for none.
  std::string_view routing_key;
  // Of the headers X-Request-Id, where it can be echoed, and Traceparent; empty for none.
  std::string_view request_id, traceparent;
  // Of the header Authorization.
  std::optional<std::string_view> authorization;
  // Whether the client may be sent a compressed response.
  bool accepts_encoding = false;
};

enum class HeadState { kIncomplete, kOther, kInference };

// Reads the head at the beginning of `bytes`; fills `head`, which views them, for kInference.
HeadState read_head(std::string_view bytes, InferHead& head);

}  // namespace emberline::front
