#include "http_request.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>

#include "json_scan.h"

namespace emberline::front {

namespace {

constexpr std::size_t kLongestId = 1024, kLongestKey = 1024;
// A longer text would delay other connections, which wait while it is read.
constexpr std::size_t kMostJsonBytes = 1 << 20;
// The Python path refuses longer texts with more marks; see serving/protocol/json_text.py.
constexpr std::size_t kShortJsonBytes = 64 << 10;
constexpr std::ptrdiff_t kMostMarks = 200'000;
// Made values begin at a multiple of this.
constexpr std::size_t kAlignment = 8;

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

// Reads an array of `count` elements.
template <class Read>
bool read_elements(JsonScan& scan, std::int64_t count, const Read& read) {
  if (!scan.take('[')) return false;
  for (std::int64_t i = 0; i < count; ++i) {
    if ((i != 0 && !scan.take(',')) || !read()) return false;
  }
  return scan.take(']');
}

// Sets a value that must not be there yet: a key that comes twice is for a full parser.
template <class T>
bool set_once(std::optional<T>& place, std::optional<T> value) {
  if (place || !value) return false;
  place = std::move(value);
  return true;
}

// Reads a number as a value of T, as the Python path does: a decimal number by way of a double.
template <class T>
std::optional<T> read_value(JsonScan& scan) {
  if constexpr (std::is_same_v<T, char>) {
    const auto value = scan.boolean();
    return value ? std::optional<char>(*value) : std::nullopt;
  } else if constexpr (std::is_integral_v<T>) {
    return scan.whole<T>();
  } else {
    const auto value = scan.decimal();
    if (!value || std::abs(*value) > static_cast<double>(std::numeric_limits<T>::max())) return std::nullopt;
    return static_cast<T>(*value);
  }
}

// Reads `rows` * `width` values into `out`, from one array or from an array of rows.
template <class T>
bool read_values(JsonScan& scan, bool is_nested, std::int64_t rows, std::int64_t width, char* out) {
  const auto read = [&] {
    const std::optional<T> value = read_value<T>(scan);
    if (value) std::memcpy(out, &*value, sizeof(T));
    out += sizeof(T);
    return value.has_value();
  };
  if (!is_nested) return read_elements(scan, rows * width, read);
  return read_elements(scan, rows, [&] { return read_elements(scan, width, read); });
}

class Reader {
 public:
  Reader(const Route& route, InferRequest& request, std::string_view json, std::size_t tail)
      : route_(route), request_(request), scan_(json), tail_(tail) {}

  bool read(std::string_view routing_key);

 private:
  bool read_parameters();
  bool read_routing_key();
  bool read_tensor(Tensor& tensor);
  bool read_shape(Tensor& tensor);
  bool read_data(Tensor& tensor);
  bool read_output();
  bool choose_outputs();

  const Route& route_;
  InferRequest& request_;
  JsonScan scan_;
  // Where the bytes of the next tensor are.
  std::size_t tail_;
  std::vector<Tensor> tensors_;
  std::vector<std::pair<std::string_view, std::optional<bool>>> outputs_;
  std::optional<bool> all_binary_;
  std::optional<std::int64_t> priority_, timeout_us_;
  std::optional<std::string> routing_key_;
};

bool Reader::read(std::string_view routing_key) {
  std::optional<std::string_view> id;
  std::optional<bool> has_inputs, has_outputs, has_parameters;
  const bool is_read = read_object(scan_, [&](std::string_view key) {
    if (key == "id") return set_once(id, scan_.string());
    if (key == "inputs") {
      tensors_.reserve(route_.main->max_tensors());
      return set_once<bool>(has_inputs, true) &&
             read_array(scan_, [&] { return read_tensor(tensors_.emplace_back()); });
    }
    if (key == "outputs") {
      return set_once<bool>(has_outputs, true) && read_array(scan_, [&] { return read_output(); });
    }
    return key == "parameters" && set_once<bool>(has_parameters, true) && read_parameters();
  });
  if (!is_read || !scan_.is_end() || !has_inputs || (id && id->size() > kLongestId)) return false;
  if (tail_ != request_.bytes.size()) return false;
  if (id) request_.id = *id;
  route_.choose(request_, routing_key_ ? *routing_key_ : routing_key);
  return request_.model->place(request_, tensors_) && choose_outputs() &&
         request_.model->schedule(request_, priority_.value_or(0), timeout_us_.value_or(0));
}

bool Reader::read_parameters() {
  return read_object(scan_, [&](std::string_view name) {
    if (name == "binary_data_output") return set_once(all_binary_, scan_.boolean());
    if (name == "priority") return set_once(priority_, scan_.number());
    if (name == "routing_key") return read_routing_key();
    return name == "timeout" && set_once(timeout_us_, scan_.number());
  });
}

// Reads a string, or a whole number that stands for its digits.
bool Reader::read_routing_key() {
  if (routing_key_) return false;
  if (scan_.sees('"')) {
    const auto text = scan_.string();
    if (text) routing_key_ = *text;
  } else {
    const auto number = scan_.number();
    if (number) routing_key_ = std::to_string(*number);
  }
  return routing_key_ && routing_key_->size() <= kLongestKey;
}

bool Reader::read_tensor(Tensor& tensor) {
  std::optional<std::string_view> name, dtype;
  std::optional<std::int64_t> size;
  bool has_data = false, has_parameters = false;
  const bool is_read = read_object(scan_, [&](std::string_view key) {
    if (key == "name") return set_once(name, scan_.string());
    if (key == "datatype") {
      if (!set_once(dtype, scan_.string())) return false;
      tensor.dtype = wire_of(*dtype);
      return tensor.dtype != kNoWire && tensor.dtype != kStrings;
    }
    if (key == "shape") return read_shape(tensor);
    if (key == "data") return !std::exchange(has_data, true) && read_data(tensor);
    return key == "parameters" && !std::exchange(has_parameters, true) &&
           read_object(scan_, [&](std::string_view parameter) {
             return parameter == "binary_data_size" && set_once(size, scan_.number());
           });
  });
  if (!is_read || !name || !dtype || tensor.rank == 0 || has_data == size.has_value()) return false;
  tensor.name = *name;
  if (has_data) return true;
  const auto bytes = static_cast<std::size_t>(*size);
  if (bytes > request_.bytes.size() - tail_) return false;
  tensor.values = {tail_, bytes, false};
  tail_ += bytes;
  return true;
}

bool Reader::read_shape(Tensor& tensor) {
  return tensor.rank == 0 && read_array(scan_, [&] {
           const auto found = scan_.number();
           if (!found || tensor.rank == 2) return false;
           tensor.shape[tensor.rank++] = *found;
           return true;
         });
}

// Reads values; dtype and shape have to come before them.
bool Reader::read_data(Tensor& tensor) {
  if (tensor.dtype == kNoWire || tensor.rank == 0 || !scan_.sees('[')) return false;
  const std::int64_t rows = tensor.shape[0], width = tensor.shape[1];
  // Each value and each row takes a byte of the text at least, so that it bounds what is allocated.
  const auto most = static_cast<std::int64_t>(scan_.left());
  if (rows > most || width > most || rows * width > most) return false;
  JsonScan inside = scan_;
  inside.take('[');
  const bool is_nested = tensor.rank == 2 && inside.sees('[');
  std::string& made = request_.made;
  const std::size_t at = (made.size() + kAlignment - 1) / kAlignment * kAlignment;
  const std::size_t size = static_cast<std::size_t>(rows * width * kWireBytes[tensor.dtype]);
  made.resize(at + size);
  tensor.values = {at, size, true};
  char* out = made.data() + at;
  switch (tensor.dtype) {
    case kInt64: return read_values<std::int64_t>(scan_, is_nested, rows, width, out);
    case kInt32: return read_values<std::int32_t>(scan_, is_nested, rows, width, out);
    case kUint64: return read_values<std::uint64_t>(scan_, is_nested, rows, width, out);
    case kFp32: return read_values<float>(scan_, is_nested, rows, width, out);
    case kFp64: return read_values<double>(scan_, is_nested, rows, width, out);
    case kBool: return read_values<char>(scan_, is_nested, rows, width, out);
    default: return false;
  }
}

bool Reader::read_output() {
  std::optional<std::string_view> name;
  std::optional<bool> binary;
  bool has_parameters = false;
  const bool is_read = read_object(scan_, [&](std::string_view key) {
    if (key == "name") return set_once(name, scan_.string());
    return key == "parameters" && !std::exchange(has_parameters, true) &&
           read_object(scan_, [&](std::string_view parameter) {
             return parameter == "binary_data" && set_once(binary, scan_.boolean());
           });
  });
  if (!is_read || !name) return false;
  outputs_.emplace_back(*name, binary);
  return true;
}

bool Reader::choose_outputs() {
  const bool all_binary = all_binary_.value_or(false);
  if (outputs_.empty()) return request_.model->add_outputs(request_, all_binary);
  return std::all_of(outputs_.begin(), outputs_.end(), [&](const auto& output) {
    return request_.model->add_output(request_, output.first, output.second.value_or(all_binary));
  });
}

bool has_too_many_marks(std::string_view text) {
  if (text.size() <= kShortJsonBytes) return false;
  return std::count_if(text.begin(), text.end(), [](char byte) {
           return byte == ',' || byte == '[' || byte == '{' || byte == ':' || byte == '"';
         }) > kMostMarks;
}

}  // namespace

bool read_http_request(const Route& route, InferRequest& request, std::size_t body, std::int64_t json_length,
                       std::string_view routing_key) {
  const auto size = static_cast<std::size_t>(json_length);
  const std::string_view json = std::string_view(request.bytes).substr(body, size);
  if (json.size() > kMostJsonBytes || has_too_many_marks(json)) return false;
  return Reader(route, request, json, body + size).read(routing_key);
}

}  // namespace emberline::front
