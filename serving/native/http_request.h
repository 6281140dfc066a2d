// Reads the body of an ordinary HTTP request: JSON of a plain form, and tensors as bytes after it.
#pragma once

#include <cstdint>

#include "infer_request.h"
#include "model.h"

namespace emberline::front {

// Reads the body of a request whose bytes and arrival are set; false for one that is not plain, which is no more to be
// used then. body: where it begins in the bytes. json_length: bytes of JSON at its beginning.
bool read_http_request(const Model& model, InferRequest& request, std::size_t body, std::int64_t json_length);

}  // namespace emberline::front
