// Serves HTTP connections on a thread of its own, without Python: ordinary inference requests are read, queued and
// answered here. A connection with any other request is handed to the Python path, as a descriptor and the bytes that
// were read, and may come back when its next request is an ordinary one again.
//
// A connection belongs to the thread; other threads name it by a ticket, which is never used twice.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "mailbox.h"
#include "model.h"
#include "route.h"

namespace emberline::front {

struct ServerOptions {
  std::int64_t max_body_bytes = 0;
  std::int64_t max_inflight_bytes = 0;
  std::int64_t max_connections = 0;
  std::int64_t connections_per_address = 0;
  // From this descriptor on, few files are left to open.
  std::int64_t last_descriptor = 0;
  std::int64_t body_timeout_ns = 0;
  std::int64_t keep_alive_ns = 0;
  // How long a client whose connection is about to end may go on sending.
  std::int64_t linger_ns = 0;
  // Status lines of responses, such as "HTTP/1.1 503 Service Unavailable\r\n".
  std::string overloaded_status, late_status, expired_status;
  // Texts of the errors for a request that did not arrive, that waited too long, and for too much that is read at once
  // or too many connections.
  std::string late, expired, too_many_bytes, too_many_connections, too_many_of_address;
};

// A connection that the Python path is to serve from here on.
struct HandedOver {
  // The caller closes it. The connection ends when the ticket is reported as closed.
  int descriptor = -1;
  std::uint64_t ticket = 0;
  // What was read of it, from the beginning of a request.
  std::string bytes;
  // Whether its requests may be ordinary ones again.
  bool may_return = true;
};

// What happened to requests that no session answered, by model.
struct Missed {
  std::shared_ptr<const Model> model;
  bool canary = false;
  std::int64_t took_ns = 0;
  enum class Why { kExpired, kCancelled, kOverloaded } why = Why::kExpired;
};

class Server {
 public:
  // listener: a listening socket, which stays the caller's. wake_python: an eventfd that is written when
  // `take_handed_over` or `take_missed` has something. Raises std::system_error.
  Server(ServerOptions options, int listener, int wake_python);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // Answers a path by this route from now on; null: the path is no longer answered here.
  void route(const std::string& path, std::shared_ptr<const Route> route);
  std::vector<HandedOver> take_handed_over();
  std::vector<Missed> take_missed();
  // Takes a connection back, with the bytes that the Python path has read of its next request.
  void give_back(std::uint64_t ticket, std::string bytes);
  // Ends a connection that was handed over.
  void closed(std::uint64_t ticket);
  // Accepts no more connections, and ends each when its request is answered.
  void drain();
  // Ends all connections and the thread.
  void stop();
  // Connections that are open, here or with the Python path.
  std::int64_t connections() const { return open_.load(std::memory_order_relaxed); }
  // Requests that a session or its queue has.
  std::int64_t in_flight() const { return in_flight_.load(std::memory_order_relaxed); }
  // Requests that were answered here, and connections that were handed over, since the start.
  std::int64_t answered() const { return answered_.load(std::memory_order_relaxed); }
  std::int64_t passed_on() const { return passed_on_.load(std::memory_order_relaxed); }

 private:
  struct Connection;

  void run();
  void accept_all();
  void listen_for(bool is_wanted);
  bool make_room(const std::string& address, bool of_address);
  void read_mail(Mailbox::Letter& letter);
  void tick(std::int64_t now);
  void check_deadlines(std::int64_t now);
  int timeout_ms(std::int64_t now) const;

  // What follows a step: the next one, or waiting; or the connection has ended.
  enum class Step { kGoOn, kWait, kGone };

  void work(Connection& connection);
  Step read_some(Connection& connection);
  Step advance(Connection& connection);
  Step begin_request(Connection& connection, const struct InferHead& head, const Route& route);
  Step flush(Connection& connection);
  Step pass_on(Connection& connection, std::string bytes);
  void refuse(Connection& connection, std::string_view status, std::string_view text, bool ends);
  void finish(Connection& connection);

  bool hold(Connection& connection, std::size_t bytes);
  void release(Connection& connection);
  void drop(Connection& connection);
  void watch(Connection& connection, std::uint32_t events);
  Connection* find(std::uint64_t ticket);
  void missed(const InferRequest& request, Missed::Why why);
  void wake_python();

  const ServerOptions options_;
  const int wake_python_;
  const std::shared_ptr<Mailbox> mailbox_ = std::make_shared<Mailbox>();
  int epoll_ = -1, listener_ = -1;
  std::atomic<bool> is_stopping_{false};
  std::atomic<std::int64_t> open_{0}, in_flight_{0}, answered_{0}, passed_on_{0};

  mutable std::mutex mutex_;
  std::vector<HandedOver> handed_over_;
  std::vector<Missed> missed_;
  std::unordered_map<std::string, std::shared_ptr<const Route>> routes_;

  // The thread's own.
  std::unordered_map<std::uint64_t, std::unique_ptr<Connection>> connections_;
  std::map<std::string, std::int64_t> by_address_;
  std::uint64_t next_ticket_ = 1;
  std::int64_t held_ = 0;
  std::int64_t next_tick_ns_ = 0;
  // Requests that have a deadline.
  std::deque<std::weak_ptr<InferRequest>> deadlines_;
  std::int64_t next_deadlines_ns_ = 0;
  // Connections that can go on.
  std::deque<std::uint64_t> unfinished_;
  std::string scratch_;
  bool is_listening_ = true;
  std::thread thread_;
};

}  // namespace emberline::front
