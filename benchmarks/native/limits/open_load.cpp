#include "open_load.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <stdexcept>

namespace emberline::limits {

namespace {

constexpr std::size_t kReadBytes = 64 << 10;

double now_s() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

struct Connection {
  int descriptor = -1;
  const std::string* request = nullptr;
  std::size_t written = 0;
  double sent_s = 0;
  std::string answer;
};

class Load {
 public:
  Load(int port, const std::vector<std::string>& requests, int connections) : port_(port), requests_(requests) {
    epoll_ = ::epoll_create1(EPOLL_CLOEXEC);
    connections_.resize(static_cast<std::size_t>(connections));
    for (std::size_t i = 0; i < connections_.size(); ++i) {
      connect(connections_[i]);
      free_.push_back(&connections_[i]);
    }
  }
  ~Load() {
    for (const Connection& connection : connections_) ::close(connection.descriptor);
    ::close(epoll_);
  }
  Load(const Load&) = delete;
  Load& operator=(const Load&) = delete;

  std::vector<Sent> run(double rate, double seconds) {
    began_s_ = now_s();
    const auto most = static_cast<std::size_t>(rate * seconds);
    while (true) {
      const double passed_s = now_s() - began_s_;
      const bool may_send = rate > 0 ? begun_ < most : passed_s < seconds;
      if (!may_send && free_.size() == connections_.size()) return std::move(sent_);
      const auto due = rate > 0 ? std::min(most, static_cast<std::size_t>(passed_s * rate) + 1) : begun_ + free_.size();
      while (may_send && begun_ < due && !free_.empty()) begin();
      const double next_s = static_cast<double>(begun_) / std::max(rate, 1.0) - passed_s;
      const bool is_waiting = may_send && rate > 0 && !free_.empty();
      wait(is_waiting ? std::clamp(static_cast<int>(next_s * 1000), 0, 10) : 10);
    }
  }

 private:
  void connect(Connection& connection) {
    if (connection.descriptor >= 0) ::close(connection.descriptor);
    connection.descriptor = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<std::uint16_t>(port_));
    if (::connect(connection.descriptor, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
      throw std::runtime_error("the server takes no connection");
    }
    const int one = 1;
    ::setsockopt(connection.descriptor, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    epoll_event event{};
    event.events = EPOLLIN | EPOLLOUT | EPOLLET;
    event.data.ptr = &connection;
    ::epoll_ctl(epoll_, EPOLL_CTL_ADD, connection.descriptor, &event);
  }

  void begin() {
    Connection& connection = *free_.back();
    free_.pop_back();
    connection.request = &requests_[begun_++ % requests_.size()];
    connection.written = 0;
    connection.answer.clear();
    connection.sent_s = now_s();
    write(connection);
  }

  static void write(Connection& connection) {
    while (connection.request != nullptr && connection.written < connection.request->size()) {
      const ssize_t did = ::send(connection.descriptor, connection.request->data() + connection.written,
                                 connection.request->size() - connection.written, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (did <= 0) return;  // the end is seen when it is read
      connection.written += static_cast<std::size_t>(did);
    }
  }

  void wait(int most_ms) {
    epoll_event events[256];
    const int count = ::epoll_wait(epoll_, events, 256, most_ms);
    for (int i = 0; i < count; ++i) {
      auto& connection = *static_cast<Connection*>(events[i].data.ptr);
      write(connection);
      read(connection);
    }
  }

  void read(Connection& connection) {
    char piece[kReadBytes];
    while (true) {
      const ssize_t got = ::recv(connection.descriptor, piece, sizeof piece, MSG_DONTWAIT);
      if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
      if (got <= 0) {
        if (connection.request != nullptr) throw std::runtime_error("a connection ended without an answer");
        connect(connection);
        return;
      }
      connection.answer.append(piece, static_cast<std::size_t>(got));
      if (take_answer(connection)) return;
    }
  }

  // Records an answer that is complete, and frees its connection.
  bool take_answer(Connection& connection) {
    std::string& answer = connection.answer;
    const std::size_t head = answer.find("\r\n\r\n");
    if (head == std::string::npos) return false;
    const std::size_t size = std::strtoul(header(answer, head, "content-length").c_str(), nullptr, 10);
    if (answer.size() < head + 4 + size) return false;
    const int status = std::atoi(answer.substr(9, 3).c_str());
    sent_.push_back({connection.sent_s - began_s_, (now_s() - connection.sent_s) * 1000, status});
    const bool closes = header(answer, head, "connection") == "close";
    connection.request = nullptr;
    free_.push_back(&connection);
    if (closes) connect(connection);
    return true;
  }

  static std::string header(const std::string& answer, std::size_t end, const char* name) {
    const std::size_t size = std::char_traits<char>::length(name);
    for (std::size_t at = answer.find("\r\n"); at < end; at = answer.find("\r\n", at + 2)) {
      if (::strncasecmp(answer.data() + at + 2, name, size) != 0 || answer[at + 2 + size] != ':') continue;
      const std::size_t begin = answer.find_first_not_of(' ', at + 3 + size);
      return answer.substr(begin, answer.find("\r\n", begin) - begin);
    }
    return "";
  }

  const int port_;
  const std::vector<std::string>& requests_;
  int epoll_ = -1;
  std::vector<Connection> connections_;
  std::vector<Connection*> free_;
  std::vector<Sent> sent_;
  std::size_t begun_ = 0;
  double began_s_ = 0;
};

}  // namespace

std::vector<Sent> open_load(int port, const std::vector<std::string>& requests, double rate, double seconds,
                            int connections) {
  if (requests.empty() || connections < 1) throw std::runtime_error("there is nothing to send, or no way to send it");
  return Load(port, requests, connections).run(rate, seconds);
}

}  // namespace emberline::limits
