#include "model.h"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <utility>

#include "json_scan.h"

namespace emberline::front {

namespace {

constexpr std::size_t kLongestId = 1024;
constexpr std::size_t kMostDims = 2;

void append_number(std::string& out, std::int64_t value) {
  char digits[24];
  const auto end = std::to_chars(digits, digits + sizeof digits, value).ptr;
  out.append(digits, end);
}

// Reads an object; `read` takes the value of each key and returns whether it could.
template <class Read>
bool read_object(JsonScan& scan, const Read& read) {
  if (!scan.take('{')) return false;
  if (scan.take('}')) return true;
  do {
    const auto key = scan.string();
    if (!key || !scan.take(':') || !read(*key)) return false;
  } while (scan.take(','));
  return scan.take('}');
}

template <class Read>
bool read_array(JsonScan& scan, const Read& read) {
  if (!scan.take('[')) return false;
  if (scan.take(']')) return true;
  do {
    if (!read()) return false;
  } while (scan.take(','));
  return scan.take(']');
}

// Sets a value that must not be there yet: a key that comes twice is for a full parser.
template <class T>
bool set_once(std::optional<T>& place, std::optional<T> value) {
  if (place || !value) return false;
  place = std::move(value);
  return true;
}

}  // namespace

Model::Model(std::int64_t key, std::vector<ModelInput> inputs, std::vector<ModelOutput> outputs, std::int64_t max_rows,
             std::string name, std::string model_json, std::size_t level, std::int64_t timeout_ns, bool delays)
    : key_(key),
      inputs_(std::move(inputs)),
      outputs_(std::move(outputs)),
      max_rows_(max_rows),
      name_(std::move(name)),
      model_json_(std::move(model_json)),
      level_(level),
      timeout_ns_(timeout_ns),
      delays_(delays),
      queues_(std::make_shared<Queues>()) {
  for (std::size_t i = 0; i < inputs_.size(); ++i) {
    input_places_.emplace(inputs_[i].name, i);
    required_ += inputs_[i].is_required;
  }
  for (std::size_t i = 0; i < outputs_.size(); ++i) output_places_.emplace(outputs_[i].name, i);
}

void Model::set_queues(std::shared_ptr<const Queues> queues) {
  const std::lock_guard lock(mutex_);
  queues_ = std::move(queues);
}

std::shared_ptr<const Queues> Model::queues() const {
  const std::lock_guard lock(mutex_);
  return queues_;
}

bool Model::read(InferRequest& request, std::size_t body, std::int64_t json_length) const {
  JsonScan scan(std::string_view(request.bytes).substr(body, static_cast<std::size_t>(json_length)));
  std::optional<std::string_view> id;
  std::optional<bool> has_inputs, has_outputs, has_parameters;
  bool all_binary = false, needs_all_binary = false;
  std::vector<TensorPart> tensors;
  const bool is_read = read_object(scan, [&](std::string_view key) {
    if (key == "id") return set_once(id, scan.string());
    if (key == "inputs") return set_once<bool>(has_inputs, true) && read_inputs(scan, tensors);
    if (key == "outputs") {
      return set_once<bool>(has_outputs, true) && read_outputs(scan, request, needs_all_binary);
    }
    if (key != "parameters" || !set_once<bool>(has_parameters, true)) return false;
    std::optional<bool> binary;
    const bool is_plain = read_object(
        scan, [&](std::string_view name) { return name == "binary_data_output" && set_once(binary, scan.boolean()); });
    all_binary = binary.value_or(false);
    return is_plain;
  });
  if (!is_read || !scan.is_end() || !has_inputs || (id && id->size() > kLongestId)) return false;
  if ((request.outputs.empty() || needs_all_binary) && !all_binary) return false;
  if (id) request.id = *id;
  // The tensors' bytes follow the JSON in the same order.
  std::size_t at = body + static_cast<std::size_t>(json_length);
  for (TensorPart& tensor : tensors) {
    tensor.offset = at;
    at += tensor.size;
  }
  return at == request.bytes.size() && complete(request, tensors);
}

bool Model::read_inputs(JsonScan& scan, std::vector<TensorPart>& tensors) const {
  tensors.reserve(inputs_.size());
  return read_array(scan, [&] {
    if (tensors.size() == inputs_.size()) return false;
    return read_tensor(scan, tensors.emplace_back());
  });
}

bool Model::read_tensor(JsonScan& scan, TensorPart& tensor) const {
  std::optional<std::string_view> name, dtype;
  std::optional<std::int64_t> size;
  std::optional<bool> has_shape;
  std::vector<std::int64_t> shape;
  const bool is_read = read_object(scan, [&](std::string_view key) {
    if (key == "name") return set_once(name, scan.string());
    if (key == "datatype") return set_once(dtype, scan.string());
    if (key == "shape") {
      return set_once<bool>(has_shape, true) && read_array(scan, [&] {
               const auto found = scan.number();
               if (!found || shape.size() == kMostDims) return false;
               shape.push_back(*found);
               return true;
             });
    }
    return key == "parameters" && !size && read_object(scan, [&](std::string_view parameter) {
             return parameter == "binary_data_size" && set_once(size, scan.number());
           });
  });
  return is_read && name && dtype && size && describe(tensor, *name, *dtype, shape, *size);
}

bool Model::read_outputs(JsonScan& scan, InferRequest& request, bool& needs_all_binary) const {
  return read_array(scan, [&] {
    std::optional<std::string_view> name;
    std::optional<bool> binary;
    const bool is_read = read_object(scan, [&](std::string_view key) {
      if (key == "name") return set_once(name, scan.string());
      return key == "parameters" && read_object(scan, [&](std::string_view parameter) {
               return parameter == "binary_data" && set_once(binary, scan.boolean());
             });
    });
    if (!is_read || !name || !binary.value_or(true)) return false;
    needs_all_binary = needs_all_binary || !binary;
    return ask_for(request, *name);
  });
}

bool Model::describe(TensorPart& tensor, std::string_view name, std::string_view dtype,
                     const std::vector<std::int64_t>& shape, std::int64_t size) const {
  const auto place = input_places_.find(name);
  if (place == input_places_.end() || shape.empty() || shape.size() > kMostDims) return false;
  const ModelInput& input = inputs_[place->second];
  const auto* const wire = std::find(std::begin(kWireNames), std::end(kWireNames), dtype);
  if (wire == std::end(kWireNames)) return false;
  tensor.input = place->second;
  tensor.dtype = static_cast<std::uint8_t>(wire - std::begin(kWireNames));
  const std::int64_t width = shape.size() == 1 ? 1 : shape[1];
  if ((input.takes >> tensor.dtype & 1) == 0 || width != input.width) return false;
  tensor.rows = shape[0];
  if (tensor.rows < 1 || tensor.rows > max_rows_) return false;
  tensor.size = static_cast<std::size_t>(tensor.rows * width * kWireBytes[tensor.dtype]);
  return size >= 0 && static_cast<std::size_t>(size) == tensor.size;
}

bool Model::ask_for(InferRequest& request, std::string_view output) const {
  const auto place = output_places_.find(output);
  if (place == output_places_.end()) return false;
  const auto position = static_cast<std::uint16_t>(place->second);
  if (std::find(request.outputs.begin(), request.outputs.end(), position) != request.outputs.end()) return false;
  request.outputs.push_back(position);
  return true;
}

bool Model::complete(InferRequest& request, const std::vector<TensorPart>& tensors) const {
  if (tensors.empty()) return false;
  request.rows = tensors.front().rows;
  std::size_t required = 0;
  request.columns.reserve(tensors.size());
  for (const TensorPart& tensor : tensors) {
    if (tensor.rows != request.rows) return false;
    request.columns.push_back({inputs_[tensor.input].place, tensor.dtype, tensor.offset, tensor.size});
    required += inputs_[tensor.input].is_required;
  }
  if (required != required_) return false;
  const auto before = [](const ColumnPart& a, const ColumnPart& b) { return a.place < b.place; };
  if (!std::is_sorted(request.columns.begin(), request.columns.end(), before)) {
    std::sort(request.columns.begin(), request.columns.end(), before);
  }
  const auto same = [](const ColumnPart& a, const ColumnPart& b) { return a.place == b.place; };
  if (std::adjacent_find(request.columns.begin(), request.columns.end(), same) != request.columns.end()) return false;
  if (request.outputs.empty()) {
    for (std::size_t i = 0; i < outputs_.size(); ++i) request.outputs.push_back(static_cast<std::uint16_t>(i));
  }
  request.level = level_;
  if (timeout_ns_ != 0) (delays_ ? request.delay_at_ns : request.deadline_ns) = request.arrived_ns + timeout_ns_;
  return true;
}

std::size_t Model::answer_bytes(const InferRequest& request) const {
  std::size_t bytes = 512 + model_json_.size() + request.id.size();
  for (const std::uint16_t output : request.outputs) {
    const ModelOutput& entry = outputs_[output];
    bytes += 64 + entry.before_rows.size() + entry.after_rows.size();
    bytes += static_cast<std::size_t>(entry.row_bytes * request.rows);
  }
  return bytes;
}

void Model::write(std::string& out, const InferRequest& request, const std::vector<const char*>& outputs,
                  const AnswerHead& head, std::string_view date, bool closes) const {
  std::string json;
  json.reserve(answer_bytes(request));
  json += '{';
  if (!request.id.empty()) json.append("\"id\":\"").append(request.id).append("\",");
  json.append("\"model_name\":").append(model_json_).append(",\"model_version\":").append(head.version);
  json.append(",\"parameters\":").append(head.parameters).append(",\"outputs\":[");
  std::int64_t bytes = 0;
  for (const std::uint16_t output : request.outputs) {
    const ModelOutput& entry = outputs_[output];
    if (output != request.outputs.front()) json += ',';
    json += entry.before_rows;
    append_number(json, request.rows);
    json += entry.after_rows;
    append_number(json, entry.row_bytes * request.rows);
    json += "}}";
    bytes += entry.row_bytes * request.rows;
  }
  json += "]}";
  out.reserve(out.size() + json.size() + static_cast<std::size_t>(bytes) + 256);
  out.append("HTTP/1.1 200 OK\r\n").append(date).append("content-length: ");
  append_number(out, static_cast<std::int64_t>(json.size()) + bytes);
  out.append("\r\ncontent-type: application/octet-stream\r\ninference-header-content-length: ");
  append_number(out, static_cast<std::int64_t>(json.size()));
  out.append(closes ? "\r\nconnection: close\r\n\r\n" : "\r\n\r\n").append(json);
  for (const std::uint16_t output : request.outputs) {
    out.append(outputs[output], static_cast<std::size_t>(outputs_[output].row_bytes * request.rows));
  }
}

}  // namespace emberline::front
