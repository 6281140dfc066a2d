// A connection of a gRPC server, its calls, and those that are passed on. Only the server's thread uses them.
#pragma once

#include <nghttp2/nghttp2.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "grpc_server.h"
#include "request_context.h"

namespace emberline::front {

// Says to the Python path which client a call comes from: the secret, and the peer as gRPC writes it.
constexpr std::string_view kClientHeader = "emberline-client";
// Says that a call is one request of a stream whose caller was let in: the secret.
constexpr std::string_view kPartHeader = "emberline-part";

struct SessionDeleter {
  void operator()(nghttp2_session* session) const { nghttp2_session_del(session); }
};
using Session = std::unique_ptr<nghttp2_session, SessionDeleter>;

// Names and values of a head, in one text.
class HeaderList {
 public:
  void add(std::string_view name, std::string_view value) {
    parts_.push_back({static_cast<std::uint32_t>(name.size()), static_cast<std::uint32_t>(value.size())});
    text_.append(name).append(value);
  }
  // Views this.
  std::vector<nghttp2_nv> view() const;
  std::size_t bytes() const { return text_.size() + 32 * parts_.size(); }
  // The value of a name, empty where it has none.
  std::string_view value(std::string_view name) const;
  bool is_empty() const { return parts_.empty(); }
  void clear() {
    text_.clear();
    parts_.clear();
  }

 private:
  std::string text_;
  std::vector<std::pair<std::uint32_t, std::uint32_t>> parts_;
};

// Bytes that wait for the flow control of the side they go to.
struct Pipe {
  std::string bytes;
  std::size_t sent = 0;
  // Of the first bytes, how many their sender need not be told about: flow control has been settled for them.
  std::size_t settled = 0;
  // No more bytes follow.
  bool is_ended = false;
  // nghttp2 waits to be told that there is something again.
  bool is_deferred = false;

  std::size_t left() const { return bytes.size() - sent; }
  void add(std::string_view more) { bytes.append(more); }
  // Moves at most `size` bytes to `out`, and returns how many.
  std::size_t take(std::uint8_t* out, std::size_t size);
  // Of so many bytes that were taken, returns how many their sender is to be told about.
  std::size_t unsettled(std::size_t taken);
};

// A call that is passed on, as the connection to the Python path knows it. It lives until that side has closed it.
struct GrpcServer::Forward {
  GrpcConnection* connection = nullptr;
  // Null when the client's side has ended.
  Call* call = nullptr;
  // The request of a stream that this is for; null where it is a whole call.
  Slot* slot = nullptr;
  std::int32_t id = 0;
  Pipe to_upstream;
  // The head of the response, then its trailers.
  HeaderList head;
};

// One request of a call, and its answer.
struct GrpcServer::Slot {
  std::uint32_t number = 0;
  // Waits in a queue, or a session has it.
  std::shared_ptr<InferRequest> request;
  std::shared_ptr<Queue> queue;
  // The Python path has it.
  Forward* forward = nullptr;
  // Bytes of the request, while these count as being in flight.
  std::size_t held = 0;
  // The answer, with its prefix.
  std::string answer;
  bool is_answered = false;
};

struct GrpcServer::Call {
  enum class State {
    kReading,    // requests arrive
    kWaiting,    // those that have arrived are all; they are being answered
    kForwarded,  // the Python path has the call
    kAnswering,  // the end of the response is being sent
  };

  GrpcConnection* connection = nullptr;
  std::int32_t id = 0;
  State state = State::kReading;
  // The request's head as it came.
  HeaderList head;
  // Whether it is a plain call of ModelInfer or of ModelStreamInfer; whether the client has ended its side.
  bool is_infer = true, is_stream = false, is_ended = false, has_path = false, has_content_type = false;
  // Whether its head has an id that can be echoed, and a trace.
  bool has_request_id = false, has_traceparent = false, has_authorization = false;
  std::int64_t timeout_ns = 0, arrived_ns = 0;
  std::optional<std::string_view> authorization() const {
    return has_authorization ? std::optional(head.value("authorization")) : std::nullopt;
  }
  std::string_view request_id() const { return has_request_id ? head.value(kRequestIdHeader) : std::string_view(); }
  // Messages, with their prefixes, and how many of the first bytes have become requests.
  std::string body;
  std::size_t taken = 0;
  // Bytes of it that flow control gives back to the client only when there is room for further requests.
  std::size_t untold = 0;
  // Bytes that count as being in flight, without those of slots.
  std::size_t held = 0;
  // Requests in the order in which they came, of which the first is answered first.
  std::deque<std::unique_ptr<Slot>> slots;
  std::uint32_t next_number = 0;
  // Where the Python path has it: the call there, null once it has been closed, and its id.
  Forward* forward = nullptr;
  std::int32_t upstream_id = 0;
  bool has_responded = false;
  // The response, its bytes that count as being in flight, and since when none of it could be sent.
  Pipe out;
  std::size_t out_held = 0;
  std::int64_t out_since_ns = 0;
  HeaderList trailers;
};

struct GrpcServer::ClientSide {
  static Session make(GrpcConnection& connection);
  // Lets nghttp2 send what a call has for its client.
  static void resume(Call& call);
  // Begins the response of a call. head: of the response. has_body: the call's bytes and trailers follow.
  static bool respond(Call& call, const HeaderList& head, bool has_body);
  static void reset(Call& call, std::uint32_t code);

  static int on_begin(nghttp2_session* session, const nghttp2_frame* frame, void* user);
  static int on_header(nghttp2_session* session, const nghttp2_frame* frame, const std::uint8_t* name,
                       std::size_t name_size, const std::uint8_t* value, std::size_t value_size, std::uint8_t flags,
                       void* user);
  static int on_frame(nghttp2_session* session, const nghttp2_frame* frame, void* user);
  static int on_data(nghttp2_session* session, std::uint8_t flags, std::int32_t id, const std::uint8_t* data,
                     std::size_t size, void* user);
  static int on_sent(nghttp2_session* session, const nghttp2_frame* frame, void* user);
  static int on_close(nghttp2_session* session, std::int32_t id, std::uint32_t code, void* user);
  static ssize_t read_out(nghttp2_session* session, std::int32_t id, std::uint8_t* out, std::size_t size,
                          std::uint32_t* flags, nghttp2_data_source* source, void* user);
};

struct GrpcServer::UpstreamSide {
  static Session make(GrpcConnection& connection);
  // Begins a call. head: of its request. Returns whether it could.
  static bool call(Forward& forward, const HeaderList& head);
  static void resume(Forward& forward);

  static int on_header(nghttp2_session* session, const nghttp2_frame* frame, const std::uint8_t* name,
                       std::size_t name_size, const std::uint8_t* value, std::size_t value_size, std::uint8_t flags,
                       void* user);
  static int on_frame(nghttp2_session* session, const nghttp2_frame* frame, void* user);
  static int on_data(nghttp2_session* session, std::uint8_t flags, std::int32_t id, const std::uint8_t* data,
                     std::size_t size, void* user);
  static int on_close(nghttp2_session* session, std::int32_t id, std::uint32_t code, void* user);
  static ssize_t read_out(nghttp2_session* session, std::int32_t id, std::uint8_t* out, std::size_t size,
                          std::uint32_t* flags, nghttp2_data_source* source, void* user);
};

struct GrpcServer::GrpcConnection : Server::Connection {
  GrpcServer* server = nullptr;
  Session client;
  std::string unsent;
  // has_begun: the client has sent its settings. is_ending: what still arrives is dropped.
  bool is_readable = false, has_begun = false, is_retired = false, is_going_away = false, is_ending = false,
       is_gone = false;
  std::unordered_map<std::int32_t, std::unique_ptr<Call>> calls;
  // The client's address, as gRPC writes it; made when it is needed.
  std::string peer;
  // The connection to the Python path, where a call needed it.
  int upstream_descriptor = -1;
  Session upstream;
  std::string upstream_unsent;
  bool is_upstream_readable = false, is_upstream_gone = false;
  std::unordered_map<std::int32_t, std::unique_ptr<Forward>> forwards;
};

}  // namespace emberline::front
