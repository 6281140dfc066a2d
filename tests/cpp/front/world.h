// A native server with real sockets, a model, and a session that answers from its queue.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "http_server.h"

namespace front_world {

using namespace emberline::front;

inline const std::string kPath = "/v2/models/m/infer";

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

inline ServerOptions options() {
  ServerOptions made;
  made.max_body_bytes = 1 << 20;
  made.max_inflight_bytes = 1 << 22;
  made.max_connections = 100;
  made.connections_per_address = 100;
  made.last_descriptor = 1 << 20;
  made.body_timeout_ns = 300'000'000;
  made.keep_alive_ns = 60'000'000'000;
  made.linger_ns = 200'000'000;
  made.overloaded_status = "HTTP/1.1 503 Service Unavailable\r\n";
  made.late_status = "HTTP/1.1 400 Bad Request\r\n";
  made.expired_status = "HTTP/1.1 504 Gateway Timeout\r\n";
  made.late = "late";
  made.expired = "expired";
  made.too_many_bytes = "bytes";
  made.too_many_connections = "connections";
  made.too_many_of_address = "address";
  return made;
}

// A server, its queue, and a thread that answers each row with its first value as a float.
class World {
 public:
  explicit World(ServerOptions given = options(), bool answers = true, std::int64_t timeout_ns = 0,
                 std::int64_t max_waiting = 1000, int family = AF_INET) {
    listener_ = ::socket(family, SOCK_STREAM, 0);
    if (family == AF_UNIX) {
      size_ = sizeof(sa_family_t);  // the system chooses a name
      address_.ss_family = AF_UNIX;
    } else {
      auto& address = reinterpret_cast<sockaddr_in&>(address_);
      size_ = sizeof address;
      address.sin_family = AF_INET;
      address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    }
    CHECK(::bind(listener_, reinterpret_cast<sockaddr*>(&address_), size_) == 0);
    ::listen(listener_, 100);
    size_ = sizeof address_;
    ::getsockname(listener_, reinterpret_cast<sockaddr*>(&address_), &size_);
    wake_ = ::eventfd(0, EFD_NONBLOCK);
    QueueOptions queue_options;
    queue_options.model = "model 'm'";
    queue_options.max_rows = 64;
    queue_options.merge = true;
    queue_options.max_waiting = {max_waiting};
    queue = std::make_shared<Queue>(queue_options, 1);
    auto made = std::make_shared<Model>(
        1, std::vector<ModelInput>{{"a", 0, 1, 1, true}},
        std::vector<ModelOutput>{{"s", "{\"shape\":[", "],\"parameters\":{\"binary_data_size\":", 4}}, 16, "\"m\"", 0,
        timeout_ns, false);
    made->set_queues(std::make_shared<Queues>(Queues{{queue}}));
    model = made;
    routes->set(kPath, model);
    server = std::make_unique<HttpServer>(given, routes, listener_, wake_);
    if (answers) session_ = std::thread([this] { answer_all(); });
  }

  ~World() {
    queue->close();
    if (session_.joinable()) session_.join();
    server->stop();
    queue->clear();
    ::close(listener_);
    ::close(wake_);
  }

  int connect() const {
    const int end = ::socket(address_.ss_family, SOCK_STREAM, 0);
    CHECK(::connect(end, reinterpret_cast<const sockaddr*>(&address_), size_) == 0);
    return end;
  }

  // An eventfd that the server writes when the Python path has to do something.
  int wake() const { return wake_; }

  std::shared_ptr<Queue> queue;
  std::shared_ptr<const Model> model;
  std::shared_ptr<Routes> routes = std::make_shared<Routes>();
  std::unique_ptr<HttpServer> server;

 private:
  void answer_all() const {
    while (true) {
      Batch batch = queue->take();
      if (batch.is_end) return;
      std::vector<std::shared_ptr<InferRequest>> requests;
      for (const Request& each : batch.requests) requests.push_back(std::static_pointer_cast<InferRequest>(each));
      if (requests.empty()) continue;
      const RequestBatch joined(requests);
      std::vector<std::int64_t> values(static_cast<std::size_t>(joined.rows()));
      CHECK(joined.bytes() == values.size() * 8);
      joined.join(reinterpret_cast<char*>(values.data()));
      const std::vector<float> scores(values.begin(), values.end());
      joined.respond({reinterpret_cast<const char*>(scores.data())}, "\"1\"", "{}");
    }
  }

  int listener_ = -1, wake_ = -1;
  sockaddr_storage address_{};
  socklen_t size_ = 0;
  std::thread session_;
};

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

}  // namespace front_world
