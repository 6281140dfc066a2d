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

namespace emberline::front {

namespace {

constexpr std::int64_t kTickNs = 250'000'000;
// A client that is waited for longer than this is stuck; shorter where the time for a body is.
constexpr std::int64_t kStuckNs = 5'000'000'000;
// How often deadlines of waiting requests are checked.
constexpr std::int64_t kDeadlineTickNs = 2'000'000;
constexpr std::size_t kReadBytes = 256 << 10;
constexpr int kAcceptedAtOnce = 64;
// Keys of epoll: a ticket and one bit, or one of these.
constexpr std::uint64_t kListenerKey = 0, kMailboxKey = 1;

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

std::string text_of(const sockaddr_storage& peer) {
  char text[INET6_ADDRSTRLEN] = "";
  if (peer.ss_family == AF_INET) {
    ::inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in&>(peer).sin_addr, text, sizeof text);
  } else if (peer.ss_family == AF_INET6) {
    ::inet_ntop(AF_INET6, &reinterpret_cast<const sockaddr_in6&>(peer).sin6_addr, text, sizeof text);
  }
  return text;
}

// What a client gets for a request that no session answered: the status of HTTP, and of gRPC. 499 is what other
// servers log where the client has left.
constexpr int kMissedStatus[3][2] = {{504, 4}, {499, 1}, {503, 8}};

// A key of `client_of` as people write it.
std::string client_text(const std::string& key) {
  char text[INET6_ADDRSTRLEN] = "";
  if (key.size() == 4) ::inet_ntop(AF_INET, key.data(), text, sizeof text);
  if (key.size() != 8) return text;
  in6_addr network{};
  std::copy(key.begin(), key.end(), reinterpret_cast<char*>(&network));
  ::inet_ntop(AF_INET6, &network, text, sizeof text);
  return std::string(text) + "/64";
}

}  // namespace

Server::Server(ServerOptions options, std::shared_ptr<const Routes> routes, int listener, int wake_python)
    : options_(std::move(options)),
      routes_(std::move(routes)),
      wake_python_(wake_python),
      listener_(::fcntl(listener, F_DUPFD_CLOEXEC, 0)) {
  mailbox_->observer = options_.observer;
  if (listener_ < 0) fail("listener");
  epoll_ = ::epoll_create1(EPOLL_CLOEXEC);
  if (epoll_ < 0) fail("epoll");
  ::fcntl(listener_, F_SETFL, ::fcntl(listener_, F_GETFL) | O_NONBLOCK);
  for (const int descriptor : {listener_, mailbox_->descriptor()}) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u64 = descriptor == listener_ ? kListenerKey : kMailboxKey;
    if (::epoll_ctl(epoll_, EPOLL_CTL_ADD, descriptor, &event) != 0) fail("epoll_ctl");
  }
  scratch_.resize(kReadBytes);
}

void Server::start() {
  thread_ = std::thread([this] { run(); });
}

void Server::stop() {
  is_stopping_.store(true);
  mailbox_->wake();
  if (thread_.joinable()) thread_.join();
}

Server::~Server() {
  for (auto& [ticket, connection] : connections_) ::close(connection->descriptor);
  for (const int descriptor : {epoll_, listener_}) {
    if (descriptor >= 0) ::close(descriptor);
  }
}

// From any thread.

std::vector<Missed> Server::take_missed() {
  const std::lock_guard lock(mutex_);
  return std::exchange(missed_, {});
}

std::vector<std::pair<std::string, std::int64_t>> Server::stuck() const {
  std::vector<std::pair<std::string, std::int64_t>> found;
  if (connections() == 0) return found;  // the thread looks at none then
  const std::lock_guard lock(mutex_);
  for (const auto& [client, count] : stuck_) found.emplace_back(client_text(client), count);
  return found;
}

void Server::retire() {
  mailbox_->is_retiring.store(true);
  mailbox_->wake();
}

void Server::drain() {
  mailbox_->is_retiring.store(true);
  mailbox_->is_draining.store(true);
  mailbox_->wake();
}

// On the thread.

void Server::wake_python() const { write_event(wake_python_); }

std::shared_ptr<const Caller> Server::find_caller(std::optional<std::string_view> authorization) const {
  return options_.callers == nullptr ? nullptr : options_.callers->find(authorization);
}

bool Server::admit(const Connection& connection, std::optional<std::string_view> authorization, std::string_view model,
                   std::shared_ptr<const Caller>& caller) const {
  if (options_.callers == nullptr) return true;
  auto found = find_caller(authorization);
  if (found == nullptr || !found->may_ask(model)) return false;
  if (!options_.callers->take(*found, rate_client(connection, *found))) return false;
  caller = std::move(found);
  return true;
}

void Server::uncount(const Connection& connection, std::shared_ptr<const Caller> caller) const {
  if (caller != nullptr) options_.callers->give_back(*caller, rate_client(connection, *caller));
}

// Whose requests are counted where rates are by address, as serving/security/gate.py names them.
std::string Server::rate_client(const Connection& connection, const Caller& caller) {
  return caller.by_address && caller.rate > 0.0 ? "@" + client_text(connection.address) : std::string();
}

void Server::note_arrival(const Connection& connection, InferRequest& request) const {
  request.queued_ns = now_ns();
  request.address = connection.client;
}

void Server::note_unread(const Connection& connection, bool is_grpc, int status, std::string_view text,
                         std::string_view header_id, std::int64_t since_ns, const Caller* caller,
                         std::string_view model) const {
  if (!is_observed()) return;
  RequestNote note;
  note.is_grpc = is_grpc;
  note.id = note.header_id = header_id;
  note.address = connection.client;
  note.model = model;
  if (caller != nullptr) {
    note.principal = caller->name;
  } else if (options_.callers == nullptr) {
    note.principal = kAnonymous;
  }
  note.status = status;
  note.error = text;
  note.ended_ns = now_ns();
  note.arrived_ns = since_ns == 0 ? note.ended_ns : since_ns;
  mailbox_->observer->note(note);
}

void Server::missed(const InferRequest& request, Missed::Why why, std::string_view text) {
  if (is_observed()) {
    RequestNote note = note_of(request);
    note.status = kMissedStatus[static_cast<int>(why)][note.is_grpc ? 1 : 0];
    note.error = why == Missed::Why::kExpired ? options_.expired : text;
    mailbox_->observer->note(note);
  }
  bool was_empty = false;
  {
    const std::lock_guard lock(mutex_);
    was_empty = missed_.empty();
    missed_.push_back({request.model, request.canary, now_ns() - request.arrived_ns, why});
  }
  if (was_empty) wake_python();
}

void Server::run() {
  epoll_event events[256];
  while (!is_stopping_.load(std::memory_order_relaxed)) {
    const int count = ::epoll_wait(epoll_, events, 256, timeout_ms(now_ns()));
    for (int i = 0; i < count; ++i) on_event(events[i].data.u64, events[i].events);
    for (std::size_t left = unfinished_.size(); left > 0; --left) {
      Connection* connection = find(unfinished_.front());
      unfinished_.pop_front();
      if (connection != nullptr) work(*connection);
    }
    for (Mailbox::Letter& letter : mailbox_->take()) read_mail(letter);
    const std::int64_t now = now_ns();
    if (!deadlines_.empty() && now >= next_deadlines_ns_) check_deadlines(now);
    if (now >= next_tick_ns_) tick(now);
    if (is_draining() && listener_ >= 0) {
      ::close(listener_);
      listener_ = -1;
      tick(now);
    }
  }
}

void Server::on_event(std::uint64_t key, std::uint32_t events) {
  if (key == kListenerKey) {
    accept_all();
  } else if (key == kMailboxKey) {
    read_event(mailbox_->descriptor());
  } else if (Connection* connection = find(key >> 1); connection != nullptr) {
    on_events(*connection, events, (key & 1) != 0);
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
    std::unique_ptr<Connection> made = make_connection();
    Connection& connection = *made;
    connection.ticket = next_ticket_++;
    connection.descriptor = descriptor;
    connection.address = client_of(peer);
    if (options_.observer != nullptr) connection.client = text_of(peer);
    connection.idle_since_ns = now_ns();
    connection.due_ns = connection.idle_since_ns + options_.keep_alive_ns;
    const bool of_address = by_address_[connection.address] >= options_.connections_per_address;
    const bool is_full = static_cast<std::int64_t>(connections_.size()) >= options_.max_connections ||
                         descriptor >= options_.last_descriptor;
    const bool has_room = (!of_address || make_room(connection.address, true)) && (!is_full || make_room("", false));
    ++by_address_[connection.address];
    connections_.emplace(connection.ticket, std::move(made));
    open_.fetch_add(1, std::memory_order_relaxed);
    watch(connection, descriptor, EPOLL_CTL_ADD);
    const std::string& why = of_address ? options_.too_many_of_address : options_.too_many_connections;
    begin(connection, has_room ? nullptr : &why);
  }
}

void Server::listen_for(bool is_wanted) {
  if (listener_ < 0) return;
  is_listening_ = is_wanted;
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = kListenerKey;
  ::epoll_ctl(epoll_, is_wanted ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, listener_, &event);
}

// Ends connections that have been idle for longest, several at a time: finding them means looking at all.
bool Server::make_room(const std::string& address, bool of_address) {
  std::vector<Connection*> idle;
  for (const auto& [ticket, connection] : connections_) {
    if (is_idle(*connection) && (!of_address || connection->address == address)) idle.push_back(connection.get());
  }
  if (idle.empty()) return false;
  const std::int64_t bound = of_address ? options_.connections_per_address : options_.max_connections;
  const auto count = std::min(idle.size(), static_cast<std::size_t>(std::max<std::int64_t>(1, bound / 64)));
  std::partial_sort(idle.begin(), idle.begin() + static_cast<std::ptrdiff_t>(count), idle.end(),
                    [](const Connection* a, const Connection* b) { return a->idle_since_ns < b->idle_since_ns; });
  for (std::size_t i = 0; i < count; ++i) finish(*idle[i]);
  return true;
}

void Server::watch(const Connection& connection, int descriptor, int operation, bool as_second) {
  epoll_event event{};
  event.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;
  event.data.u64 = connection.ticket << 1 | static_cast<std::uint64_t>(as_second);
  ::epoll_ctl(epoll_, operation, descriptor, &event);
}

void Server::read_mail(Mailbox::Letter& letter) {
  const bool is_answer = letter.kind == Mailbox::Letter::Kind::kRespond ||
                         letter.kind == Mailbox::Letter::Kind::kHandOver ||
                         letter.kind == Mailbox::Letter::Kind::kExpire;
  if (is_answer) in_flight_.fetch_sub(1, std::memory_order_relaxed);
  if (letter.kind == Mailbox::Letter::Kind::kExpire) missed(*letter.request, Missed::Why::kExpired);
  Connection* connection = find(letter.ticket);
  if (connection != nullptr) read_letter(*connection, letter);
}

void Server::remember_deadline(const std::shared_ptr<InferRequest>& request) {
  if (request->deadline_ns != 0) deadlines_.push_back(request);
}

void Server::check_deadlines(std::int64_t now) {
  next_deadlines_ns_ = now + kDeadlineTickNs;
  for (std::size_t left = deadlines_.size(); left > 0; --left) {
    const std::weak_ptr<InferRequest> entry = std::move(deadlines_.front());
    deadlines_.pop_front();
    const auto request = entry.lock();
    Connection* connection = request == nullptr ? nullptr : find(request->ticket);
    if (connection != nullptr && expire(*connection, request, now)) deadlines_.push_back(entry);
  }
}

void Server::tick(std::int64_t now) {
  next_tick_ns_ = now + kTickNs;
  if (!is_listening_) listen_for(true);
  const bool drains = is_draining();
  const std::int64_t stuck_before = now - std::min(kStuckNs, options_.body_timeout_ns / 2);
  std::vector<std::uint64_t> due;
  std::map<std::string, std::int64_t> stuck;
  for (const auto& [ticket, connection] : connections_) {
    if (is_due(*connection, now, drains)) due.push_back(ticket);
    if (waits_since(*connection) <= stuck_before) ++stuck[connection->address];
  }
  {
    const std::lock_guard lock(mutex_);
    stuck_ = std::move(stuck);
  }
  for (const std::uint64_t ticket : due) on_due(*find(ticket));
}

void Server::finish(Connection& connection) {
  on_finish(connection);
  ::close(connection.descriptor);
  const auto count = by_address_.find(connection.address);
  if (count != by_address_.end() && --count->second == 0) by_address_.erase(count);
  open_.fetch_sub(1, std::memory_order_relaxed);
  connections_.erase(connection.ticket);
}

}  // namespace emberline::front
