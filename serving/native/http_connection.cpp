// The steps of a connection: it reads a request, waits for its answer, and sends it.
#include "http_connection.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "http_head.h"
#include "http_request.h"

namespace emberline::front {

namespace {

// A response of fewer bytes is not compressed.
constexpr std::size_t kLeastCompressedBytes = 1024;
// A connection with so many requests that had to be handed over stays with the Python path.
constexpr int kMostDeclined = 3;
// What is done for one connection before others have their turn.
constexpr int kStepsAtOnce = 64;

// A text as the content of a JSON string.
std::string escaped(std::string_view text) {
  static constexpr char kHex[] = "0123456789abcdef";
  std::string out;
  for (const char byte : text) {
    const auto value = static_cast<unsigned char>(byte);
    if (byte == '"' || byte == '\\') {
      out += '\\';
      out += byte;
    } else if (value < 0x20) {
      out += "\\u00";
      out += kHex[value >> 4];
      out += kHex[value & 15];
    } else {
      out += byte;
    }
  }
  return out;
}

}  // namespace

bool HttpServer::hold(HttpConnection& connection, std::size_t bytes) {
  if (held_ + static_cast<std::int64_t>(bytes) > options_.max_inflight_bytes) {
    note_unread(connection, false, 503, options_.too_many_bytes, {}, 0, connection.caller.get(), connection.model());
    refuse(connection, options_.overloaded_status, options_.too_many_bytes, true);
    return false;
  }
  held_ += static_cast<std::int64_t>(bytes);
  connection.held += bytes;
  return true;
}

// Stops counting what the request held; bytes after it stay counted.
void HttpServer::release(HttpConnection& connection) {
  const std::size_t left = connection.buffer.size();
  held_ -= static_cast<std::int64_t>(connection.held - std::min(connection.held, left));
  connection.held = std::min(connection.held, left);
  connection.request.reset();
  connection.queue.reset();
  if (connection.state == HttpConnection::State::kWaiting) connection.state = HttpConnection::State::kReading;
}

// Goes on with a connection until it has to wait: for the client, or for a session. It may be gone then.
void HttpServer::work(Connection& given) {
  HttpConnection& connection = of(given);
  for (int step = 0; step < kStepsAtOnce; ++step) {
    Step next = Step::kWait;
    if (!connection.unsent.empty()) {
      next = flush(connection);
    } else if (connection.state == HttpConnection::State::kReading && !connection.buffer.empty() &&
               !connection.needs_more) {
      next = advance(connection);
    } else if (connection.is_readable && (connection.state == HttpConnection::State::kReading ||
                                          connection.state == HttpConnection::State::kEnding)) {
      next = read_some(connection);
    }
    if (next != Step::kGoOn) return;
  }
  resume_later(connection);
}

HttpServer::Step HttpServer::read_some(HttpConnection& connection) {
  const ssize_t got = ::recv(connection.descriptor, scratch_.data(), scratch_.size(), 0);
  if (got < 0 && errno == EINTR) return Step::kGoOn;
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
    connection.is_readable = false;
    return Step::kWait;
  }
  if (got <= 0) {
    finish(connection);
    return Step::kGone;
  }
  const auto size = static_cast<std::size_t>(got);
  // A short read has emptied the socket, unless its end follows.
  if (size < scratch_.size() && !connection.is_half_closed) connection.is_readable = false;
  if (connection.state == HttpConnection::State::kEnding) return Step::kGoOn;
  if (!hold(connection, size)) return Step::kGoOn;
  if (connection.buffer.empty()) connection.due_ns = now_ns() + options_.body_timeout_ns;
  connection.buffer.append(scratch_.data(), size);
  connection.needs_more = connection.buffer.size() < connection.wanted;
  return Step::kGoOn;
}

// Takes the next request of what was read, when all of it is here.
HttpServer::Step HttpServer::advance(HttpConnection& connection) {
  InferHead head;
  const HeadState state = read_head(connection.buffer, head);
  connection.needs_more = state == HeadState::kIncomplete;
  if (state == HeadState::kIncomplete) return Step::kGoOn;
  std::shared_ptr<const Route> route;
  if (state == HeadState::kInference && head.content_length <= options_.max_body_bytes) {
    route = routes_->find(std::string(head.path));
  }
  // Once for each request, and before its body: that of a caller who is not known, or comes too often, is not waited
  // for.
  const bool is_admitted =
      route != nullptr &&
      (connection.route != nullptr || admit(connection, head.authorization, route->main->name(), connection.caller));
  if (!is_admitted) return pass_on(connection, std::exchange(connection.buffer, {}));
  connection.route = route;
  connection.wanted = head.size + static_cast<std::size_t>(head.content_length);
  connection.needs_more = connection.buffer.size() < connection.wanted;
  if (connection.needs_more) return Step::kGoOn;
  connection.wanted = 0;
  return begin_request(connection, head, *route);
}

HttpServer::Step HttpServer::begin_request(HttpConnection& connection, const InferHead& head, const Route& route) {
  const std::size_t body = head.size, whole = body + static_cast<std::size_t>(head.content_length);
  const std::int64_t json_length = head.json_length;
  const bool accepts_encoding = head.accepts_encoding;
  const std::string routing_key(head.routing_key);
  const auto span = [&](std::string_view text) {
    return text.empty() ? Span() : Span{static_cast<std::size_t>(text.data() - connection.buffer.data()), text.size()};
  };
  const Span header_id = span(head.request_id), traceparent = span(head.traceparent);
  auto request = std::make_shared<InferRequest>();
  // The head's views end here. Of two copies the smaller one is made, so that a request that came with many others does
  // not hold the memory of all.
  if (const std::size_t rest = connection.buffer.size() - whole; rest < whole) {
    std::string behind = connection.buffer.substr(whole);
    connection.buffer.resize(whole);
    request->bytes = std::exchange(connection.buffer, std::move(behind));
  } else {
    request->bytes = connection.buffer.substr(0, whole);
    connection.buffer.erase(0, whole);
  }
  request->mailbox = mailbox_;
  request->ticket = connection.ticket;
  request->arrived_ns = now_ns();
  request->header_id = header_id;
  request->traceparent = traceparent;
  const bool is_read = read_http_request(route, *request, body, json_length, routing_key);
  const auto queues = is_read ? request->model->queues() : nullptr;
  if (!is_read || queues->all.size() != 1 ||
      (accepts_encoding && request->model->answer_bytes(*request) >= kLeastCompressedBytes)) {
    ++connection.declined;
    return pass_on(connection, request->bytes + connection.buffer);
  }
  if (request->id.empty() && header_id.size != 0) request->id = request->text(header_id);
  request->caller = connection.caller;
  if (is_observed()) note_arrival(connection, *request);
  const auto& queue = queues->all.front();
  Refusal refusal = queue->put(request);
  if (refusal.is_closed) {
    return pass_on(connection, request->bytes + connection.buffer);
  }
  connection.route.reset();
  connection.caller.reset();
  if (refusal) {
    missed(*request, Missed::Why::kOverloaded, refusal.overloaded);
    refuse(connection, options_.overloaded_status, refusal.overloaded, false, request->text(header_id));
    return Step::kGoOn;
  }
  in_flight_.fetch_add(1, std::memory_order_relaxed);
  connection.queue = queue;
  connection.state = HttpConnection::State::kWaiting;
  connection.due_ns = kNever;
  remember_deadline(request);
  connection.request = std::move(request);
  return Step::kWait;
}

// Lets a response with an error be sent instead of the request's. ends: it is the last one of the connection.
// request_id: of the request's head.
void HttpServer::refuse(HttpConnection& connection, std::string_view status, std::string_view text, bool ends,
                        std::string_view request_id) {
  release(connection);
  const std::string content = "{\"error\":\"" + escaped(text) + "\"}";
  std::string response(status);
  response.append(date_line()).append("content-length: ").append(std::to_string(content.size()));
  response.append("\r\ncontent-type: application/json\r\n");
  if (!request_id.empty()) response.append("x-request-id: ").append(request_id).append("\r\n");
  if (ends || is_retiring()) response.append("connection: close\r\n");
  response.append("\r\n").append(content);
  connection.unsent = std::move(response);
  if (!ends) return;
  connection.state = HttpConnection::State::kEnding;
  drop(connection);
  connection.is_readable = true;
}

// Drops the bytes that were read.
void HttpServer::drop(HttpConnection& connection) {
  held_ -= static_cast<std::int64_t>(connection.held);
  connection.held = 0;
  connection.buffer.clear();
  connection.route.reset();
  connection.caller.reset();
  connection.wanted = 0;
  connection.needs_more = false;
}

HttpServer::Step HttpServer::flush(HttpConnection& connection) {
  const ssize_t did = ::send(connection.descriptor, connection.unsent.data(), connection.unsent.size(), MSG_NOSIGNAL);
  if (did < 0 && errno == EINTR) return Step::kGoOn;
  if (did < 0 && errno != EAGAIN && errno != EWOULDBLOCK) {
    finish(connection);
    return Step::kGone;
  }
  const std::int64_t now = now_ns();
  if (did < static_cast<ssize_t>(connection.unsent.size())) {
    if (did > 0) connection.unsent.erase(0, static_cast<std::size_t>(did));
    // It has so long to read some of it.
    if (did > 0 || connection.due_ns == kNever) connection.due_ns = now + options_.body_timeout_ns;
    return did > 0 ? Step::kGoOn : Step::kWait;
  }
  connection.unsent = std::string();  // an idle connection holds no memory
  if (is_retiring()) {
    connection.state = HttpConnection::State::kEnding;
    drop(connection);
    connection.is_readable = true;
  }
  if (connection.state == HttpConnection::State::kEnding) {
    // Closing now would lose the answer for a client that still sends, so it may send on for a while.
    ::shutdown(connection.descriptor, SHUT_WR);
    connection.due_ns = now + options_.linger_ns;
    return Step::kGoOn;
  }
  connection.idle_since_ns = now;
  connection.due_ns = now + (connection.buffer.empty() ? options_.keep_alive_ns : options_.body_timeout_ns);
  return Step::kGoOn;
}

// Hands the connection to the Python path, with the bytes from the beginning of a request on.
HttpServer::Step HttpServer::pass_on(HttpConnection& connection, std::string bytes) {
  const int copy = ::fcntl(connection.descriptor, F_DUPFD_CLOEXEC, 0);
  if (copy < 0 || copy >= options_.last_descriptor) {
    if (copy >= 0) ::close(copy);
    refuse(connection, options_.overloaded_status, options_.too_many_connections, true);
    return Step::kGoOn;
  }
  uncount(connection, std::move(connection.caller));
  release(connection);
  drop(connection);
  passed_on_.fetch_add(1, std::memory_order_relaxed);
  connection.state = HttpConnection::State::kAway;
  connection.due_ns = kNever;
  watch(connection, connection.descriptor, EPOLL_CTL_DEL);
  bool was_empty = false;
  {
    const std::lock_guard lock(mutex_);
    was_empty = handed_over_.empty();
    handed_over_.push_back({copy, connection.ticket, std::move(bytes), connection.declined < kMostDeclined});
  }
  if (was_empty) wake_python();
  return Step::kWait;
}

}  // namespace emberline::front
