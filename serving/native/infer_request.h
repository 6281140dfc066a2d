// A request that was read without Python: its bytes, and where the columns of its inputs lie in them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "queue.h"

namespace emberline::front {

// dtypes of the wire; their numbers are the positions of their names, as in storage/features/dtypes.py.
constexpr std::string_view kWireNames[] = {"INT64", "INT32", "UINT64", "BYTES", "FP32", "FP64", "BOOL"};
enum Wire : std::uint8_t { kInt64, kInt32, kUint64, kStrings, kFp32, kFp64, kBool };
constexpr std::uint8_t kNoWire = 255;
// Bytes of a value, 0 for those of any length.
constexpr std::int64_t kWireBytes[] = {8, 4, 8, 0, 4, 8, 1};

// The number of a dtype, kNoWire for one that is not in the list.
constexpr std::uint8_t wire_of(std::string_view name) {
  for (std::uint8_t wire = 0; wire < std::size(kWireNames); ++wire) {
    if (kWireNames[wire] == name) return wire;
  }
  return kNoWire;
}

// Callers that need not be known; see serving/security/principals.py.
constexpr std::string_view kAnonymous = "anonymous";

// A part of the bytes that came, or of those that were made of the request's text.
struct Span {
  std::size_t offset = 0, size = 0;
  bool is_made = false;
};

// A tensor of a request, as the request describes it. The name views the request.
struct Tensor {
  std::string_view name;
  std::uint8_t dtype = kNoWire;
  // 1 or 2 dimensions are read here; the first one is the number of rows.
  int rank = 0;
  std::int64_t shape[2] = {0, 1};
  Span values;
};

// The form of a column, as flags with the numbers of storage/features/flat.py.
constexpr std::uint8_t kList = 1, kHasValid = 2, kOneRow = 4;

// One column of a request: rows of `width` values each, of which a list keeps as many as its length says.
struct ColumnPart {
  // The input among those that the model takes here, and its position among the model's raw inputs.
  std::uint16_t input = 0, place = 0;
  std::uint8_t dtype = 0;
  std::uint8_t form = 0;
  // kNoWire where every row has `width` values.
  std::uint8_t lengths_dtype = kNoWire;
  std::int64_t rows = 0, width = 1;
  // Values that are kept.
  std::int64_t count = 0;
  Span values, lengths, valid;
};

// An output that was asked for: its position among the model's, and whether it is sent as bytes or as JSON.
struct WantedOutput {
  std::uint16_t place = 0;
  bool is_binary = true;
};

struct Caller;
class Mailbox;
class Model;

// How an answer is written.
enum class Encoding : std::uint8_t { kHttp, kGrpc, kGrpcStream };

// Views into its bytes are offsets, so that it can be moved.
struct InferRequest : Waiting {
  std::shared_ptr<const Model> model;
  // Where its answer goes, and the connection that it came by.
  std::shared_ptr<Mailbox> mailbox;
  std::uint64_t ticket = 0;
  // The call within the connection, where there may be several at a time; or 0.
  std::int32_t stream = 0;
  // Which of the call's requests it is.
  std::uint32_t number = 0;
  Encoding encoding = Encoding::kHttp;
  // Head and body, as they came.
  std::string bytes;
  // Values that were made of the request's text.
  std::string made;
  // In the order of the model's raw inputs.
  std::vector<ColumnPart> columns;
  // Whether a column has one row for all rows of the request, which so has to be a batch of its own.
  bool has_one_row = false;
  std::vector<WantedOutput> outputs;
  // Its own id, else that of its head.
  std::string id;
  // The id in its head, and what that says of its trace.
  Span header_id, traceparent;
  // For whoever observes requests, else 0 and empty: when it was put into its queue, and its client.
  std::int64_t queued_ns = 0;
  std::string address;
  // Who asks, and was counted; null where callers need not be known.
  std::shared_ptr<const Caller> caller;

  std::string_view text(const Span& span) const { return {data(span), span.size}; }
  const char* data(const Span& span) const { return (span.is_made ? made : bytes).data() + span.offset; }
};

}  // namespace emberline::front
