// What a client of HTTP sends to a world's server, and reads from it.
#pragma once

#include <poll.h>

#include "http_server.h"
#include "world.h"

namespace emberline::front {

using HttpWorld = World<HttpServer>;

inline std::string request(std::int64_t rows, const std::string& beside = "", std::int64_t value = 7) {
  const std::string json = R"({"inputs":[{"name":"a","shape":[)" + std::to_string(rows) +
                           R"(],"datatype":"INT64","parameters":{"binary_data_size":)" + std::to_string(rows * 8) +
                           R"(}}],"parameters":{"binary_data_output":true}})";
  std::string tail;
  for (std::int64_t i = 0; i < rows; ++i) tail.append(reinterpret_cast<const char*>(&value), sizeof value);
  return "POST " + kPath + " HTTP/1.1\r\nHost: a\r\n" + beside +
         "Content-Length: " + std::to_string(json.size() + tail.size()) +
         "\r\nInference-Header-Content-Length: " + std::to_string(json.size()) + "\r\n\r\n" + json + tail;
}

inline void send_all(int end, const std::string& bytes) {
  std::size_t sent = 0;
  while (sent < bytes.size()) {
    const ssize_t did = ::send(end, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
    if (did <= 0) return;
    sent += static_cast<std::size_t>(did);
  }
}

// Reads until `count` responses have come, the end, or five seconds without a byte.
inline std::string read_responses(int end, int count) {
  std::string got;
  const auto complete = [&] {
    int found = 0;
    std::size_t at = 0;
    while (true) {
      const std::size_t head = got.find("\r\n\r\n", at);
      if (head == std::string::npos) return found;
      const std::size_t length = got.find("content-length: ", at);
      const std::size_t next = head + 4 + std::stoul(got.substr(length + 16));
      if (next > got.size()) return found;
      ++found;
      at = next;
    }
  };
  char piece[4096];
  pollfd ready{end, POLLIN, 0};
  while (complete() < count && ::poll(&ready, 1, 5000) == 1) {
    const ssize_t size = ::recv(end, piece, sizeof piece, 0);
    if (size <= 0) break;
    got.append(piece, static_cast<std::size_t>(size));
  }
  return got;
}

}  // namespace emberline::front
