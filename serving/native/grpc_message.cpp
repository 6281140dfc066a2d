#include "grpc_message.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace emberline::front {

namespace {

constexpr std::size_t kLongestId = 1024, kLongestKey = 1024;
constexpr std::size_t kMostDims = 8;
// The parameter triton_final_response of an answer in a stream: a map's entry with a bool_param of true.
constexpr std::string_view kFinalResponse("\x22\x1b\x0a\x15triton_final_response\x12\x02\x08\x01", 29);

// Reads fields of a message. Whatever it does not take leaves it broken.
class FieldScan {
 public:
  explicit FieldScan(std::string_view bytes) : at_(bytes.data()), end_(bytes.data() + bytes.size()) {}

  bool is_end() const { return at_ == end_; }

  std::optional<std::uint64_t> varint() {
    std::uint64_t value = 0;
    for (int shift = 0; shift < 63 && at_ < end_; shift += 7) {
      const auto byte = static_cast<unsigned char>(*at_++);
      value |= static_cast<std::uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) return value;
    }
    return std::nullopt;  // it ends within, or is negative
  }

  std::optional<std::string_view> bytes() {
    const auto size = varint();
    if (!size || *size > static_cast<std::uint64_t>(end_ - at_)) return std::nullopt;
    const std::string_view found(at_, static_cast<std::size_t>(*size));
    at_ += *size;
    return found;
  }

 private:
  const char* at_;
  const char* end_;
};

// A text that every reader takes as the same one.
bool is_plain(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char byte) { return byte >= 0x20 && byte < 0x7f; });
}

// Takes a string field, which must be plain and not have come before.
bool take_text(FieldScan& scan, std::string_view& place) {
  const auto text = scan.bytes();
  if (!text || !place.empty() || !is_plain(*text)) return false;
  place = *text;
  return true;
}

constexpr std::uint64_t field(int number, int wire) { return static_cast<std::uint64_t>(number) << 3 | wire; }
constexpr int kVarint = 0, kBytes = 2;

std::size_t varint_bytes(std::uint64_t value) {
  std::size_t size = 1;
  for (; value >= 0x80; value >>= 7) ++size;
  return size;
}

void append_varint(std::string& out, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
  out += static_cast<char>(value);
}

void append_field(std::string& out, int number, std::string_view bytes) {
  append_varint(out, field(number, kBytes));
  append_varint(out, bytes.size());
  out.append(bytes);
}

std::string_view packed_shape(std::string& packed, std::int64_t rows, const std::vector<std::int64_t>& dims) {
  packed.clear();
  append_varint(packed, static_cast<std::uint64_t>(rows));
  for (const std::int64_t size : dims) append_varint(packed, static_cast<std::uint64_t>(size));
  return packed;
}

// gRPC's prefix of a message: not compressed, and its length.
void append_prefix(std::string& out, std::size_t size) {
  const std::array<char, 5> prefix = {0, static_cast<char>(size >> 24), static_cast<char>(size >> 16),
                                      static_cast<char>(size >> 8), static_cast<char>(size)};
  out.append(prefix.data(), prefix.size());
}

}  // namespace

std::optional<InferMessage> InferMessage::read(std::string_view bytes) {
  InferMessage message;
  message.begin_ = bytes.data();
  FieldScan scan(bytes);
  while (!scan.is_end()) {
    const auto tag = scan.varint();
    if (!tag) return std::nullopt;
    bool is_taken = false;
    switch (*tag) {
      case field(1, kBytes): is_taken = take_text(scan, message.name_); break;
      case field(2, kBytes): is_taken = take_text(scan, message.version_); break;
      case field(3, kBytes): is_taken = take_text(scan, message.id_) && message.id_.size() <= kLongestId; break;
      case field(4, kBytes): {
        const auto parameter = scan.bytes();
        is_taken = parameter && message.read_parameter(*parameter);
        break;
      }
      case field(5, kBytes): {
        const auto input = scan.bytes();
        is_taken = input && read_input(*input, message.inputs_.emplace_back());
        break;
      }
      case field(6, kBytes): {
        const auto output = scan.bytes();
        is_taken = output && read_output(*output, message.outputs_.emplace_back());
        break;
      }
      case field(7, kBytes): {
        const auto content = scan.bytes();
        is_taken = content.has_value();
        if (is_taken) message.contents_.push_back(*content);
        break;
      }
      default: break;
    }
    if (!is_taken) return std::nullopt;
  }
  if (message.contents_.size() != message.inputs_.size()) return std::nullopt;
  // A name with a slash would be the path of another model.
  if (message.name_.find('/') != message.name_.npos || message.version_.find('/') != message.version_.npos) {
    return std::nullopt;
  }
  return message;
}

bool InferMessage::read_input(std::string_view bytes, Input& input) {
  FieldScan scan(bytes);
  const auto add = [&](std::optional<std::uint64_t> size) {
    if (!size || input.shape.size() == kMostDims) return false;
    input.shape.push_back(static_cast<std::int64_t>(*size));
    return true;
  };
  while (!scan.is_end()) {
    const auto tag = scan.varint();
    if (!tag) return false;
    bool is_taken = false;
    if (*tag == field(1, kBytes)) is_taken = take_text(scan, input.name);
    if (*tag == field(2, kBytes)) is_taken = take_text(scan, input.dtype);
    if (*tag == field(3, kVarint)) is_taken = add(scan.varint());
    if (*tag == field(3, kBytes)) {
      const auto packed = scan.bytes();
      FieldScan sizes(packed.value_or(""));
      is_taken = packed.has_value();
      while (is_taken && !sizes.is_end()) is_taken = add(sizes.varint());
    }
    if (!is_taken) return false;
  }
  return true;
}

bool InferMessage::read_output(std::string_view bytes, std::string_view& name) {
  FieldScan scan(bytes);
  while (!scan.is_end()) {
    if (scan.varint() != field(1, kBytes) || !take_text(scan, name)) return false;
  }
  return !name.empty();
}

// Reads an entry of the map of parameters: a name, and a value of one kind.
bool InferMessage::read_parameter(std::string_view bytes) {
  FieldScan scan(bytes);
  std::string_view name, value;
  if (scan.varint() != field(1, kBytes) || !take_text(scan, name)) return false;
  if (scan.varint() != field(2, kBytes)) return false;
  value = scan.bytes().value_or("");
  if (value.empty() || !scan.is_end()) return false;
  FieldScan kind(value);
  const auto tag = kind.varint();
  std::optional<std::int64_t> number;
  std::string_view text;
  if (tag == field(1, kVarint)) {
    // Triton's own load generator and clients send it; every answer here is its request's last one.
    return name == "triton_enable_empty_final_response" && kind.varint().has_value() && kind.is_end();
  }
  if (tag == field(2, kVarint) || tag == field(5, kVarint)) {
    const auto found = kind.varint();
    if (!found) return false;
    number = static_cast<std::int64_t>(*found);
  } else if (tag != field(3, kBytes) || !take_text(kind, text)) {
    return false;
  }
  if (!kind.is_end()) return false;
  const auto set = [&](std::optional<std::int64_t>& place) {
    const bool is_new = number && !place;
    if (is_new) place = number;
    return is_new;
  };
  if (name == "priority") return set(priority_);
  if (name == "timeout") return set(timeout_us_);
  if (name != "routing_key" || routing_key_ || text.size() > kLongestKey) return false;
  routing_key_ = number ? std::to_string(*number) : std::string(text);
  return true;
}

std::string InferMessage::path() const {
  std::string path("/v2/models/");
  path.append(name_);
  if (!version_.empty()) path.append("/versions/").append(version_);
  return path.append("/infer");
}

bool InferMessage::fill(const Route& route, InferRequest& request, std::size_t at) const {
  route.choose(request, routing_key_.value_or(""));
  const Model& model = *request.model;
  if (inputs_.size() > model.max_tensors()) return false;
  std::vector<Tensor> tensors(inputs_.size());
  for (std::size_t i = 0; i < inputs_.size(); ++i) {
    const Input& input = inputs_[i];
    Tensor& tensor = tensors[i];
    if (input.shape.empty() || input.shape.size() > std::size(tensor.shape)) return false;
    tensor.name = input.name;
    tensor.dtype = wire_of(input.dtype);
    tensor.rank = static_cast<int>(input.shape.size());
    std::copy(input.shape.begin(), input.shape.end(), tensor.shape);
    tensor.values = {at + static_cast<std::size_t>(contents_[i].data() - begin_), contents_[i].size(), false};
  }
  request.id = id_;
  const auto add = [&](std::string_view output) { return model.add_output(request, output, true); };
  return model.place(request, tensors) &&
         (outputs_.empty() ? model.add_outputs(request, true) : std::all_of(outputs_.begin(), outputs_.end(), add)) &&
         model.schedule(request, priority_.value_or(0), timeout_us_.value_or(0));
}

void write_message(std::string& out, const InferRequest& request, const std::vector<const char*>& outputs,
                   const AnswerHead& head) {
  const Model& model = *request.model;
  const bool in_stream = request.encoding == Encoding::kGrpcStream;
  std::string message;
  message.reserve(model.answer_bytes(request));
  append_field(message, 1, model.name());
  append_field(message, 2, head.plain_version);
  if (!request.id.empty()) append_field(message, 3, request.id);
  message.append(head.parameter_fields);
  if (in_stream) message.append(kFinalResponse);
  std::string shape, tensor;
  for (const WantedOutput& wanted : request.outputs) {
    const ModelOutput& output = model.outputs()[wanted.place];
    tensor.clear();
    append_field(tensor, 1, output.name);
    append_field(tensor, 2, output.dtype);
    append_field(tensor, 3, packed_shape(shape, request.rows, output.dims));
    append_field(message, 5, tensor);
  }
  for (const WantedOutput& wanted : request.outputs) {
    const auto size = static_cast<std::size_t>(model.outputs()[wanted.place].row_bytes * request.rows);
    append_field(message, 6, std::string_view(outputs[wanted.place], size));
  }
  out.reserve(out.size() + message.size() + 32);
  if (in_stream) {
    append_prefix(out, 1 + varint_bytes(message.size()) + message.size());
    append_field(out, 2, message);
  } else {
    append_prefix(out, message.size());
    out.append(message);
  }
}

std::string error_message(const std::string& id, std::string_view text) {
  std::string message, response, out;
  append_field(message, 1, text);
  if (!id.empty()) append_field(response, 3, id);
  append_field(message, 2, response);
  append_prefix(out, message.size());
  return out.append(message);
}

}  // namespace emberline::front
