// Columns of requests as the features read them: those of several requests joined, one array after the other.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "infer_request.h"

namespace emberline::front {

using InferRequests = std::vector<std::shared_ptr<InferRequest>>;

// The value at a position of lengths of this dtype; one that is over the largest int64 is negative.
std::int64_t length_at(const char* lengths, std::uint8_t dtype, std::int64_t position);

// Whether two requests have columns that can be joined: of the same inputs, dtypes and forms, row by row.
bool can_join(const InferRequest& a, const InferRequest& b);

// Bytes of the columns of all requests, which can be joined, in the form of storage/features/flat.py.
std::size_t joined_bytes(const InferRequests& requests);

// Writes these bytes.
void join_columns(const InferRequests& requests, char* out);

}  // namespace emberline::front
