// A server with real sockets, its queue, and a session that answers each row with its first value as a float.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "check.h"
#include "server.h"

namespace emberline::front {

inline const std::string kPath = "/v2/models/m/infer";

inline ServerOptions options() {
  ServerOptions made;
  made.max_body_bytes = 1 << 20;
  made.max_inflight_bytes = 1 << 22;
  made.max_connections = 100;
  made.connections_per_address = 100;
  made.last_descriptor = 1 << 20;
  made.body_timeout_ns = 20'000'000'000;
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

// What a world has besides its server.
struct WorldOptions {
  ServerOptions server = options();
  bool answers = true;
  std::int64_t timeout_ns = 0;
  std::int64_t max_waiting = 1000;
  // Whether requests for the model are answered by the server.
  bool has_route = true;
  // A local socket to listen on, instead of a port.
  std::string local = {};
};

template <class AnyServer>
class World {
 public:
  // further: what the server's constructor takes last.
  template <class... Further>
  explicit World(WorldOptions given = {}, Further... further) {
    local_ = given.local;
    listener_ = given.local.empty() ? listen_on_port() : listen_on_path(given.local);
    wake_ = ::eventfd(0, EFD_NONBLOCK);
    QueueOptions queue_options;
    queue_options.model = "model 'm'";
    queue_options.max_rows = 64;
    queue_options.merge = true;
    queue_options.max_waiting = {given.max_waiting};
    queue = std::make_shared<Queue>(queue_options, 1);
    model = std::make_shared<Model>(1, std::vector<ModelInput>{{"a", 0, 1, 1}},
                                    std::vector<ModelOutput>{{"s", "{\"shape\":[", "]", 4, kFp32, "FP32", {1}}}, 16,
                                    "m", "\"m\"", std::vector<ModelLevel>{{given.timeout_ns, false}}, std::size_t{0});
    model->set_queues(std::make_shared<Queues>(Queues{{queue}}));
    route = std::make_shared<Route>(Route{model, nullptr});
    if (given.has_route) routes->set(kPath, route);
    server = std::make_unique<AnyServer>(given.server, routes, listener_, wake_, further...);
    if (given.answers) session_ = std::thread([this] { answer_all(); });
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
    if (!local_.empty()) return connect_to_path();
    const int end = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = port_;
    CHECK(::connect(end, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
    return end;
  }

  // An eventfd that the server writes when the Python path has something to take.
  int wake() const { return wake_; }

  std::shared_ptr<Queue> queue;
  std::shared_ptr<Model> model;
  std::shared_ptr<const Route> route;
  std::shared_ptr<Routes> routes = std::make_shared<Routes>();
  std::unique_ptr<AnyServer> server;

 private:
  int listen_on_port() {
    const int made = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    ::bind(made, reinterpret_cast<sockaddr*>(&address), size);
    ::listen(made, 100);
    ::getsockname(made, reinterpret_cast<sockaddr*>(&address), &size);
    port_ = address.sin_port;
    return made;
  }

  static int listen_on_path(const std::string& path) {
    const int made = ::socket(AF_UNIX, SOCK_STREAM, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path.data(), path.size());
    CHECK(::bind(made, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
    ::listen(made, 100);
    return made;
  }

  int connect_to_path() const {
    const int end = ::socket(AF_UNIX, SOCK_STREAM, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, local_.data(), local_.size());
    CHECK(::connect(end, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
    return end;
  }

  void answer_all() const {
    while (true) {
      Batch batch = queue->take();
      if (batch.is_end) return;
      InferRequests requests;
      for (const Request& each : batch.requests) requests.push_back(std::static_pointer_cast<InferRequest>(each));
      if (requests.empty()) continue;
      const RequestBatch joined(requests);
      std::vector<std::int64_t> values(static_cast<std::size_t>(joined.rows()));
      CHECK(joined_bytes(requests) == values.size() * 8);
      join_columns(requests, reinterpret_cast<char*>(values.data()));
      const std::vector<float> scores(values.begin(), values.end());
      joined.respond({reinterpret_cast<const char*>(scores.data())}, {"\"1\"", "{}", "1", ""});
    }
  }

  int listener_ = -1, wake_ = -1;
  std::string local_;
  in_port_t port_ = 0;
  std::thread session_;
};

template <class Holds>
bool within_five_seconds(const Holds& holds) {
  for (int i = 0; i < 5000; ++i) {
    if (holds()) return true;
    ::usleep(1000);
  }
  return false;
}

}  // namespace emberline::front
