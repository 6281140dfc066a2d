// What the front knows of a model: which requests it takes, and how to write their answers.
//
// A request is read by the reader of its protocol (http_request.h), which has the model check and place what it finds.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "infer_request.h"
#include "queue.h"

namespace emberline::front {

struct ModelInput {
  std::string name;
  // Its position among the model's raw inputs.
  std::uint16_t place = 0;
  // Bit n: takes tensors of dtype n.
  std::uint8_t takes = 0;
  // Values of a row; of a list, the most.
  std::int64_t width = 1;
  bool is_required = true;
  bool is_list = false;
  // Whether one row may stand for all rows of a request.
  bool is_user = false;
  // Whether NAME.valid may say which values, or lists, are there.
  bool has_valid = false;
};

struct ModelOutput {
  std::string name;
  // JSON before and after the number of rows, of the output's name, dtype and shape.
  std::string before_rows, after_rows;
  std::int64_t row_bytes = 0;
  // The dtype as which it is written as JSON; kNoWire for one that is sent as bytes only.
  std::uint8_t json_dtype = kNoWire;
  std::string dtype;
  // The shape of one row.
  std::vector<std::int64_t> dims;
};

// How long requests of a priority level may wait, 0 for no limit; they are delayed instead of refused where it delays.
struct ModelLevel {
  std::int64_t timeout_ns = 0;
  bool delays = false;
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
  // The name of the snapshot, such as 3.17, for whoever observes requests.
  std::string snapshot = {};
};

// Immutable but for its queues and its canary. Thread-safe.
class Model {
 public:
  // key: names the model for Python. inputs: those that requests may hold here. name_json: its name as a JSON string.
  // levels: at least one. default_level: the position of the level of requests without a priority.
  Model(std::int64_t key, std::vector<ModelInput> inputs, std::vector<ModelOutput> outputs, std::int64_t max_rows,
        std::string name, std::string name_json, std::vector<ModelLevel> levels, std::size_t default_level);

  // Checks the tensors of a request, whose bytes are set, and places them into its columns. False for a request that is
  // not a plain one, or is wrong.
  bool place(InferRequest& request, const std::vector<Tensor>& tensors) const;
  // The most tensors that a request may have.
  std::size_t max_tensors() const { return max_tensors_; }
  // Adds an output that is asked for; false for one that is unknown, asked for twice or has no form in JSON.
  bool add_output(InferRequest& request, std::string_view name, bool is_binary) const;
  // Asks for all outputs.
  bool add_outputs(InferRequest& request, bool is_binary) const;
  // Sets when a request, whose arrival is set, is due. priority: 1 is the first, 0 the default. timeout_us: 0 for no
  // limit of its own. False for a timeout that is too long to count.
  bool schedule(InferRequest& request, std::int64_t priority, std::int64_t timeout_us) const;

  // Bytes of an answer without its head, at most.
  std::size_t answer_bytes(const InferRequest& request) const;
  // Appends the whole HTTP response to a request. outputs: the first byte of each output's rows of this request.
  void write(std::string& out, const InferRequest& request, const std::vector<const char*>& outputs,
             const AnswerHead& head, std::string_view date, bool closes) const;

  void set_queues(std::shared_ptr<const Queues> queues);
  std::shared_ptr<const Queues> queues() const;
  // Has a canary answer this share of the requests; 0 for none.
  void set_canary_share(double share) { canary_share_.store(share, std::memory_order_relaxed); }
  double canary_share() const { return canary_share_.load(std::memory_order_relaxed); }
  std::int64_t key() const { return key_; }
  const std::string& name() const { return name_; }
  const std::vector<ModelOutput>& outputs() const { return outputs_; }

 private:
  // What a tensor is of its input.
  enum class Role : std::uint8_t { kValues, kLengths, kValid };
  struct Wanted {
    std::uint16_t input = 0;
    Role role = Role::kValues;
  };
  struct NameHash {
    using is_transparent = void;
    std::size_t operator()(std::string_view name) const { return std::hash<std::string_view>()(name); }
  };
  bool add_values(InferRequest& request, std::uint16_t input, const Tensor& tensor) const;
  bool add_companion(InferRequest& request, Wanted wanted, const Tensor& tensor) const;
  bool find_rows(InferRequest& request) const;

  const std::int64_t key_;
  const std::vector<ModelInput> inputs_;
  const std::vector<ModelOutput> outputs_;
  const std::int64_t max_rows_;
  const std::string name_, name_json_;
  const std::vector<ModelLevel> levels_;
  const std::size_t default_level_;
  std::size_t required_ = 0, max_tensors_ = 0;
  std::unordered_map<std::string, Wanted, NameHash, std::equal_to<>> tensors_;
  std::unordered_map<std::string_view, std::uint16_t> output_places_;
  std::atomic<double> canary_share_{0.0};
  mutable std::mutex mutex_;
  std::shared_ptr<const Queues> queues_;
};

}  // namespace emberline::front
