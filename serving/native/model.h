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
};

// One column of a request: an array of rows * width values.
struct ColumnPart {
  std::uint16_t place = 0;
  std::uint8_t dtype = 0;
  std::size_t offset = 0;
  std::size_t size = 0;
};

class Mailbox;
class Model;

// A request that was read here, with its bytes. Views into them are offsets, so that it can be moved.
struct InferRequest : Waiting {
  std::shared_ptr<const Model> model;
  // Where its answer goes, and the connection that it came by.
  std::shared_ptr<Mailbox> mailbox;
  std::uint64_t ticket = 0;
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

// Immutable but for its queues. Thread-safe.
class Model {
 public:
  // key: names the model for Python. inputs: those that requests may hold here, each of one plain tensor.
  // model_json: the model's name as a JSON string.
  // timeout_ns: the most that a request may wait, 0 for no limit. delays: such a request is delayed instead.
  Model(std::int64_t key, std::vector<ModelInput> inputs, std::vector<ModelOutput> outputs, std::int64_t max_rows,
        std::string model_json, std::size_t level, std::int64_t timeout_ns, bool delays);

  // Reads the body of a request, whose bytes, ticket and arrival are set; false for one that is not plain.
  bool read(InferRequest& request, std::size_t body, std::int64_t json_length) const;
  // Bytes of an answer without its head, at most.
  std::size_t answer_bytes(const InferRequest& request) const;
  // Appends the whole response to a request.
  // outputs: the first byte of each output's rows of this request. version: as a JSON string. parameters: as JSON.
  void write(std::string& out, const InferRequest& request, const std::vector<const char*>& outputs,
             std::string_view version, std::string_view parameters, std::string_view date, bool closes) const;

  void set_queues(std::shared_ptr<const Queues> queues);
  std::shared_ptr<const Queues> queues() const;
  std::int64_t key() const { return key_; }
  const std::vector<ModelOutput>& outputs() const { return outputs_; }

 private:
  struct Tensor;
  bool read_inputs(class JsonScan& scan, std::vector<Tensor>& tensors) const;
  bool read_tensor(JsonScan& scan, Tensor& tensor) const;
  bool read_outputs(JsonScan& scan, InferRequest& request, bool& needs_all_binary) const;
  bool place_tensors(InferRequest& request, const std::vector<Tensor>& tensors, std::size_t at) const;

  const std::int64_t key_;
  const std::vector<ModelInput> inputs_;
  const std::vector<ModelOutput> outputs_;
  const std::int64_t max_rows_;
  const std::string model_json_;
  const std::size_t level_;
  const std::int64_t timeout_ns_;
  const bool delays_;
  std::size_t required_ = 0;
  std::unordered_map<std::string_view, std::size_t> input_places_, output_places_;
  mutable std::mutex mutex_;
  std::shared_ptr<const Queues> queues_;
};

}  // namespace emberline::front
