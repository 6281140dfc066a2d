// What the front knows of a model: how to read its plain requests, and how to write their answers.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "queue.h"

namespace emberline::front {

// dtypes of the wire that are read here; their numbers are those of kWireNames.
constexpr std::string_view kWireNames[] = {"INT64", "INT32", "UINT64", "FP32", "FP64"};
constexpr std::int64_t kWireBytes[] = {8, 4, 8, 4, 8};

struct ModelInput {
  std::string name;
  // Its position among the model's raw inputs.
  std::uint16_t place = 0;
  // Bit n: takes tensors of dtype n.
  std::uint8_t takes = 0;
  std::int64_t width = 1;
  bool is_required = true;
};

struct ModelOutput {
  std::string name;
  // JSON before and after the number of rows, and the end after the number of bytes.
  std::string before_rows, after_rows;
  std::int64_t row_bytes = 0;
  std::string dtype;
  // The shape of one row.
  std::vector<std::int64_t> dims;
};

// One column of a request: an array of rows * width values.
struct ColumnPart {
  std::uint16_t place = 0;
  std::uint8_t dtype = 0;
  std::size_t offset = 0;
  std::size_t size = 0;
};

// An input's tensor as a request describes it.
struct TensorPart {
  // Its position among those that requests may hold.
  std::size_t input = 0;
  std::uint8_t dtype = 0;
  std::int64_t rows = 0;
  // Its bytes among those of the request.
  std::size_t offset = 0;
  std::size_t size = 0;
};

class Mailbox;
class Model;

// How an answer is written.
enum class Encoding : std::uint8_t { kHttp, kGrpc, kGrpcStream };

// A request that was read here, with its bytes. Views into them are offsets, so that it can be moved.
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
  std::vector<ColumnPart> columns;
  // Positions of the outputs that were asked for.
  std::vector<std::uint16_t> outputs;
  std::string id;
};

// The queues that requests of a model go to, replaced as a whole when sessions are started or ended.
struct Queues {
  std::vector<std::shared_ptr<Queue>> all;
};

// What the answers of a batch have in common: version and parameters, for each encoding.
struct AnswerHead {
  // The version as JSON, and the parameters as JSON.
  std::string version, parameters;
  // The version as it is, and the parameters as fields of a ModelInferResponse.
  std::string plain_version, parameter_fields;
};

// Immutable but for its queues. Thread-safe.
class Model {
 public:
  // key: names the model for Python. inputs: those that requests may hold here, each of one plain tensor.
  // model_json: the name as a JSON string.
  // timeout_ns: the most that a request may wait, 0 for no limit. delays: such a request is delayed instead.
  Model(std::int64_t key, std::vector<ModelInput> inputs, std::vector<ModelOutput> outputs, std::int64_t max_rows,
        std::string name, std::string model_json, std::size_t level, std::int64_t timeout_ns, bool delays);

  // Reads the body of an HTTP request, whose bytes and arrival are set; false for one that is not plain.
  bool read(InferRequest& request, std::size_t body, std::int64_t json_length) const;
  // Bytes of an answer without its head, at most.
  std::size_t answer_bytes(const InferRequest& request) const;
  // Appends the whole HTTP response to a request.
  // outputs: the first byte of each output's rows of this request.
  void write(std::string& out, const InferRequest& request, const std::vector<const char*>& outputs,
             const AnswerHead& head, std::string_view date, bool closes) const;

  // For requests of any encoding.

  // Describes a tensor of one plain value a row and column; false where it is not what the input takes.
  bool describe(TensorPart& tensor, std::string_view name, std::string_view dtype,
                const std::vector<std::int64_t>& shape, std::int64_t size) const;
  // Adds an output that is asked for; false where there is none of that name, or it was asked for already.
  bool ask_for(InferRequest& request, std::string_view output) const;
  // Makes columns of the tensors, and completes the request, whose arrival is set; false where they are not those of
  // one request.
  bool complete(InferRequest& request, const std::vector<TensorPart>& tensors) const;

  void set_queues(std::shared_ptr<const Queues> queues);
  std::shared_ptr<const Queues> queues() const;
  std::int64_t key() const { return key_; }
  std::size_t most_inputs() const { return inputs_.size(); }
  const std::string& name() const { return name_; }
  const std::vector<ModelOutput>& outputs() const { return outputs_; }

 private:
  bool read_inputs(class JsonScan& scan, std::vector<TensorPart>& tensors) const;
  bool read_tensor(JsonScan& scan, TensorPart& tensor) const;
  bool read_outputs(JsonScan& scan, InferRequest& request, bool& needs_all_binary) const;

  const std::int64_t key_;
  const std::vector<ModelInput> inputs_;
  const std::vector<ModelOutput> outputs_;
  const std::int64_t max_rows_;
  const std::string name_, model_json_;
  const std::size_t level_;
  const std::int64_t timeout_ns_;
  const bool delays_;
  std::size_t required_ = 0;
  std::unordered_map<std::string_view, std::size_t> input_places_, output_places_;
  mutable std::mutex mutex_;
  std::shared_ptr<const Queues> queues_;
};

}  // namespace emberline::front
