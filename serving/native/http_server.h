// Serves HTTP connections without Python: ordinary inference requests are read, queued and answered here. A connection
// with any other request is handed to the Python path, as a descriptor and the bytes that were read, and may come back
// when its next request is an ordinary one again.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "server.h"

namespace emberline::front {

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

class HttpServer : public Server {
 public:
  // See Server.
  HttpServer(ServerOptions options, std::shared_ptr<const Routes> routes, int listener, int wake_python);
  ~HttpServer() override;

  std::vector<HandedOver> take_handed_over();
  // Takes a connection back, with the bytes that the Python path has read of its next request.
  void give_back(std::uint64_t ticket, std::string bytes);
  // Ends a connection that was handed over.
  void closed(std::uint64_t ticket);

 private:
  struct HttpConnection;
  static HttpConnection& of(Connection& connection);
  static const HttpConnection& of(const Connection& connection);

  std::unique_ptr<Connection> make_connection() override;
  void begin(Connection& connection, const std::string* refusal) override;
  void on_events(Connection& connection, std::uint32_t events, bool of_second) override;
  void work(Connection& connection) override;
  void read_letter(Connection& connection, Mailbox::Letter& letter) override;
  bool expire(Connection& connection, const std::shared_ptr<InferRequest>& request, std::int64_t now) override;
  bool is_idle(const Connection& connection) const override;
  bool is_due(const Connection& connection, std::int64_t now, bool drains) const override;
  void on_due(Connection& connection) override;
  std::int64_t waits_since(const Connection& connection) const override;
  void on_finish(Connection& connection) override;

  // What follows a step: the next one, or waiting; or the connection has ended.
  enum class Step { kGoOn, kWait, kGone };

  Step read_some(HttpConnection& connection);
  Step advance(HttpConnection& connection);
  Step begin_request(HttpConnection& connection, const struct InferHead& head, const Route& route);
  Step flush(HttpConnection& connection);
  Step pass_on(HttpConnection& connection, std::string bytes);
  void refuse(HttpConnection& connection, std::string_view status, std::string_view text, bool ends,
              std::string_view request_id = {});
  bool hold(HttpConnection& connection, std::size_t bytes);
  void release(HttpConnection& connection);
  void drop(HttpConnection& connection);

  std::vector<HandedOver> handed_over_;
};

}  // namespace emberline::front
