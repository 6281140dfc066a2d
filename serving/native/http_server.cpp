// What a server of HTTP does when something happens; http_connection.cpp has the steps of a connection.
#include "http_server.h"

#include <sys/epoll.h>
#include <unistd.h>

#include <utility>

#include "http_connection.h"
#include "http_head.h"

namespace emberline::front {

HttpServer::HttpServer(ServerOptions options, std::shared_ptr<const Routes> routes, int listener, int wake_python)
    : Server(std::move(options), std::move(routes), listener, wake_python) {
  start();
}

HttpServer::~HttpServer() {
  stop();
  for (const HandedOver& each : handed_over_) ::close(each.descriptor);
}

// From any thread.

std::vector<HandedOver> HttpServer::take_handed_over() {
  const std::lock_guard lock(mutex_);
  return std::exchange(handed_over_, {});
}

void HttpServer::give_back(std::uint64_t ticket, std::string bytes) {
  std::vector<Mailbox::Letter> letters;
  letters.push_back({Mailbox::Letter::Kind::kGiveBack, ticket, std::move(bytes), nullptr});
  mailbox_->post(std::move(letters));
}

void HttpServer::closed(std::uint64_t ticket) {
  mailbox_->post({{Mailbox::Letter::Kind::kClosed, ticket, "", nullptr}});
}

// On the thread.

HttpServer::HttpConnection& HttpServer::of(Connection& connection) { return static_cast<HttpConnection&>(connection); }

const HttpServer::HttpConnection& HttpServer::of(const Connection& connection) {
  return static_cast<const HttpConnection&>(connection);
}

std::unique_ptr<Server::Connection> HttpServer::make_connection() { return std::make_unique<HttpConnection>(); }

void HttpServer::begin(Connection& connection, const std::string* refusal) {
  if (refusal == nullptr) return;
  refuse(of(connection), options_.overloaded_status, *refusal, true);
  work(connection);
}

void HttpServer::on_events(Connection& given, std::uint32_t events, bool /*of_second*/) {
  HttpConnection& connection = of(given);
  if ((events & (EPOLLERR | EPOLLHUP)) != 0) {
    finish(connection);
    return;
  }
  connection.is_half_closed = connection.is_half_closed || (events & EPOLLRDHUP) != 0;
  connection.is_readable = connection.is_readable || (events & (EPOLLIN | EPOLLRDHUP)) != 0;
  if (connection.state == HttpConnection::State::kWaiting && connection.is_half_closed) {
    finish(connection);
  } else {
    work(connection);
  }
}

void HttpServer::read_letter(Connection& given, Mailbox::Letter& letter) {
  HttpConnection& connection = of(given);
  switch (letter.kind) {
    case Mailbox::Letter::Kind::kRespond:
      answered_.fetch_add(1, std::memory_order_relaxed);
      release(connection);
      connection.unsent = std::move(letter.bytes);
      work(connection);
      break;
    case Mailbox::Letter::Kind::kExpire:
      refuse(connection, options_.expired_status, options_.expired, false,
             letter.request->text(letter.request->header_id));
      work(connection);
      break;
    case Mailbox::Letter::Kind::kHandOver:
      release(connection);
      ++connection.declined;
      connection.caller = letter.request->caller;
      if (pass_on(connection, letter.request->bytes + connection.buffer) == Step::kGoOn) work(connection);
      break;
    case Mailbox::Letter::Kind::kGiveBack:
      connection.state = HttpConnection::State::kReading;
      connection.is_readable = true;
      connection.due_ns = now_ns() + options_.body_timeout_ns;
      watch(connection, connection.descriptor, EPOLL_CTL_ADD);
      if (hold(connection, letter.bytes.size())) connection.buffer = std::move(letter.bytes);
      work(connection);
      break;
    case Mailbox::Letter::Kind::kClosed: finish(connection); break;
  }
}

bool HttpServer::expire(Connection& given, const std::shared_ptr<InferRequest>& request, std::int64_t now) {
  HttpConnection& connection = of(given);
  if (connection.request != request) return false;
  if (request->deadline_ns > now) return true;
  if (!connection.queue->discard(request.get())) return false;  // a session has it, and answers it
  in_flight_.fetch_sub(1, std::memory_order_relaxed);
  missed(*request, Missed::Why::kExpired);
  refuse(connection, options_.expired_status, options_.expired, false, request->text(request->header_id));
  work(connection);
  return false;
}

bool HttpServer::is_idle(const Connection& given) const {
  const HttpConnection& connection = of(given);
  return connection.state == HttpConnection::State::kReading && connection.unsent.empty() && connection.wanted == 0;
}

bool HttpServer::is_due(const Connection& given, std::int64_t now, bool drains) const {
  const HttpConnection& connection = of(given);
  const bool is_at_rest = connection.state == HttpConnection::State::kReading && connection.buffer.empty();
  return connection.due_ns <= now || (drains && is_at_rest && connection.unsent.empty());
}

void HttpServer::on_due(Connection& given) {
  HttpConnection& connection = of(given);
  if (connection.state == HttpConnection::State::kReading && !connection.buffer.empty() && connection.unsent.empty()) {
    InferHead head;
    read_head(connection.buffer, head);
    note_unread(connection, false, 400, options_.late, head.request_id, connection.due_ns - options_.body_timeout_ns,
                connection.caller.get(), connection.model());
    refuse(connection, options_.late_status, options_.late, true, head.request_id);
    work(connection);
  } else {
    finish(connection);
  }
}

std::int64_t HttpServer::waits_since(const Connection& given) const {
  const HttpConnection& connection = of(given);
  const bool reads = connection.state == HttpConnection::State::kReading && !connection.buffer.empty();
  if ((!reads && connection.unsent.empty()) || connection.due_ns == kNever) return kNever;
  return connection.due_ns - options_.body_timeout_ns;
}

// Ends the connection's request where no session has it.
void HttpServer::on_finish(Connection& given) {
  HttpConnection& connection = of(given);
  if (connection.request != nullptr && connection.queue->discard(connection.request.get())) {
    in_flight_.fetch_sub(1, std::memory_order_relaxed);
    missed(*connection.request, Missed::Why::kCancelled);
  }
  held_ -= static_cast<std::int64_t>(connection.held);
}

}  // namespace emberline::front
