// Reads the body of an ordinary HTTP request: JSON of a plain form, and tensors as bytes after it.
#pragma once

#include <cstdint>

#include <string_view>

#include "infer_request.h"
#include "route.h"

namespace emberline::front {

// Reads the body of a request whose bytes and arrival are set, and chooses the model that answers it. Returns false for
// one that is not plain, of which only the bytes are to be used then.
// body: where it begins in the bytes. json_length: bytes of JSON at its beginning. routing_key: that of the head, which
// one in the body overrides.
bool read_http_request(const Route& route, InferRequest& request, std::size_t body, std::int64_t json_length,
                       std::string_view routing_key);

}  // namespace emberline::front
