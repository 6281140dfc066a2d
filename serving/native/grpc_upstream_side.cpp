// What nghttp2 reports of a connection to the gRPC server of the Python path, and asks for it.
#include <new>

#include "grpc_connection.h"

namespace emberline::front {

namespace {

constexpr std::uint32_t kCallWindow = 1 << 20;
constexpr std::int32_t kConnectionWindow = 4 << 20;

std::string_view text(const std::uint8_t* bytes, std::size_t size) {
  return {reinterpret_cast<const char*>(bytes), size};
}

}  // namespace

Session GrpcServer::UpstreamSide::make(GrpcConnection& connection) {
  nghttp2_session_callbacks* callbacks = nullptr;
  nghttp2_option* option = nullptr;
  if (nghttp2_session_callbacks_new(&callbacks) != 0 || nghttp2_option_new(&option) != 0) throw std::bad_alloc();
  nghttp2_session_callbacks_set_on_header_callback(callbacks, on_header);
  nghttp2_session_callbacks_set_on_frame_recv_callback(callbacks, on_frame);
  nghttp2_session_callbacks_set_on_data_chunk_recv_callback(callbacks, on_data);
  nghttp2_session_callbacks_set_on_stream_close_callback(callbacks, on_close);
  nghttp2_option_set_no_auto_window_update(option, 1);
  nghttp2_session* made = nullptr;
  const int failed = nghttp2_session_client_new2(&made, callbacks, &connection, option);
  nghttp2_session_callbacks_del(callbacks);
  nghttp2_option_del(option);
  if (failed != 0) throw std::bad_alloc();
  Session session(made);
  const nghttp2_settings_entry settings[] = {{NGHTTP2_SETTINGS_ENABLE_PUSH, 0},
                                             {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, kCallWindow}};
  if (nghttp2_submit_settings(made, NGHTTP2_FLAG_NONE, settings, std::size(settings)) != 0 ||
      nghttp2_session_set_local_window_size(made, NGHTTP2_FLAG_NONE, 0, kConnectionWindow) != 0) {
    throw std::bad_alloc();
  }
  return session;
}

bool GrpcServer::UpstreamSide::call(Forward& forward, const HeaderList& head) {
  nghttp2_data_provider provider{};
  provider.source.ptr = &forward;
  provider.read_callback = read_out;
  const std::vector<nghttp2_nv> headers = head.view();
  forward.id = nghttp2_submit_request(forward.connection->upstream.get(), nullptr, headers.data(), headers.size(),
                                      &provider, &forward);
  return forward.id > 0;
}

void GrpcServer::UpstreamSide::resume(Forward& forward) {
  if (!forward.to_upstream.is_deferred) return;
  forward.to_upstream.is_deferred = false;
  nghttp2_session_resume_data(forward.connection->upstream.get(), forward.id);
}

int GrpcServer::UpstreamSide::on_header(nghttp2_session* session, const nghttp2_frame* frame, const std::uint8_t* name,
                                        std::size_t name_size, const std::uint8_t* value, std::size_t value_size,
                                        std::uint8_t /*flags*/, void* /*user*/) {
  auto* forward = static_cast<Forward*>(nghttp2_session_get_stream_user_data(session, frame->hd.stream_id));
  if (forward != nullptr) forward->head.add(text(name, name_size), text(value, value_size));
  return 0;
}

int GrpcServer::UpstreamSide::on_frame(nghttp2_session* session, const nghttp2_frame* frame, void* /*user*/) {
  if (frame->hd.type != NGHTTP2_HEADERS && frame->hd.type != NGHTTP2_DATA) return 0;
  auto* forward = static_cast<Forward*>(nghttp2_session_get_stream_user_data(session, frame->hd.stream_id));
  if (forward == nullptr || forward->call == nullptr) return 0;
  Call& call = *forward->call;
  const bool is_end = (frame->hd.flags & NGHTTP2_FLAG_END_STREAM) != 0;
  if (forward->slot != nullptr) {
    GrpcServer& server = *forward->connection->server;
    Slot& slot = *forward->slot;
    if (is_end && forward->head.value("grpc-status") != "0") {
      server.fail(call, std::exchange(forward->head, {}));  // it ends the whole stream, as it would have there
    } else if (is_end) {
      server.end_forward(*forward, false);
      server.answer(call, slot, std::move(slot.answer));
    } else {
      forward->head.clear();
    }
    return 0;
  }
  if (frame->hd.type == NGHTTP2_HEADERS && frame->headers.cat == NGHTTP2_HCAT_RESPONSE) {
    const HeaderList head = std::exchange(forward->head, {});
    call.has_responded = true;
    if (!ClientSide::respond(call, head, !is_end)) ClientSide::reset(call, NGHTTP2_INTERNAL_ERROR);
  } else if (frame->hd.type == NGHTTP2_HEADERS) {
    call.trailers = std::exchange(forward->head, {});
  }
  if (is_end) {
    call.out.is_ended = true;
    ClientSide::resume(call);
  }
  return 0;
}

int GrpcServer::UpstreamSide::on_data(nghttp2_session* session, std::uint8_t /*flags*/, std::int32_t id,
                                      const std::uint8_t* data, std::size_t size, void* /*user*/) {
  auto* forward = static_cast<Forward*>(nghttp2_session_get_stream_user_data(session, id));
  if (forward == nullptr || forward->call == nullptr) {
    nghttp2_session_consume(session, id, size);
    return 0;
  }
  if (forward->slot != nullptr) {
    forward->slot->answer.append(text(data, size));
    nghttp2_session_consume(session, id, size);
    return 0;
  }
  if (forward->call->out.left() == 0) forward->call->out_since_ns = now_ns();
  forward->call->out.add(text(data, size));
  ClientSide::resume(*forward->call);
  return 0;
}

int GrpcServer::UpstreamSide::on_close(nghttp2_session* session, std::int32_t id, std::uint32_t code, void* user) {
  auto& connection = *static_cast<GrpcConnection*>(user);
  const auto found = connection.forwards.find(id);
  if (found == connection.forwards.end()) return 0;
  nghttp2_session_set_stream_user_data(session, id, nullptr);
  Forward& forward = *found->second;
  if (forward.call != nullptr) {
    Call& call = *forward.call;
    connection.server->end_forward(forward, false);
    if (!call.out.is_ended) ClientSide::reset(call, code == 0 ? std::uint32_t{NGHTTP2_INTERNAL_ERROR} : code);
  }
  connection.forwards.erase(found);
  return 0;
}

ssize_t GrpcServer::UpstreamSide::read_out(nghttp2_session* /*session*/, std::int32_t /*id*/, std::uint8_t* out,
                                           std::size_t size, std::uint32_t* flags, nghttp2_data_source* source,
                                           void* /*user*/) {
  Forward& forward = *static_cast<Forward*>(source->ptr);
  if (forward.call == nullptr) return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
  const std::size_t taken = forward.to_upstream.take(out, size);
  if (taken > 0) forward.connection->server->passed(forward, taken);
  if (forward.to_upstream.left() > 0) return static_cast<ssize_t>(taken);
  if (forward.to_upstream.is_ended) {
    *flags |= NGHTTP2_DATA_FLAG_EOF;
  } else if (taken == 0) {
    forward.to_upstream.is_deferred = true;
    return NGHTTP2_ERR_DEFERRED;
  }
  return static_cast<ssize_t>(taken);
}

}  // namespace emberline::front
