// The steps of a request of a call: it waits for its answer, or is passed on; and those of whatever is passed on.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <utility>

#include "grpc_connection.h"
#include "grpc_message.h"

namespace emberline::front {

namespace {

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

}  // namespace

GrpcServer::Slot* GrpcServer::find_slot(Call& call, std::uint32_t number) {
  if (call.slots.empty()) return nullptr;
  const std::uint32_t place = number - call.slots.front()->number;
  return place < call.slots.size() ? call.slots[place].get() : nullptr;
}

// Adds a request to a queue, or passes it on. message: with its prefix.
void GrpcServer::ask(Call& call, std::string message) {
  Slot& slot = *call.slots.emplace_back(std::make_unique<Slot>());
  slot.number = call.next_number++;
  slot.held = std::min(call.held, message.size());
  call.held -= slot.held;
  auto request = std::make_shared<InferRequest>();
  request->bytes = std::move(message);
  if (!put(call, slot, request)) forward_request(call, slot, std::move(request->bytes));
}

// Keeps what the head of a call says of its requests. Requests of a stream have an id of their own, or none.
void GrpcServer::take_context(const Call& call, InferRequest& request) {
  const auto keep = [&](std::string_view text) {
    const Span span{request.made.size(), text.size(), true};
    request.made.append(text);
    return span;
  };
  request.header_id = keep(call.request_id());
  if (call.has_traceparent) request.traceparent = keep(call.head.value(kTraceparentHeader));
  if (request.id.empty() && !call.is_stream) request.id = call.request_id();
}

// Returns false for a request that is for the Python path.
bool GrpcServer::put(Call& call, Slot& slot, std::shared_ptr<InferRequest> request) {
  const auto message = InferMessage::read(std::string_view(request->bytes).substr(kPrefixBytes));
  if (!message) return false;
  const std::shared_ptr<const Route> route = routes_->find(message->path());
  request->arrived_ns = now_ns();
  if (route == nullptr || !message->fill(*route, *request, kPrefixBytes)) return false;
  if (call.has_request_id || call.has_traceparent) take_context(call, *request);
  request->mailbox = mailbox_;
  request->ticket = call.connection->ticket;
  request->stream = call.id;
  request->number = slot.number;
  request->encoding = call.is_stream ? Encoding::kGrpcStream : Encoding::kGrpc;
  if (call.timeout_ns != 0) {
    const std::int64_t deadline_ns = call.arrived_ns + call.timeout_ns;
    request->deadline_ns = request->deadline_ns == 0 ? deadline_ns : std::min(request->deadline_ns, deadline_ns);
  }
  const auto queues = request->model->queues();
  if (queues->all.size() != 1) return false;
  if (!admit(*call.connection, call.authorization(), route->main->name(), request->caller)) return false;
  if (is_observed()) note_arrival(*call.connection, *request);
  const auto& queue = queues->all.front();
  const Refusal refusal = queue->put(request);
  if (refusal.is_closed) {
    uncount(*call.connection, std::move(request->caller));
    return false;
  }
  if (refusal) {
    missed(*request, Missed::Why::kOverloaded, refusal.overloaded);
    refuse_request(call, slot, request->id, options_.overloaded_status, refusal.overloaded);
    return true;
  }
  in_flight_.fetch_add(1, std::memory_order_relaxed);
  slot.queue = queue;
  remember_deadline(request);
  slot.request = std::move(request);
  return true;
}

// bytes: the message with its prefix.
void GrpcServer::answer(Call& call, Slot& slot, std::string bytes) {
  drop(slot);
  slot.answer = std::move(bytes);
  slot.is_answered = true;
  flush(call);
}

// Answers a request with an error, which ends the call, unless it is one of a stream.
void GrpcServer::refuse_request(Call& call, Slot& slot, const std::string& id, std::string_view code,
                                std::string_view text) {
  if (call.is_stream) {
    answer(call, slot, error_message(id, text));
  } else {
    refuse(call, code, text);
  }
}

// Passes a request on: the whole call, or a stream of this one request.
void GrpcServer::forward_request(Call& call, Slot& slot, std::string message) {
  if (!call.is_stream) {
    call.held += std::exchange(slot.held, 0);
    call.slots.clear();
    forward(call, std::move(message));
    return;
  }
  slot.request.reset();
  slot.queue.reset();
  slot.forward = begin_forward(call, std::move(message), true, true);
  if (slot.forward == nullptr) {
    ClientSide::reset(call, NGHTTP2_REFUSED_STREAM);
    return;
  }
  slot.forward->slot = &slot;
  slot.forward->to_upstream.settled = slot.forward->to_upstream.bytes.size();
}

// Lets go of a request.
void GrpcServer::drop(Slot& slot) {
  slot.request.reset();
  slot.queue.reset();
  release(slot.held, slot.held);
  if (slot.forward != nullptr) end_forward(*slot.forward, true);
}

// Begins a call on the Python path; null where that cannot be. bytes: of its messages. is_part: it is one request of a
// stream, whose caller was let in when the stream began; what is wrong with that caller since then is said of the
// request.
GrpcServer::Forward* GrpcServer::begin_forward(Call& call, std::string bytes, bool is_ended, bool is_part) {
  GrpcConnection& connection = *call.connection;
  if (!open_upstream(connection)) return nullptr;
  if (connection.peer.empty()) connection.peer = peer_of(connection.descriptor);
  auto made = std::make_unique<Forward>();
  made->connection = &connection;
  made->call = &call;
  made->to_upstream.bytes = std::move(bytes);
  made->to_upstream.is_ended = is_ended;
  HeaderList head = call.head;
  head.add(kClientHeader, secret_ + " " + connection.peer);
  if (is_part) head.add(kPartHeader, secret_);
  if (!UpstreamSide::call(*made, head)) return nullptr;
  passed_on_.fetch_add(1, std::memory_order_relaxed);
  return connection.forwards.emplace(made->id, std::move(made)).first->second.get();
}

void GrpcServer::passed(Forward& forward, std::size_t bytes) {
  Call& call = *forward.call;
  release(forward.slot == nullptr ? call.held : forward.slot->held, bytes);
  const std::size_t unsettled = forward.to_upstream.unsettled(bytes);
  if (unsettled > 0) nghttp2_session_consume(call.connection->client.get(), call.id, unsettled);
}

// What is left of the request goes nowhere: its client need not wait for that.
void GrpcServer::end_forward(Forward& forward, bool cancels) {
  const std::size_t left = forward.to_upstream.left();
  if (left > 0) passed(forward, left);
  if (forward.slot == nullptr) {
    forward.call->forward = nullptr;
  } else {
    forward.slot->forward = nullptr;
    forward.slot = nullptr;
  }
  forward.call = nullptr;
  if (!cancels) return;
  nghttp2_submit_rst_stream(forward.connection->upstream.get(), NGHTTP2_FLAG_NONE, forward.id, NGHTTP2_CANCEL);
}

}  // namespace emberline::front
