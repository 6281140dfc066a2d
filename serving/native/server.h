// A server of one port, on a thread of its own, without Python: it accepts connections, keeps their number within
// bounds, has them worked on when they can go on, and ends those that have waited for too long. What a connection
// speaks is for the classes derived from it.
//
// A connection belongs to the thread; other threads name it by a ticket, which is never used twice.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "callers.h"
#include "mailbox.h"
#include "route.h"

namespace emberline::front {

constexpr std::int64_t kNever = INT64_MAX;

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
  // What the protocol sends for errors: a status line of HTTP, such as "HTTP/1.1 503 Service Unavailable\r\n", or a
  // code of gRPC.
  std::string overloaded_status, late_status, expired_status;
  // Texts of the errors for a request that did not arrive, that waited too long, and for too much that is read at once
  // or too many connections.
  std::string late, expired, too_many_bytes, too_many_connections, too_many_of_address;
  // Callers that were let in; null where every caller is.
  std::shared_ptr<Callers> callers;
  // Takes note of requests; null for none.
  std::shared_ptr<Observer> observer;
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
  virtual ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  std::vector<Missed> take_missed();
  // Still accepts connections and answers requests, and has clients open other connections for further ones.
  void retire();
  // Accepts no more connections, and ends each when its requests are answered.
  void drain();
  // Ends all connections and the thread.
  void stop();
  // Connections that are open, here or with the Python path.
  std::int64_t connections() const { return open_.load(std::memory_order_relaxed); }
  // Connections whose client has sent a part of a request, or not read an answer, for a while, by its address.
  std::vector<std::pair<std::string, std::int64_t>> stuck() const;
  // Requests that a session or its queue has.
  std::int64_t in_flight() const { return in_flight_.load(std::memory_order_relaxed); }
  // Requests that were answered here, and connections or calls that the Python path was given, since the start.
  std::int64_t answered() const { return answered_.load(std::memory_order_relaxed); }
  std::int64_t passed_on() const { return passed_on_.load(std::memory_order_relaxed); }

 protected:
  struct Connection {
    virtual ~Connection() = default;

    std::uint64_t ticket = 0;
    int descriptor = -1;
    std::string address;
    // The client's address as text, where requests may be observed.
    std::string client;
    // When it has waited for too long, and since when it has been idle.
    std::int64_t due_ns = kNever, idle_since_ns = 0;
  };
  using Connections = std::unordered_map<std::uint64_t, std::unique_ptr<Connection>>;

  // listener: a listening socket, which stays the caller's. wake_python: an eventfd that is written when Python has
  // something to take. Raises std::system_error.
  Server(ServerOptions options, std::shared_ptr<const Routes> routes, int listener, int wake_python);
  // Starts the thread; the last step of a derived class's constructor, as `stop` is the first of its destructor.
  void start();

  // The steps that a protocol has, all on the thread. A connection may be gone when one returns.

  virtual std::unique_ptr<Connection> make_connection() = 0;
  // Begins a connection. refusal: null, or why there is no room for it.
  virtual void begin(Connection& connection, const std::string* refusal) = 0;
  // Takes what epoll says of a descriptor. of_second: of the one that was watched as the second.
  virtual void on_events(Connection& connection, std::uint32_t events, bool of_second) = 0;
  // Goes on with a connection that gave others their turn.
  virtual void work(Connection& connection) = 0;
  // Takes a letter for a connection.
  virtual void read_letter(Connection& connection, Mailbox::Letter& letter) = 0;
  // Ends a request whose deadline has passed, unless a session has it; returns whether it is to be looked at again.
  virtual bool expire(Connection& connection, const std::shared_ptr<InferRequest>& request, std::int64_t now) = 0;
  // Whether it could be ended without loss for its client.
  virtual bool is_idle(const Connection& connection) const = 0;
  // Looks at a connection every quarter of a second, and when draining begins. Must not end it: returns whether
  // `on_due` is to be called for it.
  virtual bool is_due(const Connection& connection, std::int64_t now, bool drains) const = 0;
  virtual void on_due(Connection& connection) = 0;
  // Since when its client is waited for, to send the rest of a request or to read an answer; kNever for neither.
  virtual std::int64_t waits_since(const Connection& connection) const = 0;
  // Lets go of what a connection holds, before it is closed.
  virtual void on_finish(Connection& connection) = 0;

  void finish(Connection& connection);
  // Asks epoll for events of a descriptor, edge by edge. operation: EPOLL_CTL_ADD, or EPOLL_CTL_DEL.
  void watch(const Connection& connection, int descriptor, int operation, bool as_second = false);
  Connection* find(std::uint64_t ticket);
  // Remembers a connection that can go on; others have their turn first.
  void resume_later(const Connection& connection) { unfinished_.push_back(connection.ticket); }
  // Returns who sends this header; null for nobody that was let in, and where callers need not be known.
  std::shared_ptr<const Caller> find_caller(std::optional<std::string_view> authorization) const;
  // Whether a request for a model of whoever sends this header is answered here, and not by the Python path; it is
  // counted then. caller: set to who that is, null where callers need not be known.
  bool admit(const Connection& connection, std::optional<std::string_view> authorization, std::string_view model,
             std::shared_ptr<const Caller>& caller) const;
  // Takes back that a request of a caller, which may be null, was counted: the Python path counts it.
  void uncount(const Connection& connection, std::shared_ptr<const Caller> caller) const;
  void remember_deadline(const std::shared_ptr<InferRequest>& request);
  // text: what the client gets.
  void missed(const InferRequest& request, Missed::Why why, std::string_view text = {});
  bool is_observed() const { return mailbox_->is_observed(); }
  // Sets what observers want to know of a request that is about to be put into a queue.
  void note_arrival(const Connection& connection, InferRequest& request) const;
  // Notes that a request was refused before it was read. header_id: of its head. since_ns: when it began to arrive.
  // caller, model: as far as they are known.
  void note_unread(const Connection& connection, bool is_grpc, int status, std::string_view text,
                   std::string_view header_id, std::int64_t since_ns, const Caller* caller,
                   std::string_view model = {}) const;
  void wake_python() const;
  bool is_retiring() const { return mailbox_->is_retiring.load(std::memory_order_relaxed); }
  bool is_draining() const { return mailbox_->is_draining.load(std::memory_order_relaxed); }

  const ServerOptions options_;
  const std::shared_ptr<const Routes> routes_;
  const std::shared_ptr<Mailbox> mailbox_ = std::make_shared<Mailbox>();
  std::atomic<std::int64_t> open_{0}, in_flight_{0}, answered_{0}, passed_on_{0};
  mutable std::mutex mutex_;

  // The thread's own.
  Connections connections_;
  std::int64_t held_ = 0;
  std::string scratch_;

 private:
  static std::string rate_client(const Connection& connection, const Caller& caller);
  void run();
  void on_event(std::uint64_t key, std::uint32_t events);
  void accept_all();
  void listen_for(bool is_wanted);
  bool make_room(const std::string& address, bool of_address);
  void read_mail(Mailbox::Letter& letter);
  void tick(std::int64_t now);
  void check_deadlines(std::int64_t now);
  int timeout_ms(std::int64_t now) const;

  const int wake_python_;
  int epoll_ = -1, listener_ = -1;
  std::atomic<bool> is_stopping_{false};
  std::vector<Missed> missed_;
  std::map<std::string, std::int64_t> stuck_;
  std::map<std::string, std::int64_t> by_address_;
  std::uint64_t next_ticket_ = 1;
  std::int64_t next_tick_ns_ = 0;
  // Requests that have a deadline.
  std::deque<std::weak_ptr<InferRequest>> deadlines_;
  std::int64_t next_deadlines_ns_ = 0;
  // Connections that can go on.
  std::deque<std::uint64_t> unfinished_;
  bool is_listening_ = true;
  std::thread thread_;
};

}  // namespace emberline::front
