#include "server.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <system_error>
#include <utility>

#include "http_head.h"

namespace emberline::front {

namespace {

constexpr std::int64_t kNever = INT64_MAX;
constexpr std::int64_t kTickNs = 250'000'000;
// How often deadlines of waiting requests are checked.
constexpr std::int64_t kDeadlineTickNs = 2'000'000;
constexpr std::size_t kReadBytes = 256 << 10;
// A response of fewer bytes is not compressed.
constexpr std::size_t kLeastCompressedBytes = 1024;
// A connection with so many requests that had to be handed over stays with the Python path.
constexpr int kMostDeclined = 3;
constexpr int kAcceptedAtOnce = 64;
// What is done for one connection before others have their turn.
constexpr int kStepsAtOnce = 64;
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

struct Server::Connection {
  enum class State {
    kReading,  // a request arrives, or the next one is awaited
    kWaiting,  // the request is in a queue, or a session has it
    kAway,     // the Python path serves it
    kEnding,   // the last response is being sent; what still arrives is dropped
  };

  std::uint64_t ticket = 0;
  int descriptor = -1;
  std::string address;
  State state = State::kReading;
  // Bytes that were read and belong to no request yet.
  std::string buffer;
  // Bytes of the response that are not sent yet.
  std::string unsent;
  std::size_t held = 0;
  // When it has waited for too long, and since when it has been idle.
  std::int64_t due_ns = kNever, idle_since_ns = 0;
  // There may be bytes to read; the client has ended its side.
  bool is_readable = false, is_half_closed = false;
  // Bytes that the request in the buffer has, where its head is complete; whether it cannot be read before more arrive.
  std::size_t wanted = 0;
  bool needs_more = false;
  int declined = 0;
  std::shared_ptr<InferRequest> request;
  std::shared_ptr<Queue> queue;
};

Mailbox::Mailbox() : wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (wake_ < 0) fail("eventfd");
}

Mailbox::~Mailbox() { ::close(wake_); }

void Mailbox::post(std::vector<Letter> letters) {
  if (letters.empty()) return;
  bool was_empty = false;
  {
    const std::lock_guard lock(mutex_);
    was_empty = letters_.empty();
    std::move(letters.begin(), letters.end(), std::back_inserter(letters_));
  }
  if (was_empty) wake();
}

std::vector<Mailbox::Letter> Mailbox::take() {
  const std::lock_guard lock(mutex_);
  return std::exchange(letters_, {});
}

void Mailbox::wake() { write_event(wake_); }

bool have_same_layout(const InferRequest& a, const InferRequest& b) {
  return a.model == b.model &&
         std::equal(a.columns.begin(), a.columns.end(), b.columns.begin(), b.columns.end(),
                    [](const ColumnPart& x, const ColumnPart& y) { return x.place == y.place && x.dtype == y.dtype; });
}

std::int64_t RequestBatch::rows() const {
  std::int64_t rows = 0;
  for (const auto& request : requests_) rows += request->rows;
  return rows;
}

std::size_t RequestBatch::column_bytes(std::size_t column) const {
  std::size_t bytes = 0;
  for (const auto& request : requests_) bytes += request->columns.at(column).size;
  return bytes;
}

void RequestBatch::join(std::size_t column, char* out) const {
  for (const auto& request : requests_) {
    const ColumnPart& part = request->columns.at(column);
    std::memcpy(out, request->bytes.data() + part.offset, part.size);
    out += part.size;
  }
}

void RequestBatch::respond(const std::vector<const char*>& outputs, std::string_view version,
                           std::string_view parameters) const {
  const std::string date = date_line();
  std::vector<Mailbox::Letter> letters;
  letters.reserve(requests_.size());
  std::vector<const char*> rows = outputs;
  for (const auto& request : requests_) {
    Mailbox::Letter& letter =
        letters.emplace_back(Mailbox::Letter{Mailbox::Letter::Kind::kRespond, request->ticket, "", nullptr});
    request->model->write(letter.bytes, *request, rows, version, parameters, date,
                          request->mailbox->is_draining.load());
    for (std::size_t i = 0; i < rows.size(); ++i) rows[i] += request->model->outputs()[i].row_bytes * request->rows;
  }
  requests_.front()->mailbox->post(std::move(letters));
}

void RequestBatch::hand_over() const { post(Mailbox::Letter::Kind::kHandOver); }

void RequestBatch::expire() const { post(Mailbox::Letter::Kind::kExpire); }

void RequestBatch::post(Mailbox::Letter::Kind kind) const {
  std::vector<Mailbox::Letter> letters;
  for (const auto& request : requests_) letters.push_back({kind, request->ticket, "", request});
  requests_.front()->mailbox->post(std::move(letters));
}

std::string date_line() {
  static std::mutex mutex;
  static std::time_t made = -1;
  static std::string line;
  const std::time_t now = std::time(nullptr);
  const std::lock_guard lock(mutex);
  if (now != made) {
    std::tm parts{};
    ::gmtime_r(&now, &parts);
    static constexpr const char* kDays[] = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
    static constexpr const char* kMonths[] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                              "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
    char text[64];
    std::snprintf(text, sizeof text, "date: %s, %02d %s %04d %02d:%02d:%02d GMT\r\n", kDays[parts.tm_wday],
                  parts.tm_mday, kMonths[parts.tm_mon], parts.tm_year + 1900, parts.tm_hour, parts.tm_min,
                  parts.tm_sec);
    line = text;
    made = now;
  }
  return line;
}

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

void Server::route(const std::string& path, std::shared_ptr<const Model> model) {
  const std::lock_guard lock(mutex_);
  if (model == nullptr) {
    routes_.erase(path);
  } else {
    routes_[path] = std::move(model);
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
      pass_on(*connection, letter.request->bytes + connection->buffer);
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

bool Server::hold(Connection& connection, std::size_t bytes) {
  if (held_ + static_cast<std::int64_t>(bytes) > options_.max_inflight_bytes) {
    refuse(connection, options_.overloaded_status, options_.too_many_bytes, true);
    return false;
  }
  held_ += static_cast<std::int64_t>(bytes);
  connection.held += bytes;
  return true;
}

// Stops counting what the request held; bytes after it stay counted.
void Server::release(Connection& connection) {
  const std::size_t left = connection.buffer.size();
  held_ -= static_cast<std::int64_t>(connection.held - std::min(connection.held, left));
  connection.held = std::min(connection.held, left);
  connection.request.reset();
  connection.queue.reset();
  if (connection.state == Connection::State::kWaiting) connection.state = Connection::State::kReading;
}

// Goes on with a connection until it has to wait: for the client, or for a session. It may be gone then.
void Server::work(Connection& connection) {
  const std::uint64_t ticket = connection.ticket;
  for (int step = 0; step < kStepsAtOnce; ++step) {
    Step next = Step::kWait;
    if (!connection.unsent.empty()) {
      next = flush(connection);
    } else if (connection.state == Connection::State::kReading && !connection.buffer.empty() &&
               !connection.needs_more) {
      next = advance(connection);
    } else if (connection.is_readable &&
               (connection.state == Connection::State::kReading || connection.state == Connection::State::kEnding)) {
      next = read_some(connection);
    }
    if (next != Step::kGoOn) return;
  }
  unfinished_.push_back(ticket);  // others have their turn first
}

Server::Step Server::read_some(Connection& connection) {
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
  if (connection.state == Connection::State::kEnding) return Step::kGoOn;
  if (!hold(connection, size)) return Step::kGoOn;
  if (connection.buffer.empty()) connection.due_ns = now_ns() + options_.body_timeout_ns;
  connection.buffer.append(scratch_.data(), size);
  connection.needs_more = connection.buffer.size() < connection.wanted;
  return Step::kGoOn;
}

// Takes the next request of what was read, when all of it is here.
Server::Step Server::advance(Connection& connection) {
  InferHead head;
  const HeadState state = read_head(connection.buffer, head);
  connection.needs_more = state == HeadState::kIncomplete;
  if (state == HeadState::kIncomplete) return Step::kGoOn;
  std::shared_ptr<const Model> model;
  if (state == HeadState::kInference && head.content_length <= options_.max_body_bytes) {
    const std::lock_guard lock(mutex_);
    const auto found = routes_.find(std::string(head.path));
    if (found != routes_.end()) model = found->second;
  }
  if (model == nullptr) return pass_on(connection, std::move(connection.buffer));
  connection.wanted = head.size + static_cast<std::size_t>(head.content_length);
  connection.needs_more = connection.buffer.size() < connection.wanted;
  if (connection.needs_more) return Step::kGoOn;
  connection.wanted = 0;
  return begin_request(connection, head, std::move(model));
}

Server::Step Server::begin_request(Connection& connection, const InferHead& head, std::shared_ptr<const Model> model) {
  const std::size_t body = head.size, whole = body + static_cast<std::size_t>(head.content_length);
  const std::int64_t json_length = head.json_length;
  const bool accepts_encoding = head.accepts_encoding;
  auto request = std::make_shared<InferRequest>();
  std::string rest = connection.buffer.substr(whole);
  connection.buffer.resize(whole);
  request->bytes = std::move(connection.buffer);  // the head's views end here
  connection.buffer = std::move(rest);
  request->mailbox = mailbox_;
  request->ticket = connection.ticket;
  request->arrived_ns = now_ns();
  request->model = model;
  const auto queues = model->queues();
  if (queues->all.size() != 1 || !model->read(*request, body, json_length) ||
      (accepts_encoding && model->answer_bytes(*request) >= kLeastCompressedBytes)) {
    ++connection.declined;
    return pass_on(connection, request->bytes + connection.buffer);
  }
  const auto& queue = queues->all.front();
  Refusal refusal = queue->put(request);
  if (refusal.is_closed) {
    return pass_on(connection, request->bytes + connection.buffer);
  }
  if (refusal) {
    missed(*request, Missed::Why::kOverloaded);
    refuse(connection, options_.overloaded_status, refusal.overloaded, false);
    return Step::kGoOn;
  }
  in_flight_.fetch_add(1, std::memory_order_relaxed);
  connection.queue = queue;
  connection.state = Connection::State::kWaiting;
  connection.due_ns = kNever;
  if (request->deadline_ns != 0) deadlines_.push_back(request);
  connection.request = std::move(request);
  return Step::kWait;
}

// Lets a response with an error be sent instead of the request's. ends: it is the last one of the connection.
void Server::refuse(Connection& connection, std::string_view status, std::string_view text, bool ends) {
  release(connection);
  const std::string content = "{\"error\":\"" + escaped(text) + "\"}";
  std::string response(status);
  response.append(date_line()).append("content-length: ").append(std::to_string(content.size()));
  response.append("\r\ncontent-type: application/json\r\n");
  if (ends || mailbox_->is_draining.load(std::memory_order_relaxed)) response.append("connection: close\r\n");
  response.append("\r\n").append(content);
  connection.unsent = std::move(response);
  if (!ends) return;
  connection.state = Connection::State::kEnding;
  drop(connection);
  connection.is_readable = true;
}

// Drops the bytes that were read.
void Server::drop(Connection& connection) {
  held_ -= static_cast<std::int64_t>(connection.held);
  connection.held = 0;
  connection.buffer.clear();
  connection.wanted = 0;
  connection.needs_more = false;
}

Server::Step Server::flush(Connection& connection) {
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
  if (connection.state == Connection::State::kEnding) {
    // Closing now would lose the answer for a client that still sends, so it may send on for a while.
    ::shutdown(connection.descriptor, SHUT_WR);
    connection.due_ns = now + options_.linger_ns;
    return Step::kGoOn;
  }
  if (mailbox_->is_draining.load(std::memory_order_relaxed)) {
    finish(connection);
    return Step::kGone;
  }
  connection.idle_since_ns = now;
  connection.due_ns = now + (connection.buffer.empty() ? options_.keep_alive_ns : options_.body_timeout_ns);
  return Step::kGoOn;
}

// Hands the connection to the Python path, with the bytes from the beginning of a request on.
Server::Step Server::pass_on(Connection& connection, std::string bytes) {
  const int copy = ::fcntl(connection.descriptor, F_DUPFD_CLOEXEC, 0);
  if (copy < 0) {
    finish(connection);
    return Step::kGone;
  }
  release(connection);
  drop(connection);
  passed_on_.fetch_add(1, std::memory_order_relaxed);
  connection.state = Connection::State::kAway;
  connection.due_ns = kNever;
  ::epoll_ctl(epoll_, EPOLL_CTL_DEL, connection.descriptor, nullptr);
  bool was_empty = false;
  {
    const std::lock_guard lock(mutex_);
    was_empty = handed_over_.empty();
    handed_over_.push_back({copy, connection.ticket, std::move(bytes), connection.declined < kMostDeclined});
  }
  if (was_empty) wake_python();
  return Step::kWait;
}

// Ends a connection at once, and its request where no session has it.
void Server::finish(Connection& connection) {
  if (connection.request != nullptr && connection.queue->discard(connection.request.get())) {
    in_flight_.fetch_sub(1, std::memory_order_relaxed);
    missed(*connection.request, Missed::Why::kCancelled);
  }
  held_ -= static_cast<std::int64_t>(connection.held);
  ::close(connection.descriptor);
  const auto count = by_address_.find(connection.address);
  if (count != by_address_.end() && --count->second == 0) by_address_.erase(count);
  open_.fetch_sub(1, std::memory_order_relaxed);
  connections_.erase(connection.ticket);
}

}  // namespace emberline::front
