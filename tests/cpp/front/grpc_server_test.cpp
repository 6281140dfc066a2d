// A server of gRPC with real sockets, a client of nghttp2, and, as the Python path, another such server on a local
// socket. Run under the sanitizers too.
#include "grpc_server.h"

#include <nghttp2/nghttp2.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <random>
#include <string>
#include <thread>

#include "check.h"
#include "world.h"

using namespace emberline::front;

namespace {

using GrpcWorld = World<GrpcServer>;

ServerOptions grpc_options() {
  ServerOptions made = options();
  made.overloaded_status = "8";
  made.late_status = "3";
  made.expired_status = "4";
  return made;
}

// A ModelInferRequest of rows with one value, with gRPC's prefix.
std::string message(std::int64_t rows, std::int64_t value, const std::string& model = "m") {
  std::string input =
      "\x0a\x01"
      "a"
      "\x12\x05"
      "INT64"
      "\x1a\x01";
  input += static_cast<char>(rows);
  std::string content;
  for (std::int64_t i = 0; i < rows; ++i) content.append(reinterpret_cast<const char*>(&value), sizeof value);
  std::string body = "\x0a" + std::string(1, static_cast<char>(model.size())) + model;
  body += "\x2a" + std::string(1, static_cast<char>(input.size())) + input + "\x3a";
  if (content.size() >= 128) body += static_cast<char>((content.size() & 0x7f) | 0x80);
  body += static_cast<char>(content.size() >= 128 ? content.size() >> 7 : content.size());
  body += content;
  std::string prefix(5, '\0');
  prefix[3] = static_cast<char>(body.size() >> 8);
  prefix[4] = static_cast<char>(body.size());
  return prefix + body;
}

// A client's connection. Its calls are sent as they are made; `finish` waits for their answers.
class Client {
 public:
  struct Call {
    std::string body;
    std::size_t sent = 0;
    std::string head, content, status;
    bool stays_open = false, is_closed = false;
    std::uint32_t code = 0;
  };

  // window: bytes of an answer that it takes.
  explicit Client(int end, std::uint32_t window = 65535) : end_(end) {
    nghttp2_session_callbacks* callbacks = nullptr;
    nghttp2_session_callbacks_new(&callbacks);
    nghttp2_session_callbacks_set_on_header_callback(callbacks, on_header);
    nghttp2_session_callbacks_set_on_data_chunk_recv_callback(callbacks, on_data);
    nghttp2_session_callbacks_set_on_stream_close_callback(callbacks, on_close);
    nghttp2_session_client_new(&session_, callbacks, this);
    nghttp2_session_callbacks_del(callbacks);
    const nghttp2_settings_entry settings = {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, window};
    nghttp2_submit_settings(session_, NGHTTP2_FLAG_NONE, &settings, 1);
  }
  ~Client() {
    nghttp2_session_del(session_);
    ::close(end_);
  }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  std::int32_t ask(std::string body, const std::string& path = "/inference.GRPCInferenceService/ModelInfer",
                   const std::vector<std::pair<std::string, std::string>>& further = {}) {
    std::vector<std::pair<std::string, std::string>> pairs = {
        {":method", "POST"}, {":scheme", "http"}, {":path", path},
        {":authority", "a"}, {"te", "trailers"},  {"content-type", "application/grpc"}};
    pairs.insert(pairs.end(), further.begin(), further.end());
    std::vector<nghttp2_nv> headers;
    for (auto& [name, value] : pairs) {
      headers.push_back({reinterpret_cast<std::uint8_t*>(name.data()), reinterpret_cast<std::uint8_t*>(value.data()),
                         name.size(), value.size(), NGHTTP2_NV_FLAG_NONE});
    }
    nghttp2_data_provider provider{};
    provider.read_callback = read_body;
    const std::int32_t id =
        nghttp2_submit_request(session_, nullptr, headers.data(), headers.size(), &provider, nullptr);
    calls[id].body = std::move(body);
    return id;
  }

  void cancel(std::int32_t id) { nghttp2_submit_rst_stream(session_, NGHTTP2_FLAG_NONE, id, NGHTTP2_CANCEL); }

  // Sends what waits. Returns false when the connection has ended.
  bool send() {
    const std::uint8_t* bytes = nullptr;
    ssize_t size = 0;
    while ((size = nghttp2_session_mem_send(session_, &bytes)) > 0) {
      for (ssize_t at = 0; at < size;) {
        const ssize_t did = ::send(end_, bytes + at, static_cast<std::size_t>(size - at), MSG_NOSIGNAL);
        if (did <= 0) return false;
        at += did;
      }
    }
    return size == 0;
  }

  // Reads once, for at most so long. Returns false when the connection has ended.
  bool receive(int wait_ms = 5000) {
    pollfd ready{end_, POLLIN, 0};
    if (::poll(&ready, 1, wait_ms) != 1) return true;
    std::uint8_t piece[16384];
    const ssize_t size = ::recv(end_, piece, sizeof piece, 0);
    return size > 0 && nghttp2_session_mem_recv(session_, piece, static_cast<std::size_t>(size)) == size;
  }

  // Waits until every call has been closed; returns whether they were within five seconds of silence.
  bool finish() {
    for (int turn = 0; turn < 5000; ++turn) {
      if (!send()) return false;
      bool is_done = true;
      for (const auto& [id, call] : calls) is_done = is_done && call.is_closed;
      if (is_done) return true;
      if (!receive()) return false;
    }
    return false;
  }

  int end() const { return end_; }
  std::map<std::int32_t, Call> calls;

 private:
  static Client& of(void* user) { return *static_cast<Client*>(user); }
  static int on_header(nghttp2_session*, const nghttp2_frame* frame, const std::uint8_t* name, std::size_t name_size,
                       const std::uint8_t* value, std::size_t value_size, std::uint8_t, void* user) {
    const std::string key(reinterpret_cast<const char*>(name), name_size);
    const std::string text(reinterpret_cast<const char*>(value), value_size);
    Call& call = of(user).calls[frame->hd.stream_id];
    if (key == "grpc-status") call.status = text;
    call.head += key + "=" + text + "\n";
    return 0;
  }
  static int on_data(nghttp2_session*, std::uint8_t, std::int32_t id, const std::uint8_t* data, std::size_t size,
                     void* user) {
    of(user).calls[id].content.append(reinterpret_cast<const char*>(data), size);
    return 0;
  }
  static int on_close(nghttp2_session*, std::int32_t id, std::uint32_t code, void* user) {
    of(user).calls[id].is_closed = true;
    of(user).calls[id].code = code;
    return 0;
  }
  static ssize_t read_body(nghttp2_session*, std::int32_t id, std::uint8_t* out, std::size_t size, std::uint32_t* flags,
                           nghttp2_data_source*, void* user) {
    Call& call = of(user).calls[id];
    const std::size_t count = std::min(size, call.body.size() - call.sent);
    std::memcpy(out, call.body.data() + call.sent, count);
    call.sent += count;
    if (call.stays_open && count == 0) return NGHTTP2_ERR_DEFERRED;
    if (call.sent == call.body.size() && !call.stays_open) *flags |= NGHTTP2_DATA_FLAG_EOF;
    return static_cast<ssize_t>(count);
  }

  const int end_;
  nghttp2_session* session_ = nullptr;
};

// The last score of an answer.
float score(const Client::Call& call) {
  float found = -1;
  if (call.content.size() >= sizeof found) {
    std::memcpy(&found, call.content.data() + call.content.size() - sizeof found, sizeof found);
  }
  return found;
}

std::string local_path(const char* name) { return "/tmp/emberline-grpc-test-" + std::to_string(::getpid()) + name; }

// A server whose calls all go to another one.
struct Chain {
  Chain() : path(local_path("-upstream")) {
    ::unlink(path.c_str());
    behind = std::make_unique<GrpcWorld>(WorldOptions{.local = path}, std::string("/nowhere"), std::string("s"));
    front = std::make_unique<GrpcWorld>(WorldOptions{.answers = false, .has_route = false}, path, std::string("s"));
  }
  ~Chain() { ::unlink(path.c_str()); }
  Chain(const Chain&) = delete;
  Chain& operator=(const Chain&) = delete;

  const std::string path;
  std::unique_ptr<GrpcWorld> behind, front;
};

}  // namespace

TEST(calls_are_answered_many_at_a_time) {
  const GrpcWorld world({}, std::string("/nowhere"), std::string("s"));
  Client client(world.connect());
  std::vector<std::int32_t> ids;
  for (std::int64_t value = 0; value < 300; ++value) ids.push_back(client.ask(message(1 + value % 16, value)));
  CHECK(client.finish());
  for (std::size_t i = 0; i < ids.size(); ++i) {
    CHECK(client.calls[ids[i]].status == "0");
    CHECK(score(client.calls[ids[i]]) == static_cast<float>(i));
  }
  CHECK(world.server->answered() == 300);
  CHECK(world.server->in_flight() == 0);
}

TEST(other_calls_are_passed_on_and_back) {
  const Chain chain;
  Client client(chain.front->connect());
  std::vector<std::int32_t> ids;
  for (std::int64_t value = 0; value < 300; ++value) ids.push_back(client.ask(message(1 + value % 16, value)));
  CHECK(client.finish());
  for (std::size_t i = 0; i < ids.size(); ++i) {
    CHECK(client.calls[ids[i]].status == "0");
    CHECK(score(client.calls[ids[i]]) == static_cast<float>(i));
  }
  CHECK(chain.front->server->passed_on() == 300);
  CHECK(chain.behind->server->answered() == 300);
}

TEST(calls_of_callers_that_were_not_let_in_are_passed_on) {
  const auto known = std::make_shared<Callers>(std::make_shared<Rates>(10), false);
  const std::string path = local_path("-guarded");
  ::unlink(path.c_str());
  const GrpcWorld behind(WorldOptions{.local = path}, std::string("/nowhere"), std::string("s"));
  ServerOptions guarded = grpc_options();
  guarded.callers = known;
  const GrpcWorld front(WorldOptions{.server = guarded}, path, std::string("s"));
  Client client(front.connect());
  const std::string infer = "/inference.GRPCInferenceService/ModelInfer",
                    stream = "/inference.GRPCInferenceService/ModelStreamInfer";
  std::int64_t answered = 0, passed = 0;
  // Asks with these tokens; returns whether this server has answered, and not the one behind it.
  const auto is_answered = [&](const std::vector<std::string>& tokens, const std::string& method) {
    std::vector<std::pair<std::string, std::string>> further;
    for (const std::string& token : tokens) further.emplace_back("authorization", token);
    const std::int32_t id = client.ask(message(1, 5), method, further);
    CHECK(client.finish() && client.calls[id].status == "0" && score(client.calls[id]) == 5);
    const bool is_here = front.server->answered() == answered + 1;
    CHECK(is_here != (front.server->passed_on() == passed + 1));
    answered = front.server->answered();
    passed = front.server->passed_on();
    return is_here;
  };
  for (const std::string& method : {infer, stream}) {
    known->forget();
    CHECK(!is_answered({"Bearer a"}, method) && !is_answered({}, method));
    known->let_in("Bearer a", "other", {"a", 0.0, false, 1e300, {}});
    CHECK(!is_answered({"Bearer a"}, method));
    known->let_in("Bearer a", "m", {"a", 0.0, false, 1e300, {}});
    CHECK(is_answered({"Bearer a"}, method) && !is_answered({"Bearer b"}, method) && !is_answered({}, method));
    known->let_in("Bearer r", "m", {method, 1.0, false, 1e300, {}});
    CHECK(is_answered({"Bearer r"}, method) && !is_answered({"Bearer r"}, method));
  }
  ::unlink(path.c_str());
}

TEST(without_a_python_path_other_calls_are_refused_and_plain_ones_answered) {
  const GrpcWorld world({}, std::string("/nowhere"), std::string("s"));
  Client client(world.connect());
  const std::int32_t other = client.ask("", "/a/b"), plain = client.ask(message(1, 5));
  CHECK(client.finish());
  CHECK(client.calls[other].code == NGHTTP2_REFUSED_STREAM);
  CHECK(score(client.calls[plain]) == 5);
}

TEST(calls_in_the_air_end_when_the_python_path_does) {
  auto chain = std::make_unique<Chain>();
  chain->behind->queue->pause();
  Client client(chain->front->connect());
  const std::int32_t id = client.ask(message(1, 5));
  CHECK(client.send());
  CHECK(within_five_seconds([&] { return chain->behind->queue->size() == 1; }));
  chain->behind->queue->resume();
  chain->behind->queue->close();
  chain->behind->server->stop();
  chain->behind.reset();
  CHECK(client.finish());
  CHECK(client.calls[id].status == "0" || client.calls[id].code != 0);
}

TEST(a_full_queue_and_a_late_request_are_refused) {
  const GrpcWorld full({.server = grpc_options(), .answers = false, .max_waiting = 1}, std::string("/nowhere"),
                       std::string());
  Client client(full.connect());
  const std::int32_t first = client.ask(message(1, 1)), second = client.ask(message(1, 1));
  CHECK(client.send());
  CHECK(within_five_seconds([&] {
    client.receive(10);
    return client.calls[second].is_closed;
  }));
  CHECK(client.calls[second].status == "8");
  client.cancel(first);
  CHECK(client.finish());
  CHECK(within_five_seconds([&] { return full.server->in_flight() == 0; }));
  CHECK(full.queue->size() == 0);

  const GrpcWorld late({.server = grpc_options(), .answers = false, .timeout_ns = 20'000'000}, std::string("/nowhere"),
                       std::string());
  Client waiting(late.connect());
  const std::int32_t own = waiting.ask(message(1, 1));
  CHECK(waiting.finish());
  CHECK(waiting.calls[own].status == "4");

  const GrpcWorld bounded({.server = grpc_options(), .answers = false}, std::string("/nowhere"), std::string("s"));
  Client hurried(bounded.connect());
  const std::int32_t soon =
      hurried.ask(message(1, 1), "/inference.GRPCInferenceService/ModelInfer", {{"grpc-timeout", "20m"}});
  CHECK(hurried.finish());
  CHECK(hurried.calls[soon].status == "4");
}

TEST(a_request_that_does_not_arrive_is_refused) {
  ServerOptions hurried = grpc_options();
  hurried.body_timeout_ns = 300'000'000;
  const GrpcWorld world({.server = hurried}, std::string("/nowhere"), std::string("s"));
  Client client(world.connect());
  const std::int32_t id = client.ask(message(2, 1).substr(0, 20));
  client.calls[id].stays_open = true;
  CHECK(client.finish());
  CHECK(client.calls[id].status == "3");
}

TEST(an_answer_that_its_client_does_not_take_ends) {
  ServerOptions hurried = grpc_options();
  hurried.body_timeout_ns = 300'000'000;
  const GrpcWorld world({.server = hurried}, std::string("/nowhere"), std::string("s"));
  Client client(world.connect(), 0);
  const std::int32_t id = client.ask(message(2, 1));
  CHECK(client.finish());
  CHECK(client.calls[id].code == NGHTTP2_CANCEL && client.calls[id].content.empty());
}

TEST(a_message_that_ends_within_is_not_plain) {
  const GrpcWorld world({}, std::string("/nowhere"), std::string("s"));
  Client client(world.connect());
  const std::int32_t id = client.ask(message(2, 1).substr(0, 20));
  CHECK(client.finish());
  CHECK(client.calls[id].code == NGHTTP2_REFUSED_STREAM);  // there is no Python path
}

TEST(clients_that_leave_free_their_places_here_and_behind) {
  const Chain chain;
  const GrpcWorld world({.answers = false}, std::string("/nowhere"), std::string("s"));
  chain.behind->queue->pause();
  for (int turn = 0; turn < 20; ++turn) {
    Client passed(chain.front->connect()), plain(world.connect());
    for (int i = 0; i < 5; ++i) {
      passed.ask(message(1, 1));
      plain.ask(message(1, 1));
    }
    CHECK(passed.send() && plain.send());
    if (turn % 2 == 0) {
      CHECK(within_five_seconds([&] { return chain.behind->queue->size() > 0 && world.queue->size() > 0; }));
    }
  }
  CHECK(within_five_seconds([&] { return chain.front->server->connections() == 0; }));
  CHECK(within_five_seconds([&] { return world.server->connections() == 0; }));
  CHECK(within_five_seconds([&] { return chain.behind->queue->size() == 0 && world.queue->size() == 0; }));
  CHECK(world.server->in_flight() == 0);
  chain.behind->queue->resume();
}

TEST(a_large_call_is_passed_on_within_the_windows) {
  const Chain chain;
  Client client(chain.front->connect());
  // The last server refuses it: it knows no such path either, and has no further one.
  const std::int32_t id = client.ask(std::string(900 << 10, 'x'), "/a/b");
  CHECK(client.finish());
  CHECK(client.calls[id].code != NGHTTP2_NO_ERROR);
  const std::int32_t next = client.ask(message(2, 9));
  CHECK(client.finish());
  CHECK(score(client.calls[next]) == 9);
}

TEST(draining_answers_what_was_begun_and_ends) {
  const GrpcWorld world({}, std::string("/nowhere"), std::string("s"));
  world.queue->pause();
  Client client(world.connect());
  const std::int32_t id = client.ask(message(1, 3));
  CHECK(client.send());
  CHECK(within_five_seconds([&] { return world.queue->size() == 1; }));
  world.server->drain();
  ::usleep(50'000);
  world.queue->resume();
  CHECK(client.finish());
  CHECK(score(client.calls[id]) == 3);
  while (client.send() && client.receive()) {
  }
  CHECK(within_five_seconds([&] { return world.server->connections() == 0; }));
}

TEST(connections_that_say_nothing_or_nonsense_are_ended) {
  const GrpcWorld world({}, std::string("/nowhere"), std::string("s"));
  const int end = world.connect();
  const std::string nonsense = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
  CHECK(::send(end, nonsense.data(), nonsense.size(), MSG_NOSIGNAL) > 0);
  char piece[1024];
  ssize_t got = 0;
  do {
    got = ::recv(end, piece, sizeof piece, 0);
  } while (got > 0);
  ::close(end);
  CHECK(within_five_seconds([&] { return world.server->connections() == 0; }));
}

TEST(damaged_frames_harm_nobody) {
  const Chain chain;
  std::mt19937 random(5);
  // A good conversation, as bytes.
  std::string good;
  {
    int ends[2];
    CHECK(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    Client recorded(ends[0]);
    for (int i = 0; i < 4; ++i)
      recorded.ask(message(1 + i, i), i % 2 == 0 ? "/a/b" : "/inference.GRPCInferenceService/ModelInfer");
    CHECK(recorded.send());
    char piece[65536];
    const ssize_t size = ::recv(ends[1], piece, sizeof piece, 0);
    good.assign(piece, static_cast<std::size_t>(size));
    ::close(ends[1]);
  }
  for (int turn = 0; turn < 300; ++turn) {
    std::string damaged = good;
    for (unsigned i = 0; i < 1 + random() % 4; ++i) {
      const std::size_t place = 24 + random() % (damaged.size() - 24);
      switch (random() % 3) {
        case 0: damaged[place] = static_cast<char>(random()); break;
        case 1: damaged.erase(place, 1 + random() % 4); break;
        default: damaged.insert(place, 1, static_cast<char>(random())); break;
      }
    }
    const int end = chain.front->connect();
    ::send(end, damaged.data(), damaged.size(), MSG_NOSIGNAL);
    pollfd ready{end, POLLIN, 0};
    ::poll(&ready, 1, 2);
    ::close(end);
  }
  CHECK(within_five_seconds([&] { return chain.front->server->connections() == 0; }));
  Client client(chain.front->connect());
  const std::int32_t id = client.ask(message(2, 4));
  CHECK(client.finish());
  CHECK(score(client.calls[id]) == 4);
}

RUN_ALL_TESTS()
