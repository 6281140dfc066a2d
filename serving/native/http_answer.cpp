// Writes the answers of a model as HTTP responses.
#include <cstring>

#include "model.h"
#include "number_text.h"

namespace emberline::front {

namespace {

template <class T>
void append_values(std::string& out, const char* values, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i, values += sizeof(T)) {
    T value{};
    std::memcpy(&value, values, sizeof value);
    if (i != 0) out += ',';
    append_number(out, value);
  }
}

void append_bools(std::string& out, const char* values, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    if (i != 0) out += ',';
    out += values[i] != 0 ? "true" : "false";
  }
}

void append_data(std::string& out, std::uint8_t dtype, const char* values, std::int64_t bytes) {
  const std::int64_t count = bytes / kWireBytes[dtype];
  switch (dtype) {
    case kInt64: append_values<std::int64_t>(out, values, count); break;
    case kInt32: append_values<std::int32_t>(out, values, count); break;
    case kUint64: append_values<std::uint64_t>(out, values, count); break;
    case kFp32: append_values<float>(out, values, count); break;
    case kFp64: append_values<double>(out, values, count); break;
    case kBool: append_bools(out, values, count); break;
    default: break;  // such outputs are sent as bytes only
  }
}

}  // namespace

std::size_t Model::answer_bytes(const InferRequest& request) const {
  std::size_t bytes = 512 + name_json_.size() + request.id.size();
  for (const WantedOutput& wanted : request.outputs) {
    const ModelOutput& entry = outputs_[wanted.place];
    const std::int64_t size = entry.row_bytes * request.rows;
    bytes += 64 + entry.before_rows.size() + entry.after_rows.size();
    if (wanted.is_binary) {
      bytes += static_cast<std::size_t>(size);
    } else {
      bytes += static_cast<std::size_t>(size / kWireBytes[entry.json_dtype]) * (kLongestNumberText + 1);
    }
  }
  return bytes;
}

void Model::write(std::string& out, const InferRequest& request, const std::vector<const char*>& outputs,
                  const AnswerHead& head, std::string_view date, bool closes) const {
  std::string json;
  json.reserve(answer_bytes(request));
  json += '{';
  if (!request.id.empty()) json.append("\"id\":\"").append(request.id).append("\",");
  json.append("\"model_name\":").append(name_json_).append(",\"model_version\":").append(head.version);
  json.append(",\"parameters\":").append(head.parameters).append(",\"outputs\":[");
  std::int64_t bytes = 0;
  bool has_bytes = false;
  for (const WantedOutput& wanted : request.outputs) {
    const ModelOutput& entry = outputs_[wanted.place];
    const std::int64_t size = entry.row_bytes * request.rows;
    if (&wanted != &request.outputs.front()) json += ',';
    json += entry.before_rows;
    append_number(json, request.rows);
    json += entry.after_rows;
    if (wanted.is_binary) {
      json += ",\"parameters\":{\"binary_data_size\":";
      append_number(json, size);
      json += "}}";
      bytes += size;
      has_bytes = true;
    } else {
      json += ",\"data\":[";
      append_data(json, entry.json_dtype, outputs[wanted.place], size);
      json += "]}";
    }
  }
  json += "]}";
  const auto json_size = static_cast<std::int64_t>(json.size());
  out.reserve(out.size() + json.size() + static_cast<std::size_t>(bytes) + 256 + request.header_id.size);
  out.append("HTTP/1.1 200 OK\r\n").append(date).append("content-length: ");
  append_number(out, json_size + bytes);
  if (has_bytes) {
    out.append("\r\ncontent-type: application/octet-stream\r\ninference-header-content-length: ");
    append_number(out, json_size);
  } else {
    out.append("\r\ncontent-type: application/json");
  }
  if (request.header_id.size != 0) out.append("\r\nx-request-id: ").append(request.text(request.header_id));
  out.append(closes ? "\r\nconnection: close\r\n\r\n" : "\r\n\r\n").append(json);
  for (const WantedOutput& wanted : request.outputs) {
    if (!wanted.is_binary) continue;
    out.append(outputs[wanted.place], static_cast<std::size_t>(outputs_[wanted.place].row_bytes * request.rows));
  }
}

}  // namespace emberline::front
