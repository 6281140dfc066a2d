// Fuzzes the native HTTP server: what reads requests alone, and a whole server with several clients.
//
//     front_http_fuzz readers INPUTS SEED            heads and bodies, against a slow and obvious reader of each
//     front_http_fuzz server INPUTS SEED CLIENTS     one connection an input, behind plain requests whose answers count
//
// An input is a plain request with some changes, and the same for the same seed and number. To be run under the address
// and the thread sanitizer (make fuzz). Exit code 0 without a finding.
#include <algorithm>
#include <array>
#include <atomic>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <random>
#include <set>

#include "http_client.h"
#include "http_head.h"
#include "http_request.h"

using namespace emberline::front;

namespace {

using Random = std::mt19937_64;

std::atomic<int> findings{0};

std::string printable(const std::string& bytes) {
  std::string out;
  for (const char byte : bytes.substr(0, 2000)) {
    char text[8];
    const auto value = static_cast<unsigned char>(byte);
    std::snprintf(text, sizeof text, value >= 0x20 && value < 0x7f ? "%c" : "\\x%02x", value);
    out += text;
  }
  return out;
}

void find(const char* what, std::uint64_t number, const std::string& input) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  ++findings;
  std::printf("FINDING in input %llu: %s\n  %s\n", static_cast<unsigned long long>(number), what,
              printable(input).c_str());
}

// The inputs.

const std::vector<std::string>& tokens() {
  static const std::vector<std::string> all = {
      "\r\n",
      "\n",
      "\r",
      "\r\n\r\n",
      std::string(1, '\0'),
      " ",
      "\t",
      ":",
      ",",
      ";",
      "\x80",
      "\xff",
      "\x7f",
      "\x0b",
      "Transfer-Encoding: chunked\r\n",
      "Transfer-Encoding : chunked\r\n",
      "transfer-encoding: identity\r\n",
      "Content-Length: 0\r\n",
      "content-length: 7\r\n",
      "Host: b\r\n",
      "Connection: close\r\n",
      "Connection: keep-alive\r\n",
      "Expect: 100-continue\r\n",
      "Upgrade: h2c\r\n",
      "Content-Encoding: gzip\r\n",
      "Accept-Encoding: gzip\r\n",
      "Authorization: x\r\n",
      "Inference-Header-Content-Length: 3\r\n",
      "Proxy-Connection: close\r\n",
      " folded\r\n",
      "HTTP/1.0",
      "HTTP/1.1",
      "0\r\n\r\n",
      "5\r\n",
      "POST ",
      "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
      "/infer",
      "/versions/1",
      "?a",
      "#",
      "%2f",
      "..",
      "{",
      "}",
      "[",
      "]",
      "\"",
      "\\",
      "\\u0000",
      "true",
      "false",
      "null",
      "1e9",
      "-1",
      "0",
      "00",
      "18446744073709551616",
      "9223372036854775807",
      "\"id\":\"",
      "\"name\":\"a\",",
      "\"shape\":[1],",
      "\"binary_data_size\":8",
      "\"outputs\":[{\"name\":\"s\"}],",
      "\"datatype\":\"INT64\"",
      "\"INT32\"",
      "\"parameters\":{",
  };
  return all;
}

std::string change(std::string text, Random& random) {
  static const std::string kSeeds[] = {request(1), request(3, "X: y\r\n"), request(16, "connection: Keep-Alive\r\n"),
                                       request(2, "Accept: */*\r\nTransfer-Encoding: chunked\r\n")};
  const auto below = [&](std::size_t bound) { return static_cast<std::size_t>(random() % bound); };
  for (std::size_t left = 1 + below(4); left > 0; --left) {
    if (text.empty()) text = "x";
    // Half of the changes are in the head.
    const std::size_t head = text.find("\r\n\r\n");
    const std::size_t range = head != std::string::npos && below(2) == 0 ? head + 4 : text.size();
    const std::size_t at = below(range), size = std::min(text.size() - at, 1 + below(16));
    switch (below(9)) {
      case 0: text[at] = static_cast<char>(text[at] ^ (1 << below(8))); break;
      case 1: text[at] = static_cast<char>(below(256)); break;
      case 2: text.erase(at, size); break;
      case 3: text.insert(at, text.substr(at, size)); break;
      case 4: text.resize(at); break;
      case 5: {
        const std::string& other = kSeeds[below(4)];
        text.insert(at, other.substr(below(other.size()), below(80)));
        break;
      }
      case 6: {  // a line of the head
        std::size_t line = text.find("\r\n", at);
        line = line == std::string::npos ? at : line + 2;
        text.insert(line, tokens()[14 + below(16)]);
        break;
      }
      case 7: {  // a number
        const std::size_t digit = text.find_first_of("0123456789", at);
        if (digit != std::string::npos) text[digit] = static_cast<char>('0' + below(10));
        break;
      }
      default: text.insert(at, tokens()[below(tokens().size())]);
    }
  }
  if (below(50) == 0) text.insert(below(text.size() + 1), std::string(below(70'000), 'a'));
  return text;
}

std::string input(std::uint64_t seed, std::uint64_t number, Random& random) {
  random.seed(seed << 32 ^ number);
  const std::int64_t rows = 1 + static_cast<std::int64_t>(random() % 16);
  const std::string text = request(rows, random() % 4 == 0 ? "X-Id: 5\r\nAccept: */*\r\n" : "");
  return random() % 32 == 0 ? text : change(text, random);
}

// The slow and obvious readers.

bool is_one_of(char byte, const char* all) { return byte != '\0' && std::strchr(all, byte) != nullptr; }

bool is_alphanumeric(char byte) { return std::isalnum(static_cast<unsigned char>(byte)) != 0 && (byte & 0x80) == 0; }

std::string lower(std::string text) {
  for (char& byte : text) byte = static_cast<char>(std::tolower(static_cast<unsigned char>(byte)));
  return text;
}

bool are_digits(const std::string& text) {
  return !text.empty() && text.size() <= 18 && text.find_first_not_of("0123456789") == std::string::npos;
}

std::vector<std::string> split(const std::string& text, const std::string& mark) {
  std::vector<std::string> parts;
  std::size_t at = 0;
  for (std::size_t end = 0; (end = text.find(mark, at)) != std::string::npos; at = end + mark.size()) {
    parts.push_back(text.substr(at, end - at));
  }
  parts.push_back(text.substr(at));
  return parts;
}

bool is_plain_path(const std::string& path) {
  const std::vector<std::string> parts = split(path, "/");  // "", v2, models, NAME, [versions, NUMBER,] infer
  if (parts.size() != 5 && parts.size() != 7) return false;
  if (!parts[0].empty() || parts[1] != "v2" || parts[2] != "models" || parts.back() != "infer") return false;
  if (parts[3].empty()) return false;
  for (const char byte : parts[3]) {
    if (!is_alphanumeric(byte) && !is_one_of(byte, "._-")) return false;
  }
  return parts.size() == 5 || (parts[4] == "versions" && are_digits(parts[5]));
}

bool is_plain_host(const std::string& host) {
  const std::vector<std::string> parts = split(host, ":");
  if (host.empty() || parts.size() > 2) return false;
  for (const char byte : parts[0]) {
    if (!is_alphanumeric(byte) && !is_one_of(byte, "._-")) return false;
  }
  return parts.size() == 1 || parts[1].empty() || are_digits(parts[1]);
}

// Fills `head` if the bytes begin with the head of a plain request.
bool read_slowly(const std::string& bytes, std::int64_t& content_length, std::int64_t& json_length, std::string& path,
                 std::string& routing_key) {
  const std::size_t end = bytes.find("\r\n\r\n");
  if (end == std::string::npos || end > 16384) return false;
  std::vector<std::string> lines = split(bytes.substr(0, end), "\r\n");
  const std::string first = lines.front();
  if (first.size() < 14 || first.substr(0, 5) != "POST " || first.substr(first.size() - 9) != " HTTP/1.1") return false;
  path = first.substr(5, first.size() - 14);
  if (!is_plain_path(path) || lines.size() > 129) return false;
  std::multiset<std::string> names;
  std::string values[3];
  for (std::size_t i = 1; i < lines.size(); ++i) {
    const std::size_t colon = lines[i].find(':');
    if (colon == std::string::npos || colon == 0) return false;
    const std::string name = lower(lines[i].substr(0, colon));
    std::string value = lines[i].substr(colon + 1);
    value.erase(0, std::min(value.find_first_not_of(" \t"), value.size()));
    value.erase(value.find_last_not_of(" \t") + 1);
    for (const char byte : name) {
      if (!is_alphanumeric(byte) && !is_one_of(byte, "!#$%&'*+-.^_`|~")) return false;
    }
    for (const char byte : value) {
      if (byte != '\t' && (static_cast<unsigned char>(byte) < 0x20 || static_cast<unsigned char>(byte) > 0x7e))
        return false;
    }
    for (const char* never :
         {"te", "expect", "upgrade", "trailer", "content-encoding", "transfer-encoding", "proxy-connection"}) {
      if (name == never) return false;
    }
    if (name == "authorization" && names.count(name) != 0) return false;
    if (name == "connection" && lower(value) != "keep-alive") return false;
    if (name == "emberline-routing-key") {
      if (names.count(name) != 0 || value.size() > 1024) return false;
      routing_key = value;
    } else if (name != "emberline-affinity" && name.substr(0, 9) == "emberline") {
      return false;
    }
    if (name == "host") values[0] = value;
    if (name == "content-length") values[1] = value;
    if (name == "inference-header-content-length") values[2] = value;
    names.insert(name);
  }
  if (names.count("host") != 1 || names.count("content-length") != 1) return false;
  if (names.count("inference-header-content-length") > 1) return false;
  if (names.count("inference-header-content-length") == 0) values[2] = values[1];
  if (!is_plain_host(values[0]) || !are_digits(values[1]) || !are_digits(values[2])) return false;
  content_length = std::stoll(values[1]);
  json_length = std::stoll(values[2]);
  return json_length > 0 && json_length <= content_length;
}

// Whether all of the text is one JSON value of RFC 8259. Returns the end of a value, or npos.
std::size_t json_end(const std::string& text, std::size_t at, int depth) {
  const auto space = [&](std::size_t from) {
    while (from < text.size() && is_one_of(text[from], " \t\r\n")) ++from;
    return from;
  };
  const auto string_end = [&](std::size_t from) {
    if (from >= text.size() || text[from] != '"') return std::string::npos;
    for (++from; from < text.size() && static_cast<unsigned char>(text[from]) >= 0x20; ++from) {
      if (text[from] == '"') return from + 1;
      if (text[from] == '\\') ++from;
    }
    return std::string::npos;
  };
  at = space(at);
  if (at >= text.size() || depth > 20) return std::string::npos;
  if (text[at] == '"') return string_end(at);
  for (const char* word : {"true", "false", "null"}) {
    if (text.compare(at, std::strlen(word), word) == 0) return at + std::strlen(word);
  }
  if (text[at] == '{' || text[at] == '[') {
    const char close = text[at] == '{' ? '}' : ']';
    std::size_t next = space(at + 1);
    if (next < text.size() && text[next] == close) return next + 1;
    while (true) {
      if (close == '}') {
        next = string_end(space(next));
        if (next == std::string::npos) return next;
        next = space(next);
        if (next >= text.size() || text[next++] != ':') return std::string::npos;
      }
      next = json_end(text, next, depth + 1);
      if (next == std::string::npos) return next;
      next = space(next);
      if (next >= text.size()) return std::string::npos;
      if (text[next] == close) return next + 1;
      if (text[next++] != ',') return std::string::npos;
    }
  }
  char* end = nullptr;
  if (!is_one_of(text[at], "-0123456789")) return std::string::npos;
  std::strtod(text.c_str() + at, &end);
  return static_cast<std::size_t>(end - text.c_str());
}

bool is_json(const std::string& text) {
  std::size_t end = json_end(text, 0, 0);
  while (end < text.size() && is_one_of(text[end], " \t\r\n")) ++end;
  return end == text.size();
}

// Returns what is wrong with how an input is read; null for nothing.
const char* read_one(const std::string& bytes, const Route& route, std::int64_t& heads, std::int64_t& bodies) {
  InferHead head;
  std::int64_t content_length = 0, json_length = 0;
  std::string path, routing_key;
  const HeadState state = read_head(bytes, head);
  if ((state == HeadState::kInference) != read_slowly(bytes, content_length, json_length, path, routing_key)) {
    return "only one of the readers takes the head";
  }
  if (state == HeadState::kIncomplete && bytes.find("\r\n\r\n") != std::string::npos) return "a head that never ends";
  if (state != HeadState::kInference) return nullptr;
  ++heads;
  if (head.path != path || head.routing_key != routing_key || head.content_length != content_length ||
      head.json_length != json_length || head.size != bytes.find("\r\n\r\n") + 4) {
    return "the readers read different heads";
  }
  for (std::size_t size : {head.size - 1, head.size / 2, std::size_t{1}}) {
    InferHead part;
    // A copy of its own, so that the address sanitizer sees a read behind its end.
    if (read_head(std::string(bytes, 0, size), part) != HeadState::kIncomplete) return "a part of a head is no part";
  }
  if (static_cast<std::size_t>(content_length) > bytes.size() - head.size) return nullptr;
  InferRequest request;
  request.bytes = std::string(bytes, 0, head.size + static_cast<std::size_t>(content_length));
  if (!read_http_request(route, request, head.size, json_length, head.routing_key)) return nullptr;
  ++bodies;
  if (!is_json(bytes.substr(head.size, static_cast<std::size_t>(json_length)))) return "JSON that is none";
  for (const ColumnPart& column : request.columns) {
    for (const Span& span : {column.values, column.lengths, column.valid}) {
      const std::string& place = span.is_made ? request.made : request.bytes;
      if (span.offset + span.size > place.size()) return "a column behind the end";
    }
  }
  return nullptr;
}

void fuzz_readers(std::uint64_t inputs, std::uint64_t seed) {
  const auto model = std::make_shared<Model>(1, std::vector<ModelInput>{{"a", 0, 1, 1}},
                                             std::vector<ModelOutput>{{"s", "", "", 4, kFp32, "FP32", {1}}}, 16, "m",
                                             "\"m\"", std::vector<ModelLevel>{{0, false}}, std::size_t{0});
  const Route route{model, nullptr};
  Random random;
  std::int64_t heads = 0, bodies = 0;
  for (std::uint64_t number = 0; number < inputs && findings < 10; ++number) {
    const std::string bytes = input(seed, number, random);
    if (const char* what = read_one(bytes, route, heads, bodies)) find(what, number, bytes);
  }
  std::printf("readers: %llu inputs of seed %llu, %lld heads and %lld bodies were plain, %d findings\n",
              static_cast<unsigned long long>(inputs), static_cast<unsigned long long>(seed),
              static_cast<long long>(heads), static_cast<long long>(bodies), findings.load());
}

// The server.

// Stands in for the Python path: ends a connection, answers and ends it, or answers and gives it back.
void adopt_all(const HttpWorld& world, const std::atomic<bool>& is_over, std::uint64_t seed,
               std::atomic<long>& adopted) {
  Random random(seed);
  pollfd ready{world.wake(), POLLIN, 0};
  while (!is_over) {
    if (::poll(&ready, 1, 50) != 1) continue;
    std::uint64_t value = 0;
    [[maybe_unused]] const ssize_t got = ::read(world.wake(), &value, sizeof value);
    world.server->take_missed();
    for (HandedOver& each : world.server->take_handed_over()) {
      ++adopted;
      if (each.bytes.empty()) find("a connection was handed over without bytes", 0, "");
      const std::uint64_t choice = random() % 4;
      if (choice != 0) send_all(each.descriptor, "HTTP/1.1 299 Taken\r\ncontent-length: 0\r\n\r\n");
      ::close(each.descriptor);
      if (choice < 3 || !each.may_return) {
        world.server->closed(each.ticket);
      } else {
        world.server->give_back(each.ticket, choice % 2 == 0 ? request(1) : "POST /v2/mod");
      }
    }
    if (random() % 8 == 0) world.routes->set(kPath + std::to_string(random() % 4), world.route);
  }
}

void send_in_pieces(int end, const std::string& bytes, Random& random) {
  const std::size_t pieces = random() % 4 == 0 ? 1 + random() % 6 : 1;
  const std::size_t size = bytes.size() / pieces + 1;
  for (std::size_t at = 0; at < bytes.size(); at += size) send_all(end, bytes.substr(at, size));
}

bool ends_within_ten_seconds(int end) {
  char piece[65536];
  pollfd ready{end, POLLIN, 0};
  while (::poll(&ready, 1, 10'000) == 1) {
    if (::recv(end, piece, sizeof piece, 0) <= 0) return true;
  }
  return false;
}

void send_inputs(const HttpWorld& world, std::uint64_t first, std::uint64_t last, std::uint64_t seed) {
  Random random;
  for (std::uint64_t number = first; number < last && findings < 10; ++number) {
    const std::string bytes = input(seed, number, random);
    const int ahead = static_cast<int>(random() % 3);
    const auto value = static_cast<std::int64_t>(random() % 1000);
    std::string all;
    for (int i = 0; i < ahead; ++i) all += request(1 + i, "", value + i);
    const int end = world.connect();
    send_in_pieces(end, all + bytes, random);
    if (random() % 8 != 0) {  // else it goes without reading
      const std::string got = read_responses(end, ahead);
      std::size_t at = 0;
      for (int i = 0; i < ahead; ++i) {
        const std::size_t head = got.find("\r\n\r\n", at) + 4;
        if (got.compare(at, 16, "HTTP/1.1 200 OK\r") != 0) {
          find("a plain request in front of it was not answered", number, got.substr(std::min(at, got.size())) + bytes);
          break;
        }
        at = head + std::stoul(got.substr(got.find("content-length: ", at) + 16));
        float score = -1;
        std::memcpy(&score, got.data() + at - sizeof score, sizeof score);
        if (score != static_cast<float>(value + i)) find("a wrong answer", number, bytes);
      }
      ::shutdown(end, SHUT_WR);
      if (!ends_within_ten_seconds(end)) find("a connection that does not end", number, bytes);
    }
    ::close(end);
  }
}

void fuzz_server(std::uint64_t inputs, std::uint64_t seed, std::uint64_t clients) {
  ServerOptions wide = options();
  wide.body_timeout_ns = 20'000'000'000;
  wide.connections_per_address = 1000;
  wide.max_connections = 1000;
  std::atomic<bool> is_over{false};
  std::atomic<long> adopted{0};
  // Connections of a Unix socket leave no ports behind.
  char folder[] = "/tmp/emberline-fuzz-XXXXXX";
  if (::mkdtemp(folder) == nullptr) std::abort();
  const std::string path = std::string(folder) + "/socket";
  const HttpWorld world({.server = wide, .local = path});
  std::thread adopting([&] { adopt_all(world, is_over, seed, adopted); });
  std::vector<std::thread> threads;
  for (std::uint64_t i = 0; i < clients; ++i) {
    threads.emplace_back([&, i] { send_inputs(world, inputs * i / clients, inputs * (i + 1) / clients, seed); });
  }
  for (std::thread& each : threads) each.join();
  bool is_quiet = false;
  for (int i = 0; i < 10'000 && !is_quiet; ++i) {
    is_quiet = world.server->connections() == 0 && world.server->in_flight() == 0;
    ::usleep(1000);
  }
  if (!is_quiet) find("connections or requests are left", inputs, "");
  is_over = true;
  adopting.join();
  ::unlink(path.c_str());
  ::rmdir(folder);
  std::printf(
      "server: %llu inputs of seed %llu by %llu clients, %lld requests answered, %ld connections adopted, "
      "%d findings\n",
      static_cast<unsigned long long>(inputs), static_cast<unsigned long long>(seed),
      static_cast<unsigned long long>(clients), static_cast<long long>(world.server->answered()), adopted.load(),
      findings.load());
}

}  // namespace

int main(int count, char** arguments) {
  const std::string what = count > 1 ? arguments[1] : "";
  const auto number = [&](int place, std::uint64_t usual) {
    return count > place ? std::strtoull(arguments[place], nullptr, 10) : usual;
  };
  if (what == "readers") {
    fuzz_readers(number(2, 20'000), number(3, 1));
  } else if (what == "server") {
    fuzz_server(number(2, 2'000), number(3, 1), number(4, 3));
  } else {
    std::fprintf(stderr, "usage: front_http_fuzz readers|server [INPUTS [SEED [CLIENTS]]]\n");
    return 2;
  }
  return findings == 0 && check::failures() == 0 ? 0 : 1;
}
