// A connection of a server. Only the server's thread uses it.
#pragma once

#include "http_server.h"

namespace emberline::front {

struct HttpServer::HttpConnection : Server::Connection {
  enum class State {
    kReading,  // a request arrives, or the next one is awaited
    kWaiting,  // the request is in a queue, or a session has it
    kAway,     // the Python path serves it
    kEnding,   // the last response is being sent; what still arrives is dropped
  };

  State state = State::kReading;
  // Bytes that were read and belong to no request yet.
  std::string buffer;
  // Bytes of the response that are not sent yet.
  std::string unsent;
  std::size_t held = 0;
  // There may be bytes to read; the client has ended its side.
  bool is_readable = false, is_half_closed = false;
  // Bytes that the request in the buffer has, where its head is complete; whether it cannot be read before more arrive.
  std::size_t wanted = 0;
  bool needs_more = false;
  int declined = 0;
  // What the request in the buffer is answered by, where its head is complete and its caller was let in, and counted as
  // `caller`; null before.
  std::shared_ptr<const Route> route;
  std::shared_ptr<const Caller> caller;
  std::shared_ptr<InferRequest> request;
  std::shared_ptr<Queue> queue;

  // The model that the request in the buffer is for, as far as that is known.
  std::string_view model() const {
    return route == nullptr ? std::string_view() : std::string_view(route->main->name());
  }
};

}  // namespace emberline::front
