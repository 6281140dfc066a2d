// What a server of gRPC does when something happens, and the steps of its connections. grpc_calls.cpp has those of
// calls.
#include "grpc_server.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <utility>

#include "grpc_connection.h"

namespace emberline::front {

namespace {

// A connection that does not begin with HTTP/2 ends after so long.
constexpr std::int64_t kMostHandshakeNs = 10'000'000'000;
// What is done for one connection before others have their turn.
constexpr int kStepsAtOnce = 16;
// As much is made ready to be sent at a time, and while more waits nothing is read.
constexpr std::size_t kUnsentBytes = 64 << 10;
constexpr std::size_t kMostUnsentBytes = 1 << 20;

// INVALID_ARGUMENT, as serving/native_path/options.py says of a request that did not arrive in time.
constexpr int kLateCode = 3;

// Sends what waits, and what a session has for its peer. Returns whether something was sent; `is_gone` is set when the
// connection has ended.
bool write_some(nghttp2_session* session, int descriptor, std::string& unsent, bool& is_gone) {
  while (unsent.size() < kUnsentBytes) {
    const std::uint8_t* bytes = nullptr;
    const ssize_t size = nghttp2_session_mem_send(session, &bytes);
    if (size < 0) is_gone = true;
    if (size <= 0) break;
    unsent.append(reinterpret_cast<const char*>(bytes), static_cast<std::size_t>(size));
  }
  if (unsent.empty()) return false;
  const ssize_t did = ::send(descriptor, unsent.data(), unsent.size(), MSG_NOSIGNAL);
  if (did < 0) {
    if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) is_gone = true;
    return errno == EINTR;
  }
  unsent.erase(0, static_cast<std::size_t>(did));
  return did > 0;
}

// Reads some bytes and lets a session take them.
bool read_some(nghttp2_session* session, int descriptor, std::string& scratch, bool& is_readable, bool& is_gone) {
  const ssize_t got = ::recv(descriptor, scratch.data(), scratch.size(), 0);
  if (got < 0 && errno == EINTR) return true;
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
    is_readable = false;
    return false;
  }
  if (got <= 0) {
    is_gone = true;
    return false;
  }
  if (session != nullptr) {
    const ssize_t taken = nghttp2_session_mem_recv(session, reinterpret_cast<const std::uint8_t*>(scratch.data()),
                                                   static_cast<std::size_t>(got));
    is_gone = taken < 0;
  }
  return true;
}

}  // namespace

GrpcServer::GrpcServer(ServerOptions options, std::shared_ptr<const Routes> routes, int listener, int wake_python,
                       std::string upstream, std::string secret)
    : Server(std::move(options), std::move(routes), listener, wake_python),
      upstream_(std::move(upstream)),
      secret_(std::move(secret)) {
  start();
}

GrpcServer::~GrpcServer() {
  stop();
  for (auto& [ticket, connection] : connections_) end_upstream(of(*connection));
}

// On the thread.

GrpcServer::GrpcConnection& GrpcServer::of(Connection& connection) { return static_cast<GrpcConnection&>(connection); }

const GrpcServer::GrpcConnection& GrpcServer::of(const Connection& connection) {
  return static_cast<const GrpcConnection&>(connection);
}

std::unique_ptr<Server::Connection> GrpcServer::make_connection() {
  auto made = std::make_unique<GrpcConnection>();
  made->server = this;
  made->client = ClientSide::make(*made);
  return made;
}

void GrpcServer::begin(Connection& connection, const std::string* refusal) {
  if (refusal != nullptr) {
    finish(connection);  // its client tries again, as it does when a server is not there yet
    return;
  }
  connection.due_ns = now_ns() + std::min(kMostHandshakeNs, options_.body_timeout_ns);
  work(connection);
}

void GrpcServer::on_events(Connection& given, std::uint32_t events, bool of_second) {
  GrpcConnection& connection = of(given);
  const bool is_readable = (events & (EPOLLIN | EPOLLRDHUP | EPOLLERR | EPOLLHUP)) != 0;
  bool& known = of_second ? connection.is_upstream_readable : connection.is_readable;
  known = known || is_readable;
  work(connection);
}

// Goes on with a connection until it has to wait. It may be gone then.
void GrpcServer::work(Connection& given) {
  GrpcConnection& connection = of(given);
  bool moved = false;
  for (int step = 0; step < kStepsAtOnce; ++step) {
    bool more = read_client(connection);
    if (connection.upstream != nullptr) {
      more = read_upstream(connection) || more;
      more = write_upstream(connection) || more;
    }
    more = write_client(connection) || more;
    if (connection.is_gone) {
      finish(connection);
      return;
    }
    if (!more) {
      settle(connection, moved);
      return;
    }
    moved = true;
  }
  settle(connection, moved);
  resume_later(connection);
}

// Sets how long the connection may stay as it is.
void GrpcServer::settle(GrpcConnection& connection, bool moved) const {
  if (connection.is_ending) return;
  nghttp2_session* const session = connection.client.get();
  const std::int64_t now = now_ns();
  if (connection.unsent.empty() && nghttp2_session_want_read(session) == 0 &&
      nghttp2_session_want_write(session) == 0) {
    // Closing now could lose what was sent last, so the client may send on for a while.
    ::shutdown(connection.descriptor, SHUT_WR);
    connection.is_ending = true;
    connection.due_ns = now + options_.linger_ns;
  } else if (!connection.unsent.empty()) {
    // It has so long to read some of it.
    if (moved || connection.due_ns == kNever) connection.due_ns = now + options_.body_timeout_ns;
  } else if (!connection.calls.empty()) {
    connection.due_ns = kNever;
  } else if (connection.has_begun) {
    connection.due_ns = connection.idle_since_ns + options_.keep_alive_ns;
  }
}

bool GrpcServer::read_client(GrpcConnection& connection) {
  if (!connection.is_readable || connection.unsent.size() >= kMostUnsentBytes) return false;
  nghttp2_session* const session = connection.is_ending ? nullptr : connection.client.get();
  return read_some(session, connection.descriptor, scratch_, connection.is_readable, connection.is_gone);
}

bool GrpcServer::write_client(GrpcConnection& connection) {
  if (connection.is_ending) return false;
  return write_some(connection.client.get(), connection.descriptor, connection.unsent, connection.is_gone);
}

bool GrpcServer::read_upstream(GrpcConnection& connection) {
  if (!connection.is_upstream_readable) return false;
  const bool did = read_some(connection.upstream.get(), connection.upstream_descriptor, scratch_,
                             connection.is_upstream_readable, connection.is_upstream_gone);
  if (connection.is_upstream_gone) end_upstream(connection);
  return did;
}

bool GrpcServer::write_upstream(GrpcConnection& connection) {
  if (connection.upstream == nullptr) return false;
  const bool did = write_some(connection.upstream.get(), connection.upstream_descriptor, connection.upstream_unsent,
                              connection.is_upstream_gone);
  const bool has_ended = nghttp2_session_want_read(connection.upstream.get()) == 0 &&
                         nghttp2_session_want_write(connection.upstream.get()) == 0;
  if (connection.is_upstream_gone || (has_ended && connection.upstream_unsent.empty())) end_upstream(connection);
  return did;
}

// Connects to the Python path, where that has not been done. Returns whether there is a connection.
bool GrpcServer::open_upstream(GrpcConnection& connection) {
  if (connection.upstream != nullptr && nghttp2_session_check_request_allowed(connection.upstream.get()) != 0) {
    return true;
  }
  if (connection.upstream != nullptr && !connection.forwards.empty()) return false;  // it ends when these have
  end_upstream(connection);
  const int descriptor = ::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (descriptor < 0) return false;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (descriptor >= options_.last_descriptor || upstream_.size() >= sizeof address.sun_path) {
    ::close(descriptor);
    return false;
  }
  std::memcpy(address.sun_path, upstream_.data(), upstream_.size());
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + upstream_.size());
  if (::connect(descriptor, reinterpret_cast<const sockaddr*>(&address), size) != 0) {
    ::close(descriptor);
    return false;
  }
  connection.upstream = UpstreamSide::make(connection);
  connection.upstream_descriptor = descriptor;
  connection.is_upstream_readable = connection.is_upstream_gone = false;
  watch(connection, descriptor, EPOLL_CTL_ADD, true);
  return true;
}

// Ends the connection to the Python path, and the calls that are there.
void GrpcServer::end_upstream(GrpcConnection& connection) {
  if (connection.upstream_descriptor >= 0) ::close(connection.upstream_descriptor);
  connection.upstream_descriptor = -1;
  connection.upstream.reset();
  connection.upstream_unsent.clear();
  for (auto& [id, forward] : connection.forwards) {
    if (forward->call == nullptr) continue;
    Call& call = *forward->call;
    end_forward(*forward, false);
    if (!call.out.is_ended) ClientSide::reset(call, NGHTTP2_INTERNAL_ERROR);
  }
  connection.forwards.clear();
}

void GrpcServer::read_letter(Connection& given, Mailbox::Letter& letter) {
  GrpcConnection& connection = of(given);
  const auto found = connection.calls.find(letter.stream);
  if (found == connection.calls.end()) return;
  Call& call = *found->second;
  Slot* const slot = find_slot(call, letter.number);
  if (slot == nullptr || slot->request == nullptr) return;
  switch (letter.kind) {
    case Mailbox::Letter::Kind::kRespond:
      answered_.fetch_add(1, std::memory_order_relaxed);
      answer(call, *slot, std::move(letter.bytes));
      break;
    case Mailbox::Letter::Kind::kExpire:
      refuse_request(call, *slot, letter.request->id, options_.expired_status, options_.expired);
      break;
    case Mailbox::Letter::Kind::kHandOver:
      uncount(connection, letter.request->caller);
      forward_request(call, *slot, std::move(letter.request->bytes));
      break;
    case Mailbox::Letter::Kind::kGiveBack:
    case Mailbox::Letter::Kind::kClosed: break;
  }
  work(connection);
}

bool GrpcServer::expire(Connection& given, const std::shared_ptr<InferRequest>& request, std::int64_t now) {
  GrpcConnection& connection = of(given);
  const auto found = connection.calls.find(request->stream);
  Slot* const slot = found == connection.calls.end() ? nullptr : find_slot(*found->second, request->number);
  if (slot == nullptr || slot->request != request) return false;
  if (request->deadline_ns > now) return true;
  if (!slot->queue->discard(request.get())) return false;  // a session has it, and answers it
  in_flight_.fetch_sub(1, std::memory_order_relaxed);
  missed(*request, Missed::Why::kExpired);
  refuse_request(*found->second, *slot, request->id, options_.expired_status, options_.expired);
  work(connection);
  return false;
}

bool GrpcServer::is_idle(const Connection& given) const {
  const GrpcConnection& connection = of(given);
  return connection.calls.empty() && connection.unsent.empty();
}

bool GrpcServer::is_stuck(const Call& call) { return call.out_since_ns != 0 && call.out.left() > 0; }

bool GrpcServer::is_late(const Call& call, std::int64_t now) const {
  // A stream may wait for its next request as long as its client likes.
  const bool is_unsent = call.state == Call::State::kReading && !call.is_stream;
  const std::int64_t since_ns = is_stuck(call) ? call.out_since_ns : call.arrived_ns;
  return (is_unsent || is_stuck(call)) && since_ns + options_.body_timeout_ns <= now;
}

bool GrpcServer::is_due(const Connection& given, std::int64_t now, bool drains) const {
  const GrpcConnection& connection = of(given);
  if (connection.due_ns <= now || (is_retiring() && !connection.is_retired)) return true;
  if (drains && (!connection.is_going_away || is_idle(connection))) return true;
  for (const auto& [id, call] : connection.calls) {
    if (is_late(*call, now)) return true;
  }
  return false;
}

void GrpcServer::on_due(Connection& given) {
  GrpcConnection& connection = of(given);
  nghttp2_session* const session = connection.client.get();
  const std::int64_t now = now_ns();
  if (connection.due_ns <= now && (connection.is_ending || !connection.unsent.empty() || !connection.has_begun)) {
    finish(connection);
    return;
  }
  for (const auto& [id, call] : connection.calls) {
    if (!is_late(*call, now)) continue;
    if (is_stuck(*call)) {
      ClientSide::reset(*call, NGHTTP2_CANCEL);
    } else {
      note_unread(connection, true, kLateCode, options_.late, call->request_id(), call->arrived_ns,
                  find_caller(call->authorization()).get());
      refuse(*call, options_.late_status, options_.late);
    }
  }
  if (connection.calls.empty() && (connection.due_ns <= now || is_draining())) {
    nghttp2_session_terminate_session(session, NGHTTP2_NO_ERROR);
  } else if (is_draining() && !connection.is_going_away) {
    nghttp2_submit_goaway(session, NGHTTP2_FLAG_NONE, nghttp2_session_get_last_proc_stream_id(session),
                          NGHTTP2_NO_ERROR, nullptr, 0);
  } else if (is_retiring() && !connection.is_retired) {
    // A GOAWAY that refuses nothing: calls that are on their way are answered, and the client begins no others here.
    nghttp2_submit_shutdown_notice(session);
  }
  connection.is_retired = connection.is_retired || is_retiring();
  connection.is_going_away = connection.is_going_away || is_draining();
  work(connection);
}

std::int64_t GrpcServer::waits_since(const Connection& given) const {
  const GrpcConnection& connection = of(given);
  if (connection.is_ending) return kNever;
  const bool is_unread = !connection.unsent.empty() && connection.due_ns != kNever;
  std::int64_t since = is_unread ? connection.due_ns - options_.body_timeout_ns : kNever;
  for (const auto& [id, call] : connection.calls) {
    const bool is_unsent = call->state == Call::State::kReading && !call->is_stream;
    if (is_stuck(*call)) {
      since = std::min(since, call->out_since_ns);
    } else if (is_unsent) {
      since = std::min(since, call->arrived_ns);
    }
  }
  return since;
}

// Ends the connection's requests where no session has them.
void GrpcServer::on_finish(Connection& given) {
  GrpcConnection& connection = of(given);
  for (const auto& [id, call] : connection.calls) on_closed(*call);
  connection.calls.clear();
  end_upstream(connection);
}

}  // namespace emberline::front
