// What nghttp2 reports of a client's connection, and asks for it.
#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "grpc_connection.h"

namespace emberline::front {

namespace {

// Calls of one connection; its client holds further calls back until others have ended.
constexpr std::uint32_t kMostCalls = 1024;
// What a client may send ahead, for one call and for all.
constexpr std::uint32_t kCallWindow = 1 << 20;
constexpr std::int32_t kConnectionWindow = 2 << 20;
constexpr std::uint32_t kFrameBytes = 64 << 10;
// A head of more bytes is not an ordinary one.
constexpr std::size_t kMostHeadBytes = 8 << 10;
constexpr std::size_t kLargestHeadBytes = 16 << 10;
// Bytes that were sent are kept until they are so many.
constexpr std::size_t kSpentBytes = 256 << 10;
constexpr std::string_view kInferPath = "/inference.GRPCInferenceService/ModelInfer";
constexpr std::string_view kStreamPath = "/inference.GRPCInferenceService/ModelStreamInfer";

std::string_view text(const std::uint8_t* bytes, std::size_t size) {
  return {reinterpret_cast<const char*>(bytes), size};
}

// Reads a grpc-timeout, such as 250m, in nanoseconds; 0 for what it does not take.
std::int64_t timeout_of(std::string_view value) {
  if (value.size() < 2 || value.size() > 9) return 0;
  std::int64_t count = 0;
  for (const char digit : value.substr(0, value.size() - 1)) {
    if (digit < '0' || digit > '9') return 0;
    count = 10 * count + (digit - '0');
  }
  switch (value.back()) {
    case 'n': return count;
    case 'u': return count * 1'000;
    case 'm': return count * 1'000'000;
    case 'S': return count * 1'000'000'000;
    case 'M': return std::min<std::int64_t>(count, 1 << 20) * 60'000'000'000;
    case 'H': return std::min<std::int64_t>(count, 1 << 15) * 3'600'000'000'000;
    default: return 0;
  }
}

}  // namespace

std::vector<nghttp2_nv> HeaderList::view() const {
  std::vector<nghttp2_nv> found;
  found.reserve(parts_.size() + 1);
  // nghttp2 does not write to them.
  auto* at = reinterpret_cast<std::uint8_t*>(const_cast<char*>(text_.data()));
  for (const auto& [name, value] : parts_) {
    found.push_back({at, at + name, name, value, NGHTTP2_NV_FLAG_NONE});
    at += name + value;
  }
  return found;
}

std::string_view HeaderList::value(std::string_view name) const {
  std::string_view left = text_;
  for (const auto& [name_size, value_size] : parts_) {
    if (left.substr(0, name_size) == name) return left.substr(name_size, value_size);
    left.remove_prefix(name_size + value_size);
  }
  return {};
}

std::size_t Pipe::take(std::uint8_t* out, std::size_t size) {
  const std::size_t taken = std::min(size, left());
  std::memcpy(out, bytes.data() + sent, taken);
  sent += taken;
  if (sent == bytes.size() || sent >= kSpentBytes) {
    bytes.erase(0, sent);
    sent = 0;
  }
  return taken;
}

std::size_t Pipe::unsettled(std::size_t taken) {
  const std::size_t before = std::min(taken, settled);
  settled -= before;
  return taken - before;
}

Session GrpcServer::ClientSide::make(GrpcConnection& connection) {
  nghttp2_session_callbacks* callbacks = nullptr;
  nghttp2_option* option = nullptr;
  if (nghttp2_session_callbacks_new(&callbacks) != 0 || nghttp2_option_new(&option) != 0) throw std::bad_alloc();
  nghttp2_session_callbacks_set_on_begin_headers_callback(callbacks, on_begin);
  nghttp2_session_callbacks_set_on_header_callback(callbacks, on_header);
  nghttp2_session_callbacks_set_on_frame_recv_callback(callbacks, on_frame);
  nghttp2_session_callbacks_set_on_data_chunk_recv_callback(callbacks, on_data);
  nghttp2_session_callbacks_set_on_frame_send_callback(callbacks, on_sent);
  nghttp2_session_callbacks_set_on_stream_close_callback(callbacks, on_close);
  nghttp2_option_set_no_auto_window_update(option, 1);
  nghttp2_option_set_no_closed_streams(option, 1);
#if NGHTTP2_VERSION_NUM >= 0x013200
  // Other servers of gRPC take values that begin or end with a space.
  nghttp2_option_set_no_rfc9113_leading_and_trailing_ws_validation(option, 1);
#endif
  nghttp2_session* made = nullptr;
  const int failed = nghttp2_session_server_new2(&made, callbacks, &connection, option);
  nghttp2_session_callbacks_del(callbacks);
  nghttp2_option_del(option);
  if (failed != 0) throw std::bad_alloc();
  Session session(made);
  const nghttp2_settings_entry settings[] = {{NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS, kMostCalls},
                                             {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, kCallWindow},
                                             {NGHTTP2_SETTINGS_MAX_FRAME_SIZE, kFrameBytes}};
  if (nghttp2_submit_settings(made, NGHTTP2_FLAG_NONE, settings, std::size(settings)) != 0 ||
      nghttp2_session_set_local_window_size(made, NGHTTP2_FLAG_NONE, 0, kConnectionWindow) != 0) {
    throw std::bad_alloc();
  }
  return session;
}

void GrpcServer::ClientSide::resume(Call& call) {
  if (!call.out.is_deferred) return;
  call.out.is_deferred = false;
  nghttp2_session_resume_data(call.connection->client.get(), call.id);
}

bool GrpcServer::ClientSide::respond(Call& call, const HeaderList& head, bool has_body) {
  nghttp2_data_provider provider{};
  provider.source.ptr = &call;
  provider.read_callback = read_out;
  const std::vector<nghttp2_nv> headers = head.view();
  return nghttp2_submit_response(call.connection->client.get(), call.id, headers.data(), headers.size(),
                                 has_body ? &provider : nullptr) == 0;
}

void GrpcServer::ClientSide::reset(Call& call, std::uint32_t code) {
  nghttp2_submit_rst_stream(call.connection->client.get(), NGHTTP2_FLAG_NONE, call.id, code);
}

int GrpcServer::ClientSide::on_begin(nghttp2_session* session, const nghttp2_frame* frame, void* user) {
  if (frame->hd.type != NGHTTP2_HEADERS || frame->headers.cat != NGHTTP2_HCAT_REQUEST) return 0;
  auto& connection = *static_cast<GrpcConnection*>(user);
  auto call = std::make_unique<Call>();
  call->connection = &connection;
  call->id = frame->hd.stream_id;
  nghttp2_session_set_stream_user_data(session, call->id, call.get());
  connection.calls.emplace(call->id, std::move(call));
  return 0;
}

int GrpcServer::ClientSide::on_header(nghttp2_session* session, const nghttp2_frame* frame, const std::uint8_t* name,
                                      std::size_t name_size, const std::uint8_t* value, std::size_t value_size,
                                      std::uint8_t /*flags*/, void* /*user*/) {
  if (frame->hd.type != NGHTTP2_HEADERS || frame->headers.cat != NGHTTP2_HCAT_REQUEST) return 0;
  auto* call = static_cast<Call*>(nghttp2_session_get_stream_user_data(session, frame->hd.stream_id));
  if (call == nullptr) return 0;
  const std::string_view key = text(name, name_size), content = text(value, value_size);
  if (key == kClientHeader || key == kPartHeader) return 0;  // clients have no say in them
  // A byte of a head may name a field of four kilobytes, so what it says counts, and not what was sent. gRPC's own
  // server takes no larger heads.
  if (call->head.bytes() + key.size() + content.size() > kLargestHeadBytes) {
    reset(*call, NGHTTP2_ENHANCE_YOUR_CALM);
    return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
  }
  call->head.add(key, content);
  const auto expect = [&](bool is_met) { call->is_infer = call->is_infer && is_met; };
  if (key == ":path") {
    call->is_stream = content == kStreamPath;
    call->has_path = true;
    expect(call->is_stream || content == kInferPath);
  } else if (key == ":method") {
    expect(content == "POST");
  } else if (key == "content-type") {
    expect(content == "application/grpc" || content == "application/grpc+proto");
    call->has_content_type = true;
  } else if (key == "grpc-encoding") {
    expect(content == "identity");
  } else if (key == "grpc-timeout") {
    expect(call->timeout_ns == 0);
    call->timeout_ns = timeout_of(content);
    expect(call->timeout_ns != 0);
  } else if (key == kRequestIdHeader) {
    // Of two different ones, neither counts.
    call->has_request_id = is_request_id(content) && call->head.value(kRequestIdHeader) == content;
  } else if (key == kTraceparentHeader) {
    call->has_traceparent = true;
  } else if (key == "authorization") {
    // As over HTTP: what Python makes of two is left to it.
    expect(!std::exchange(call->has_authorization, true));
  }
  return 0;
}

int GrpcServer::ClientSide::on_frame(nghttp2_session* session, const nghttp2_frame* frame, void* user) {
  auto& connection = *static_cast<GrpcConnection*>(user);
  if (frame->hd.type == NGHTTP2_SETTINGS) connection.has_begun = true;
  if (frame->hd.type != NGHTTP2_HEADERS && frame->hd.type != NGHTTP2_DATA) return 0;
  auto* call = static_cast<Call*>(nghttp2_session_get_stream_user_data(session, frame->hd.stream_id));
  if (call == nullptr) return 0;
  if (frame->hd.type == NGHTTP2_HEADERS && frame->headers.cat == NGHTTP2_HCAT_REQUEST) {
    call->is_infer = call->is_infer && call->has_path && call->has_content_type && call->head.bytes() <= kMostHeadBytes;
    connection.server->on_head(*call);
  }
  if ((frame->hd.flags & NGHTTP2_FLAG_END_STREAM) != 0) connection.server->on_client_end(*call);
  return 0;
}

int GrpcServer::ClientSide::on_data(nghttp2_session* session, std::uint8_t /*flags*/, std::int32_t id,
                                    const std::uint8_t* data, std::size_t size, void* user) {
  auto* call = static_cast<Call*>(nghttp2_session_get_stream_user_data(session, id));
  if (call == nullptr) {
    nghttp2_session_consume(session, id, size);
  } else {
    static_cast<GrpcConnection*>(user)->server->on_data(*call, text(data, size));
  }
  return 0;
}

// A response that is complete before its request ends the call.
int GrpcServer::ClientSide::on_sent(nghttp2_session* session, const nghttp2_frame* frame, void* /*user*/) {
  if (frame->hd.type != NGHTTP2_HEADERS && frame->hd.type != NGHTTP2_DATA) return 0;
  if ((frame->hd.flags & NGHTTP2_FLAG_END_STREAM) == 0) return 0;
  auto* call = static_cast<Call*>(nghttp2_session_get_stream_user_data(session, frame->hd.stream_id));
  if (call != nullptr && !call->is_ended) reset(*call, NGHTTP2_NO_ERROR);
  return 0;
}

int GrpcServer::ClientSide::on_close(nghttp2_session* session, std::int32_t id, std::uint32_t /*code*/, void* user) {
  auto& connection = *static_cast<GrpcConnection*>(user);
  const auto found = connection.calls.find(id);
  if (found == connection.calls.end()) return 0;
  nghttp2_session_set_stream_user_data(session, id, nullptr);
  connection.server->on_closed(*found->second);
  connection.calls.erase(found);
  if (connection.calls.empty()) connection.idle_since_ns = now_ns();
  return 0;
}

ssize_t GrpcServer::ClientSide::read_out(nghttp2_session* session, std::int32_t id, std::uint8_t* out, std::size_t size,
                                         std::uint32_t* flags, nghttp2_data_source* source, void* /*user*/) {
  Call& call = *static_cast<Call*>(source->ptr);
  const std::size_t taken = call.out.take(out, size);
  if (taken > 0) call.connection->server->on_sent(call, taken);
  if (call.upstream_id != 0 && taken > 0 && call.connection->upstream != nullptr) {
    nghttp2_session_consume(call.connection->upstream.get(), call.upstream_id, taken);
  }
  if (call.out.left() > 0) return static_cast<ssize_t>(taken);
  if (!call.out.is_ended) {
    if (taken > 0) return static_cast<ssize_t>(taken);
    call.out.is_deferred = true;
    return NGHTTP2_ERR_DEFERRED;
  }
  *flags |= NGHTTP2_DATA_FLAG_EOF;
  if (!call.trailers.is_empty()) {
    *flags |= NGHTTP2_DATA_FLAG_NO_END_STREAM;
    const std::vector<nghttp2_nv> trailers = call.trailers.view();
    nghttp2_submit_trailer(session, id, trailers.data(), trailers.size());
  }
  return static_cast<ssize_t>(taken);
}

}  // namespace emberline::front
