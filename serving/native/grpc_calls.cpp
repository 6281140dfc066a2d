// The steps of a call: its messages arrive and become requests, or it is passed on, and its response is sent.
#include <algorithm>
#include <utility>

#include "grpc_connection.h"
#include "grpc_message.h"

namespace emberline::front {

namespace {

// A longer message's memory is only taken as it arrives.
constexpr std::size_t kReservedBytes = 1 << 20;
// Bytes of messages that became requests are kept until they are so many.
constexpr std::size_t kTakenBytes = 256 << 10;
// Requests of a stream that are answered at a time; the next is read when the first of them is answered.
constexpr std::size_t kMostSlots = 64;
// RESOURCE_EXHAUSTED, as serving/errors.py has it for a request that finds no room.
constexpr int kNoRoomCode = 8;

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

void GrpcServer::release(std::size_t& held, std::size_t bytes) {
  const std::size_t released = std::min(bytes, held);
  held -= released;
  held_ -= static_cast<std::int64_t>(released);
}

void GrpcServer::on_head(Call& call) {
  call.arrived_ns = now_ns();
  if (!hold(call, call.head.bytes())) {
    refuse_bytes(call);
  } else if (!call.is_infer || (options_.callers != nullptr && find_caller(call.authorization()) == nullptr)) {
    forward(call, "");  // of a caller that is not known before a message of its is waited for
  }
}

void GrpcServer::on_data(Call& call, std::string_view bytes) {
  nghttp2_session* const session = call.connection->client.get();
  const bool is_wanted = call.state == Call::State::kReading || call.forward != nullptr;
  if (!is_wanted || !hold(call, bytes.size())) {
    nghttp2_session_consume(session, call.id, bytes.size());
    if (is_wanted) refuse_bytes(call);
    return;
  }
  if (call.forward != nullptr) {
    call.forward->to_upstream.add(bytes);
    UpstreamSide::resume(*call.forward);
    return;
  }
  call.body.append(bytes);
  call.untold += bytes.size();
  read_messages(call);
}

void GrpcServer::on_client_end(Call& call) {
  call.is_ended = true;
  if (call.forward != nullptr) {
    call.forward->to_upstream.is_ended = true;
    UpstreamSide::resume(*call.forward);
  } else if (call.state == Call::State::kReading) {
    read_messages(call);
  }
}

// Makes requests of the messages that are complete, as far as there is room for them.
void GrpcServer::read_messages(Call& call) {
  while (call.state == Call::State::kReading && (!call.is_stream || call.slots.size() < kMostSlots)) {
    if (!read_message(call)) break;
  }
  if (call.state != Call::State::kReading) return;  // it was passed on, or has ended
  if (call.untold > 0 && call.slots.size() < kMostSlots) {
    nghttp2_session_consume(call.connection->client.get(), call.id, std::exchange(call.untold, 0));
  }
  if (call.is_ended && call.slots.size() < kMostSlots) {
    call.state = Call::State::kWaiting;  // what is left is no message
    if (call.slots.empty()) end_response(call);
  }
}

// Takes the next message of a call; returns false where it is not complete.
bool GrpcServer::read_message(Call& call) {
  const std::string_view left = std::string_view(call.body).substr(call.taken);
  const bool has_prefix = left.size() >= kPrefixBytes;
  const std::size_t whole = has_prefix ? kPrefixBytes + message_bytes(left) : 0;
  const bool is_plain =
      has_prefix && left[0] == 0 && whole - kPrefixBytes <= static_cast<std::size_t>(options_.max_body_bytes);
  if (call.is_stream) {
    if (has_prefix && !is_plain) {
      call.state = Call::State::kWaiting;
      ask(call,
          std::string(left.substr(0, kPrefixBytes)));  // enough to say what is wrong with it, which ends the stream
      return false;
    }
    if (!has_prefix || left.size() < whole) return false;
    std::string message(left.substr(0, whole));
    call.taken += whole;
    // Moving what is left once for many messages: a client may send thousands ahead.
    if (call.taken == call.body.size() || call.taken >= kTakenBytes) call.body.erase(0, std::exchange(call.taken, 0));
    ask(call, std::move(message));
    return true;
  }
  if ((has_prefix && (!is_plain || call.body.size() > whole)) || (call.is_ended && call.body.size() != whole)) {
    forward(call, std::exchange(call.body, {}));
  } else if (call.is_ended && has_prefix) {
    call.state = Call::State::kWaiting;
    ask(call, std::exchange(call.body, {}));
  } else if (has_prefix) {
    call.body.reserve(std::min(whole, kReservedBytes));
  }
  return false;
}

// Begins the response, with what its requests' answers follow.
void GrpcServer::begin_response(Call& call) {
  static const HeaderList kHead = [] {
    HeaderList head = response_head();
    head.add("grpc-accept-encoding", "identity, deflate, gzip");
    return head;
  }();
  if (std::exchange(call.has_responded, true)) return;
  HeaderList own;
  if (call.has_request_id) {
    own = kHead;
    own.add(kRequestIdHeader, call.request_id());
  }
  if (!ClientSide::respond(call, call.has_request_id ? own : kHead, true))
    ClientSide::reset(call, NGHTTP2_INTERNAL_ERROR);
}

// Sends the answers whose turn it is.
void GrpcServer::flush(Call& call) {
  if (call.slots.empty() || !call.slots.front()->is_answered) return;
  const bool was_full = call.slots.size() >= kMostSlots;
  begin_response(call);
  if (call.out.left() == 0) call.out_since_ns = now_ns();
  while (!call.slots.empty() && call.slots.front()->is_answered) {
    std::string& answer = call.slots.front()->answer;
    // It is computed already, so it counts also where that is more than there should be: others are refused then.
    call.out_held += answer.size();
    held_ += static_cast<std::int64_t>(answer.size());
    if (call.out.left() == 0) {
      call.out.bytes = std::move(answer);
      call.out.sent = 0;
    } else {
      call.out.add(answer);
    }
    call.slots.pop_front();
  }
  if (call.state == Call::State::kReading) {
    if (was_full) read_messages(call);
  } else if (call.state == Call::State::kWaiting && call.slots.empty()) {
    end_response(call);
  }
  ClientSide::resume(call);
}

// Ends a response that has no error.
void GrpcServer::end_response(Call& call) {
  call.state = Call::State::kAnswering;
  call.trailers.add("grpc-status", "0");
  call.out.is_ended = true;
  begin_response(call);
  ClientSide::resume(call);
}

// Ends a call with an error.
void GrpcServer::refuse(Call& call, std::string_view code, std::string_view text) {
  if (call.state == Call::State::kForwarded && call.has_responded) {
    ClientSide::reset(call, NGHTTP2_ENHANCE_YOUR_CALM);  // the Python path has begun a response
    return;
  }
  HeaderList trailers;
  trailers.add("grpc-status", code);
  trailers.add("grpc-message", percent_encoded(text));
  fail(call, std::move(trailers));
}

// Refuses a call for whose bytes there is no room. One that was passed on is noted where it is.
void GrpcServer::refuse_bytes(Call& call) {
  if (call.forward == nullptr) {
    note_unread(*call.connection, true, kNoRoomCode, options_.too_many_bytes, call.request_id(), call.arrived_ns,
                find_caller(call.authorization()).get());
  }
  refuse(call, options_.overloaded_status, options_.too_many_bytes);
}

// Ends a call with an error. trailers: what says so, which may be a whole head.
void GrpcServer::fail(Call& call, HeaderList trailers) {
  call.state = Call::State::kAnswering;
  for (const auto& slot : call.slots) drop(*slot);
  call.slots.clear();
  if (call.forward != nullptr) end_forward(*call.forward, true);
  release(call.held, call.held);
  call.body = std::string();
  call.taken = 0;
  call.out.is_ended = true;
  if (call.has_responded) {
    HeaderList plain;
    for (const std::string_view name : {"grpc-status", "grpc-message"}) plain.add(name, trailers.value(name));
    call.trailers = std::move(plain);
    ClientSide::resume(call);
    return;
  }
  HeaderList head = response_head();
  for (const std::string_view name : {"grpc-status", "grpc-message"}) head.add(name, trailers.value(name));
  if (call.has_request_id) head.add(kRequestIdHeader, call.request_id());
  call.has_responded = true;
  if (!ClientSide::respond(call, head, false)) ClientSide::reset(call, NGHTTP2_INTERNAL_ERROR);
}

// Passes a call on. bytes: what the client has sent of its messages so far.
void GrpcServer::forward(Call& call, std::string bytes) {
  call.state = Call::State::kForwarded;
  const std::size_t size = bytes.size();
  call.forward = begin_forward(call, std::move(bytes), call.is_ended);
  if (call.forward == nullptr) {
    ClientSide::reset(call, NGHTTP2_REFUSED_STREAM);  // it may be sent again
    return;
  }
  call.upstream_id = call.forward->id;
  // What was read of it counts as read when it has been passed on.
  call.forward->to_upstream.settled = size - std::min(size, std::exchange(call.untold, 0));
}

void GrpcServer::on_sent(Call& call, std::size_t bytes) {
  call.out_since_ns = now_ns();
  release(call.out_held, bytes);
}

// The client's side of a call has been closed.
void GrpcServer::on_closed(Call& call) {
  for (const auto& slot : call.slots) {
    if (slot->request != nullptr && slot->queue->discard(slot->request.get())) {
      in_flight_.fetch_sub(1, std::memory_order_relaxed);
      missed(*slot->request, Missed::Why::kCancelled);
    }
    drop(*slot);
  }
  call.slots.clear();
  if (call.upstream_id != 0 && call.connection->upstream != nullptr && call.out.left() > 0) {
    nghttp2_session_consume(call.connection->upstream.get(), call.upstream_id, call.out.left());
  }
  if (call.forward != nullptr) end_forward(*call.forward, true);
  if (call.untold > 0) nghttp2_session_consume_connection(call.connection->client.get(), call.untold);
  release(call.held, call.held);
  release(call.out_held, call.out_held);
}

}  // namespace emberline::front
