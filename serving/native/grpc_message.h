// Reads plain ModelInferRequests of KServe's v2 protocol, and writes their answers.
//
// As with JSON, a message is recognised and not judged: one with a field that is not plain, good or bad, is for
// protobuf's own parser on the Python path.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "route.h"

namespace emberline::front {

// gRPC's prefix of a message: whether it is compressed, and its length.
constexpr std::size_t kPrefixBytes = 5;

// A ModelInferRequest whose tensors are in raw_input_contents. Views the bytes that it was read from.
class InferMessage {
 public:
  // Returns nothing for a message that is not plain.
  static std::optional<InferMessage> read(std::string_view bytes);

  // The path by which the model that it asks is known; see Routes.
  std::string path() const;
  // Chooses the model that answers a request, whose bytes and arrival are set, and completes it. Returns false where
  // the message is not plain for the model. at: where the message begins in the request's bytes.
  bool fill(const Route& route, InferRequest& request, std::size_t at) const;

 private:
  struct Input {
    std::string_view name, dtype;
    std::vector<std::int64_t> shape;
  };
  static bool read_input(std::string_view bytes, Input& input);
  static bool read_output(std::string_view bytes, std::string_view& name);
  bool read_parameter(std::string_view bytes);

  const char* begin_ = nullptr;
  std::string_view name_, version_, id_;
  std::vector<Input> inputs_;
  std::vector<std::string_view> outputs_, contents_;
  std::optional<std::int64_t> priority_, timeout_us_;
  std::optional<std::string> routing_key_;
};

// Appends the answer to a request as a message of gRPC, with its prefix.
// outputs: the first byte of each output's rows of this request.
void write_message(std::string& out, const InferRequest& request, const std::vector<const char*>& outputs,
                   const AnswerHead& head);

// A message of a stream that says why its request was not answered, with its prefix.
std::string error_message(const std::string& id, std::string_view text);

}  // namespace emberline::front
