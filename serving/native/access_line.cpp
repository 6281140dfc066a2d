// Writes lines of the access log: JSON, or words with an equals sign between name and value.
#include <array>
#include <ctime>

#include "number_text.h"
#include "observer.h"

namespace emberline::front {

namespace {

constexpr char kHex[] = "0123456789abcdef";

// Texts are valid UTF-8, and may come from anywhere: what could end a line, or a string, is escaped.
bool is_plain(char byte) {
  const auto value = static_cast<unsigned char>(byte);
  return value >= 0x20 && value != 0x7f && byte != '"' && byte != '\\';
}

class LineWriter {
 public:
  LineWriter(std::string& out, bool is_json) : out_(out), is_json_(is_json) {}

  void text(std::string_view name, std::string_view value) {
    if (value.empty()) return;
    begin(name);
    bool is_quoted = is_json_;
    for (const char byte : value) is_quoted = is_quoted || !is_plain(byte) || byte == ' ' || byte == '=';
    if (is_quoted) out_ += '"';
    for (const char byte : value) {
      if (is_plain(byte)) {
        out_ += byte;
      } else if (byte == '"' || byte == '\\') {
        out_ += '\\';
        out_ += byte;
      } else {
        out_.append("\\u00");
        out_ += kHex[static_cast<unsigned char>(byte) >> 4];
        out_ += kHex[static_cast<unsigned char>(byte) & 15];
      }
    }
    if (is_quoted) out_ += '"';
  }

  void number(std::string_view name, std::int64_t value) {
    begin(name);
    append_number(out_, value);
  }

  // A time in milliseconds, with three decimals.
  void ms(std::string_view name, std::int64_t ns) {
    begin(name);
    const std::int64_t us = ns < 0 ? 0 : ns / 1000;
    append_number(out_, us / 1000);
    const std::int64_t rest = us % 1000;
    const std::array<char, 4> digits = {'.', static_cast<char>('0' + rest / 100),
                                        static_cast<char>('0' + rest / 10 % 10), static_cast<char>('0' + rest % 10)};
    out_.append(digits.data(), digits.size());
  }

  void end() { out_.append(is_json_ ? "}\n" : "\n"); }

 private:
  void begin(std::string_view name) {
    if (is_json_) {
      out_.append(is_first_ ? "{\"" : ",\"").append(name).append("\":");
    } else {
      if (!is_first_) out_ += ' ';
      out_.append(name) += '=';
    }
    is_first_ = false;
  }

  std::string& out_;
  const bool is_json_;
  bool is_first_ = true;
};

void append_digits(std::string& out, int value, int digits) {
  int scale = 1;
  for (int i = 1; i < digits; ++i) scale *= 10;
  for (; scale > 0; scale /= 10) out += static_cast<char>('0' + value / scale % 10);
}

// The present time in UTC, such as 2026-11-28T09:30:00.123456Z.
std::string time_text() {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  thread_local std::time_t known = -1;
  thread_local std::string second;
  if (now.tv_sec != known) {
    std::tm parts{};
    ::gmtime_r(&now.tv_sec, &parts);
    second.clear();
    append_digits(second, parts.tm_year + 1900, 4);
    const int rest[] = {parts.tm_mon + 1, parts.tm_mday, parts.tm_hour, parts.tm_min, parts.tm_sec};
    for (std::size_t i = 0; i < std::size(rest); ++i) {
      second += "--T::"[i];
      append_digits(second, rest[i], 2);
    }
    known = now.tv_sec;
  }
  std::string text = second + '.';
  append_digits(text, static_cast<int>(now.tv_nsec / 1000), 6);
  return text + 'Z';
}

void append_stages(LineWriter& line, const RequestNote& note, const BatchStages& stages) {
  line.ms("queue_ms", stages.taken_ns - (note.queued_ns != 0 ? note.queued_ns : note.arrived_ns));
  line.ms("join_ms", stages.begun_ns - stages.taken_ns);
  line.ms("features_ms", stages.features_ns - stages.begun_ns);
  if (stages.lookup_ns != 0) {
    line.ms("lookup_ms", stages.lookup_ns - stages.features_ns);
    if (stages.read_ns != 0) line.ms("ssd_ms", stages.read_ns);
    line.ms("graph_ms", stages.graph_ns - stages.lookup_ns);
  } else {
    line.ms("infer_ms", stages.graph_ns - stages.features_ns);
  }
  line.ms("encode_ms", note.ended_ns - stages.graph_ns);
  line.number("batch_rows", stages.rows);
}

}  // namespace

void append_line(std::string& out, const RequestNote& note, std::string_view trace_id, bool is_json) {
  LineWriter line(out, is_json);
  line.text("time", time_text());
  line.text("logger", "emberline.access");
  line.text("transport", note.is_grpc ? "grpc" : "http");
  line.text("address", note.address);
  line.text("principal", note.principal);
  line.text("call", note.call);
  line.text("model", note.model);
  line.text("version", note.version);
  line.text("snapshot", note.snapshot);
  line.text("id", note.id);
  if (note.header_id != note.id) line.text("x_request_id", note.header_id);
  line.text("trace_id", trace_id);
  line.number("status", note.status);
  if (note.rows != 0) line.number("rows", note.rows);
  line.number("request_bytes", note.request_bytes);
  line.number("response_bytes", note.response_bytes);
  line.ms("ms", note.ended_ns - note.arrived_ns);
  if (note.stages != nullptr) append_stages(line, note, *note.stages);
  line.text("error", note.error);
  line.end();
}

}  // namespace emberline::front
