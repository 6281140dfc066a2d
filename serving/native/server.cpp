#include "server.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "connection.h"

namespace emberline::front {

namespace {

constexpr std::int64_t kTickNs = 250'000'000;
// How often deadlines of waiting requests are checked.
constexpr std::int64_t kDeadlineTickNs = 2'000'000;
constexpr std::size_t kReadBytes = 256 << 10;
constexpr int kAcceptedAtOnce = 64;
constexpr std::uint64_t kListenerTicket = 0;

[[noreturn]] void fail(const char* what) { throw std::system_error(errno, std::generic_category(), what); }

void write_event(int descriptor) {
  const std::uint64_t one = 1;
  // It cannot fail but by being full, which wakes as well.
  [[maybe_unused]] const ssize_t written = ::write(descriptor, &one, sizeof one);
}

void read_event(int descriptor) {
  std::uint64_t value = 0;
  [[maybe_unused]] const ssize_t got = ::read(descriptor, &value, sizeof value);
}

// The key of one client: an address; of IPv6 the network that one household or machine is given.
std::string client_of(const sockaddr_storage& peer) {
  if (peer.ss_family == AF_INET) {
    const auto& address = reinterpret_cast<const sockaddr_in&>(peer).sin_addr;
    return {reinterpret_cast<const char*>(&address), sizeof address};
  }
  if (peer.ss_family != AF_INET6) return "";
  const auto& address = reinterpret_cast<const sockaddr_in6&>(peer).sin6_addr;
  const char* bytes = reinterpret_cast<const char*>(&address);
  if (IN6_IS_ADDR_V4MAPPED(&address)) return {bytes + 12, 4};
  return {bytes, 8};
}

}  // namespace

Server::Server(ServerOptions options, int listener, int wake_python)
    : options_(std::move(options)), wake_python_(wake_python), listener_(::fcntl(listener, F_DUPFD_CLOEXEC, 0)) {
  if (listener_ < 0) fail("listener");
  epoll_ = ::epoll_create1(EPOLL_CLOEXEC);
  if (epoll_ < 0) fail("epoll");
  ::fcntl(listener_, F_SETFL, ::fcntl(listener_, F_GETFL) | O_NONBLOCK);
  for (const int descriptor : {listener_, mailbox_->descriptor()}) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u64 = descriptor == listener_ ? kListenerTicket : UINT64_MAX;
    if (::epoll_ctl(epoll_, EPOLL_CTL_ADD, descriptor, &event) != 0) fail("epoll_ctl");
  }
  scratch_.resize(kReadBytes);
  thread_ = std::thread([this] { run(); });
}

void Server::stop() {
  is_stopping_.store(true);
  mailbox_->wake();
  if (thread_.joinable()) thread_.join();
}

Server::~Server() {
  stop();
  for (auto& [ticket, connection] : connections_) ::close(connection->descriptor);
  for (const HandedOver& each : handed_over_) ::close(each.descriptor);
  for (const int descriptor : {epoll_, listener_}) {
    if (descriptor >= 0) ::close(descriptor);
  }
}

// From any thread.

void Server::route(const std::string& path, std::shared_ptr<const Route> route) {
  const std::lock_guard lock(mutex_);
  if (route == nullptr) {
    routes_.erase(path);
  } else {
    routes_[path] = std::move(route);
  }
}

std::vector<HandedOver> Server::take_handed_over() {
  const std::lock_guard lock(mutex_);
  return std::exchange(handed_over_, {});
}

std::vector<Missed> Server::take_missed() {
  const std::lock_guard lock(mutex_);
  return std::exchange(missed_, {});
}

void Server::give_back(std::uint64_t ticket, std::string bytes) {
  std::vector<Mailbox::Letter> letters;
  letters.push_back({Mailbox::Letter::Kind::kGiveBack, ticket, std::move(bytes), nullptr});
  mailbox_->post(std::move(letters));
}

void Server::closed(std::uint64_t ticket) { mailbox_->post({{Mailbox::Letter::Kind::kClosed, ticket, "", nullptr}}); }

void Server::drain() {
  mailbox_->is_draining.store(true);
  mailbox_->wake();
}

void Server::wake_python() { write_event(wake_python_); }

void Server::missed(const InferRequest& request, Missed::Why why) {
  bool was_empty = false;
  {
    const std::lock_guard lock(mutex_);
    was_empty = missed_.empty();
    missed_.push_back({request.model, request.canary, now_ns() - request.arrived_ns, why});
  }
  if (was_empty) wake_python();
}

// On the thread.

void Server::run() {
  epoll_event events[256];
  while (!is_stopping_.load(std::memory_order_relaxed)) {
    const int count = ::epoll_wait(epoll_, events, 256, timeout_ms(now_ns()));
    for (int i = 0; i < count; ++i) {
      const std::uint64_t ticket = events[i].data.u64;
      if (ticket == kListenerTicket) {
        accept_all();
        continue;
      }
      if (ticket == UINT64_MAX) {
        read_event(mailbox_->descriptor());
        continue;
      }
      Connection* connection = find(ticket);
      if (connection == nullptr) continue;
      const std::uint32_t what = events[i].events;
      if ((what & (EPOLLERR | EPOLLHUP)) != 0) {
        finish(*connection);
        continue;
      }
      connection->is_half_closed = connection->is_half_closed || (what & EPOLLRDHUP) != 0;
      connection->is_readable = connection->is_readable || (what & (EPOLLIN | EPOLLRDHUP)) != 0;
      if (connection->state == Connection::State::kWaiting && connection->is_half_closed) {
        finish(*connection);
      } else {
        work(*connection);
      }
    }
    for (std::size_t left = unfinished_.size(); left > 0; --left) {
      Connection* connection = find(unfinished_.front());
      unfinished_.pop_front();
      if (connection != nullptr) work(*connection);
    }
    for (Mailbox::Letter& letter : mailbox_->take()) read_mail(letter);
    const std::int64_t now = now_ns();
    if (!deadlines_.empty() && now >= next_deadlines_ns_) check_deadlines(now);
    if (now >= next_tick_ns_) tick(now);
    if (mailbox_->is_draining.load(std::memory_order_relaxed) && listener_ >= 0) {
      ::close(listener_);
      listener_ = -1;
      tick(now);
    }
  }
}

int Server::timeout_ms(std::int64_t now) const {
  if (!unfinished_.empty()) return 0;
  if (!deadlines_.empty()) return static_cast<int>(kDeadlineTickNs / 1'000'000);
  if (connections_.empty() && is_listening_) return -1;
  return static_cast<int>(std::clamp<std::int64_t>((next_tick_ns_ - now) / 1'000'000 + 1, 1, kTickNs / 1'000'000));
}

Server::Connection* Server::find(std::uint64_t ticket) {
  const auto found = connections_.find(ticket);
  return found == connections_.end() ? nullptr : found->second.get();
}

void Server::accept_all() {
  for (int i = 0; i < kAcceptedAtOnce; ++i) {
    sockaddr_storage peer{};
    socklen_t size = sizeof peer;
    const int descriptor =
        ::accept4(listener_, reinterpret_cast<sockaddr*>(&peer), &size, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (descriptor < 0) {
      // Without a file to give up, connections wait in the listening socket until the next tick.
      if ((errno == EMFILE || errno == ENFILE) && !make_room("", false)) listen_for(false);
      return;
    }
    const int one = 1;
    ::setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    auto made = std::make_unique<Connection>();
    Connection& connection = *made;
    connection.ticket = next_ticket_++;
    connection.descriptor = descriptor;
    connection.address = client_of(peer);
    connection.idle_since_ns = now_ns();
    connection.due_ns = connection.idle_since_ns + options_.keep_alive_ns;
    const bool of_address = by_address_[connection.address] >= options_.connections_per_address;
    const bool is_full = static_cast<std::int64_t>(connections_.size()) >= options_.max_connections ||
                         descriptor >= options_.last_descriptor;
    const bool has_room = (!of_address || make_room(connection.address, true)) && (!is_full || make_room("", false));
    ++by_address_[connection.address];
    connections_.emplace(connection.ticket, std::move(made));
    open_.fetch_add(1, std::memory_order_relaxed);
    watch(connection, EPOLL_CTL_ADD);
    if (!has_room) {
      refuse(connection, options_.overloaded_status,
             of_address ? options_.too_many_of_address : options_.too_many_connections, true);
      work(connection);
    }
  }
}

void Server::listen_for(bool is_wanted) {
  if (listener_ < 0) return;
  is_listening_ = is_wanted;
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = kListenerTicket;
  ::epoll_ctl(epoll_, is_wanted ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, listener_, &event);
}

// Ends connections that have been idle for longest, several at a time: finding them means looking at all.
bool Server::make_room(const std::string& address, bool of_address) {
  std::vector<Connection*> idle;
  for (const auto& [ticket, connection] : connections_) {
    if (connection->state == Connection::State::kReading && connection->unsent.empty() && connection->wanted == 0 &&
        (!of_address || connection->address == address)) {
      idle.push_back(connection.get());
    }
  }
  if (idle.empty()) return false;
  const std::int64_t bound = of_address ? options_.connections_per_address : options_.max_connections;
  const auto count = std::min(idle.size(), static_cast<std::size_t>(std::max<std::int64_t>(1, bound / 64)));
  std::partial_sort(idle.begin(), idle.begin() + static_cast<std::ptrdiff_t>(count), idle.end(),
                    [](const Connection* a, const Connection* b) { return a->idle_since_ns < b->idle_since_ns; });
  for (std::size_t i = 0; i < count; ++i) finish(*idle[i]);
  return true;
}

void Server::watch(Connection& connection, std::uint32_t operation) {
  epoll_event event{};
  event.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;
  event.data.u64 = connection.ticket;
  ::epoll_ctl(epoll_, static_cast<int>(operation), connection.descriptor, &event);
}

void Server::read_mail(Mailbox::Letter& letter) {
  const bool is_answer = letter.kind == Mailbox::Letter::Kind::kRespond ||
                         letter.kind == Mailbox::Letter::Kind::kHandOver ||
                         letter.kind == Mailbox::Letter::Kind::kExpire;
  if (is_answer) in_flight_.fetch_sub(1, std::memory_order_relaxed);
  if (letter.kind == Mailbox::Letter::Kind::kExpire) missed(*letter.request, Missed::Why::kExpired);
  Connection* connection = find(letter.ticket);
  if (connection == nullptr) return;
  switch (letter.kind) {
    case Mailbox::Letter::Kind::kRespond:
      answered_.fetch_add(1, std::memory_order_relaxed);
      release(*connection);
      connection->unsent = std::move(letter.bytes);
      work(*connection);
      break;
    case Mailbox::Letter::Kind::kExpire:
      refuse(*connection, options_.expired_status, options_.expired, false);
      work(*connection);
      break;
    case Mailbox::Letter::Kind::kHandOver:
      release(*connection);
      ++connection->declined;
      if (pass_on(*connection, letter.request->bytes + connection->buffer) == Step::kGoOn) work(*connection);
      break;
    case Mailbox::Letter::Kind::kGiveBack:
      connection->state = Connection::State::kReading;
      connection->is_readable = true;
      connection->due_ns = now_ns() + options_.body_timeout_ns;
      watch(*connection, EPOLL_CTL_ADD);
      if (hold(*connection, letter.bytes.size())) connection->buffer = std::move(letter.bytes);
      work(*connection);
      break;
    case Mailbox::Letter::Kind::kClosed: finish(*connection); break;
  }
}

void Server::check_deadlines(std::int64_t now) {
  next_deadlines_ns_ = now + kDeadlineTickNs;
  for (std::size_t left = deadlines_.size(); left > 0; --left) {
    const std::weak_ptr<InferRequest> entry = std::move(deadlines_.front());
    deadlines_.pop_front();
    const auto request = entry.lock();
    Connection* connection = request == nullptr ? nullptr : find(request->ticket);
    if (connection == nullptr || connection->request != request) continue;
    if (request->deadline_ns > now) {
      deadlines_.push_back(entry);
    } else if (connection->queue->discard(connection->request.get())) {
      in_flight_.fetch_sub(1, std::memory_order_relaxed);
      missed(*connection->request, Missed::Why::kExpired);
      refuse(*connection, options_.expired_status, options_.expired, false);
      work(*connection);
    }  // else a session has it, and answers it
  }
}

void Server::tick(std::int64_t now) {
  next_tick_ns_ = now + kTickNs;
  if (!is_listening_) listen_for(true);
  const bool drains = mailbox_->is_draining.load(std::memory_order_relaxed);
  std::vector<std::uint64_t> due;
  for (const auto& [ticket, connection] : connections_) {
    const bool is_idle =
        connection->state == Connection::State::kReading && connection->buffer.empty() && connection->unsent.empty();
    if (connection->due_ns <= now || (drains && is_idle)) due.push_back(ticket);
  }
  for (const std::uint64_t ticket : due) {
    Connection& connection = *find(ticket);
    if (connection.state == Connection::State::kReading && !connection.buffer.empty() && connection.unsent.empty()) {
      refuse(connection, options_.late_status, options_.late, true);
      work(connection);
    } else {
      finish(connection);
    }
  }
}

}  // namespace emberline::front
