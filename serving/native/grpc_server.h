// Serves gRPC without Python: plain requests of ModelInfer and ModelStreamInfer are read, queued and answered here.
// Every other call, and every other request of a stream, good or bad, is passed on, as it came, to the gRPC server of
// the Python path, which listens on a local socket; what that answers is passed back. So there is one place that judges
// calls, and clients have one connection for all of them.
//
// HTTP/2 is nghttp2's.
#pragma once

#include <string>
#include <string_view>

#include "server.h"

namespace emberline::front {

class HeaderList;

class GrpcServer : public Server {
 public:
  // See Server. upstream: the local socket that the Python path's server listens on: a path, or a name of the abstract
  // namespace after a zero byte. secret: what proves to that server that a call was passed on.
  GrpcServer(ServerOptions options, std::shared_ptr<const Routes> routes, int listener, int wake_python,
             std::string upstream, std::string secret);
  ~GrpcServer() override;

 private:
  struct Call;
  struct Slot;
  struct Forward;
  struct GrpcConnection;
  // The callbacks of nghttp2.
  struct ClientSide;
  struct UpstreamSide;
  static GrpcConnection& of(Connection& connection);
  static const GrpcConnection& of(const Connection& connection);

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

  // Steps of a connection: each returns whether it did something.
  void settle(GrpcConnection& connection, bool moved) const;
  bool read_client(GrpcConnection& connection);
  bool write_client(GrpcConnection& connection);
  bool read_upstream(GrpcConnection& connection);
  bool write_upstream(GrpcConnection& connection);
  bool open_upstream(GrpcConnection& connection);
  void end_upstream(GrpcConnection& connection);

  // Steps of a call.
  void on_head(Call& call);
  void on_data(Call& call, std::string_view bytes);
  void on_client_end(Call& call);
  void on_closed(Call& call);
  void on_sent(Call& call, std::size_t bytes);
  // Whether its client does not send the request, or does not take the response.
  bool is_late(const Call& call, std::int64_t now) const;
  static bool is_stuck(const Call& call);
  void read_messages(Call& call);
  bool read_message(Call& call);
  void forward(Call& call, std::string bytes);
  void refuse(Call& call, std::string_view code, std::string_view text);
  void refuse_bytes(Call& call);
  void fail(Call& call, HeaderList trailers);
  void begin_response(Call& call);
  void flush(Call& call);
  void end_response(Call& call);
  bool hold(Call& call, std::size_t bytes);
  void release(std::size_t& held, std::size_t bytes);

  // Steps of a request.
  void ask(Call& call, std::string message);
  static void take_context(const Call& call, InferRequest& request);
  bool put(Call& call, Slot& slot, std::shared_ptr<InferRequest> request);
  void answer(Call& call, Slot& slot, std::string bytes);
  void refuse_request(Call& call, Slot& slot, const std::string& id, std::string_view code, std::string_view text);
  void forward_request(Call& call, Slot& slot, std::string message);
  void drop(Slot& slot);
  static Slot* find_slot(Call& call, std::uint32_t number);

  // Steps of what is passed on.
  Forward* begin_forward(Call& call, std::string bytes, bool is_ended, bool is_part = false);
  // Settles that bytes have gone to the Python path.
  void passed(Forward& forward, std::size_t bytes);
  // Parts a call from what it is on the Python path. cancels: that is still under way.
  void end_forward(Forward& forward, bool cancels);

  const std::string upstream_, secret_;
};

}  // namespace emberline::front
