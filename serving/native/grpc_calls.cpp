// The steps of a call: its request arrives, waits for its answer or is passed on, and is answered.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <utility>

#include "grpc_connection.h"
#include "grpc_message.h"

namespace emberline::front {

namespace {

// gRPC's prefix of a message: whether it is compressed, and its length.
constexpr std::size_t kPrefixBytes = 5;
// A longer message's memory is only taken as it arrives.
constexpr std::size_t kReservedBytes = 1 << 20;

std::size_t message_bytes(std::string_view prefix) {
  std::size_t size = 0;
  for (const char byte : prefix.substr(1, 4)) size = size << 8 | static_cast<unsigned char>(byte);
  return size;
}

// A text as the value of grpc-message.
std::string percent_encoded(std::string_view text) {
  static constexpr char kHex[] = "0123456789ABCDEF";
  std::string out;
  for (const char byte : text) {
    const auto value = static_cast<unsigned char>(byte);
    if (value < 0x20 || value > 0x7e || byte == '%') {
      out += '%';
      out += kHex[value >> 4];
      out += kHex[value & 15];
    } else {
      out += byte;
    }
  }
  return out;
}

// The other end of a connection, as gRPC writes it, such as ipv4:127.0.0.1:5000.
std::string peer_of(int descriptor) {
  sockaddr_storage peer{};
  socklen_t size = sizeof peer;
  if (::getpeername(descriptor, reinterpret_cast<sockaddr*>(&peer), &size) != 0) return "";
  char text[INET6_ADDRSTRLEN] = "";
  if (peer.ss_family == AF_INET) {
    const auto& address = reinterpret_cast<const sockaddr_in&>(peer);
    ::inet_ntop(AF_INET, &address.sin_addr, text, sizeof text);
    return "ipv4:" + std::string(text) + ":" + std::to_string(ntohs(address.sin_port));
  }
  const auto& address = reinterpret_cast<const sockaddr_in6&>(peer);
  ::inet_ntop(AF_INET6, &address.sin6_addr, text, sizeof text);
  return "ipv6:[" + std::string(text) + "]:" + std::to_string(ntohs(address.sin6_port));
}

HeaderList response_head() {
  HeaderList head;
  head.add(":status", "200");
  head.add("content-type", "application/grpc");
  return head;
}

}  // namespace

bool GrpcServer::hold(Call& call, std::size_t bytes) {
  if (held_ + static_cast<std::int64_t>(bytes) > options_.max_inflight_bytes) return false;
  held_ += static_cast<std::int64_t>(bytes);
  call.held += bytes;
  return true;
}

void GrpcServer::release(Call& call, std::size_t bytes) {
  const std::size_t released = std::min(bytes, call.held);
  call.held -= released;
  held_ -= static_cast<std::int64_t>(released);
}

void GrpcServer::on_head(Call& call) {
  call.arrived_ns = now_ns();
  if (!call.is_infer) forward(call, "");
}

void GrpcServer::on_data(Call& call, std::string_view bytes) {
  nghttp2_session* const session = call.connection->client.get();
  const bool is_wanted = call.state == Call::State::kReading || call.forward != nullptr;
  if (!is_wanted || !hold(call, bytes.size())) {
    nghttp2_session_consume(session, call.id, bytes.size());
    if (is_wanted) refuse(call, options_.overloaded_status, options_.too_many_bytes);
    return;
  }
  if (call.forward != nullptr) {
    call.forward->to_upstream.add(bytes);
    UpstreamSide::resume(*call.forward);
    return;
  }
  nghttp2_session_consume(session, call.id, bytes.size());
  call.body.append(bytes);
  if (call.body.size() < kPrefixBytes) return;
  const std::size_t size = message_bytes(call.body);
  const bool is_plain = call.body[0] == 0 && size <= static_cast<std::size_t>(options_.max_body_bytes) &&
                        call.body.size() <= kPrefixBytes + size;
  if (is_plain) {
    call.body.reserve(std::min(kPrefixBytes + size, kReservedBytes));
  } else {
    forward(call, std::move(call.body));
  }
}

void GrpcServer::on_client_end(Call& call) {
  call.is_ended = true;
  if (call.forward != nullptr) {
    call.forward->to_upstream.is_ended = true;
    UpstreamSide::resume(*call.forward);
  } else if (call.state == Call::State::kReading) {
    answer(call);
  }
}

// Adds the call's request to a queue, or passes the call on.
void GrpcServer::answer(Call& call) {
  auto request = std::make_shared<InferRequest>();
  request->bytes = std::move(call.body);
  const std::string_view bytes = request->bytes;
  std::optional<InferMessage> message;
  if (bytes.size() >= kPrefixBytes && bytes.size() == kPrefixBytes + message_bytes(bytes)) {
    message = InferMessage::read(bytes.substr(kPrefixBytes));
  }
  std::shared_ptr<const Model> model;
  if (message) model = routes_->find(message->path());
  request->arrived_ns = now_ns();
  if (model == nullptr || !message->fill(*model, *request, kPrefixBytes)) {
    forward(call, std::move(request->bytes));
    return;
  }
  request->mailbox = mailbox_;
  request->ticket = call.connection->ticket;
  request->stream = call.id;
  request->encoding = Encoding::kGrpc;
  request->model = model;
  if (call.timeout_ns != 0) {
    const std::int64_t deadline_ns = call.arrived_ns + call.timeout_ns;
    request->deadline_ns = request->deadline_ns == 0 ? deadline_ns : std::min(request->deadline_ns, deadline_ns);
  }
  const auto queues = model->queues();
  if (queues->all.size() != 1) {
    forward(call, std::move(request->bytes));
    return;
  }
  const auto& queue = queues->all.front();
  const Refusal refusal = queue->put(request);
  if (refusal.is_closed) {
    forward(call, std::move(request->bytes));
  } else if (refusal) {
    missed(*request, Missed::Why::kOverloaded);
    refuse(call, options_.overloaded_status, refusal.overloaded);
  } else {
    in_flight_.fetch_add(1, std::memory_order_relaxed);
    call.state = Call::State::kWaiting;
    call.queue = queue;
    remember_deadline(request);
    call.request = std::move(request);
  }
}

// Sends the answer. bytes: the message with its prefix.
void GrpcServer::respond(Call& call, std::string bytes) {
  static const HeaderList kHead = [] {
    HeaderList head = response_head();
    head.add("grpc-accept-encoding", "identity, deflate, gzip");
    return head;
  }();
  release(call, call.held);
  call.request.reset();
  call.queue.reset();
  call.state = Call::State::kAnswering;
  call.out.bytes = std::move(bytes);
  call.out.is_ended = true;
  call.trailers.add("grpc-status", "0");
  if (!ClientSide::respond(call, kHead, true)) ClientSide::reset(call, NGHTTP2_INTERNAL_ERROR);
}

// Ends a call with an error.
void GrpcServer::refuse(Call& call, std::string_view code, std::string_view text) {
  release(call, call.held);
  call.request.reset();
  call.queue.reset();
  call.body = std::string();
  call.state = Call::State::kAnswering;
  if (call.forward != nullptr) end_forward(*call.forward, true);
  HeaderList head = response_head();
  head.add("grpc-status", code);
  head.add("grpc-message", percent_encoded(text));
  call.out.is_ended = true;
  // The Python path may have begun a response.
  if (call.has_responded || !ClientSide::respond(call, head, false)) ClientSide::reset(call, NGHTTP2_ENHANCE_YOUR_CALM);
}

// Passes a call on. bytes: what the client has sent of its messages so far.
void GrpcServer::forward(Call& call, std::string bytes) {
  GrpcConnection& connection = *call.connection;
  call.request.reset();
  call.queue.reset();
  call.state = Call::State::kForwarded;
  if (!open_upstream(connection)) {
    ClientSide::reset(call, NGHTTP2_REFUSED_STREAM);  // it may be sent again
    return;
  }
  if (connection.peer.empty()) connection.peer = peer_of(connection.descriptor);
  auto made = std::make_unique<Forward>();
  made->connection = &connection;
  made->call = &call;
  made->to_upstream.settled = bytes.size();
  made->to_upstream.bytes = std::move(bytes);
  made->to_upstream.is_ended = call.is_ended;
  HeaderList head = call.head;
  head.add(kClientHeader, connection.peer);
  if (!UpstreamSide::call(*made, head)) {
    ClientSide::reset(call, NGHTTP2_REFUSED_STREAM);
    return;
  }
  passed_on_.fetch_add(1, std::memory_order_relaxed);
  call.forward = made.get();
  call.upstream_id = made->id;
  connection.forwards.emplace(made->id, std::move(made));
}

void GrpcServer::passed(Forward& forward, std::size_t bytes) {
  Call& call = *forward.call;
  release(call, bytes);
  const std::size_t unsettled = forward.to_upstream.unsettled(bytes);
  if (unsettled > 0) nghttp2_session_consume(call.connection->client.get(), call.id, unsettled);
}

// What is left of the request goes nowhere: its client need not wait for that.
void GrpcServer::end_forward(Forward& forward, bool cancels) {
  Call& call = *forward.call;
  const std::size_t left = forward.to_upstream.left();
  if (left > 0) passed(forward, left);
  forward.call = nullptr;
  call.forward = nullptr;
  if (!cancels) return;
  nghttp2_submit_rst_stream(forward.connection->upstream.get(), NGHTTP2_FLAG_NONE, forward.id, NGHTTP2_CANCEL);
}

// The client's side of a call has been closed.
void GrpcServer::on_closed(Call& call) {
  if (call.request != nullptr && call.queue->discard(call.request.get())) {
    in_flight_.fetch_sub(1, std::memory_order_relaxed);
    missed(*call.request, Missed::Why::kCancelled);
  }
  if (call.upstream_id != 0 && call.connection->upstream != nullptr && call.out.left() > 0) {
    nghttp2_session_consume(call.connection->upstream.get(), call.upstream_id, call.out.left());
  }
  if (call.forward != nullptr) end_forward(*call.forward, true);
  release(call, call.held);
}

}  // namespace emberline::front
