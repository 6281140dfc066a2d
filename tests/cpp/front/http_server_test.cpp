// A server with real sockets, and a session that answers from its queue. Run under the sanitizers too.
#include "http_server.h"

#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <thread>

#include "check.h"
#include "http_client.h"

using namespace emberline::front;

namespace {

bool begins(const std::string& text, const std::string& beginning) {
  return text.substr(0, beginning.size()) == beginning;
}

}  // namespace

TEST(requests_are_answered_in_their_order_also_ahead_and_in_pieces) {
  const HttpWorld world;
  const int end = world.connect();
  std::string all;
  for (std::int64_t value = 0; value < 50; ++value) all += request(1 + value % 16, "", value);
  std::thread sender([&] {
    for (std::size_t at = 0; at < all.size(); at += 97) send_all(end, all.substr(at, 97));
  });
  const std::string got = read_responses(end, 50);
  sender.join();
  std::size_t at = 0;
  for (std::int64_t value = 0; value < 50; ++value) {
    at = got.find("HTTP/1.1 200 OK", at);
    CHECK(at != std::string::npos);
    if (at == std::string::npos) break;
    const std::size_t head = got.find("\r\n\r\n", at) + 4;
    const std::size_t size = std::stoul(got.substr(got.find("content-length: ", at) + 16));
    float score = -1;
    std::memcpy(&score, got.data() + head + size - sizeof score, sizeof score);
    CHECK(score == static_cast<float>(value));
    at = head + size;
  }
  CHECK(world.server->answered() == 50);
  ::close(end);
}

TEST(other_requests_are_handed_over_with_their_bytes_and_come_back) {
  const HttpWorld world;
  const int end = world.connect();
  const std::string other = "GET /v2/health/live HTTP/1.1\r\nHost: a\r\n\r\n";
  send_all(end, other + request(1));
  std::vector<HandedOver> found;
  CHECK(within_five_seconds([&] { return !(found = world.server->take_handed_over()).empty(); }));
  CHECK(found.size() == 1 && found[0].bytes == other + request(1) && found[0].may_return);
  send_all(found[0].descriptor, "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n");
  ::close(found[0].descriptor);
  world.server->give_back(found[0].ticket, request(1));
  CHECK(read_responses(end, 2).find("inference-header-content-length") != std::string::npos);
  ::close(end);
  CHECK(within_five_seconds([&] { return world.server->connections() == 0; }));
}

TEST(a_connection_that_python_closed_is_closed) {
  const HttpWorld world;
  const int end = world.connect();
  send_all(end, "GET / HTTP/1.1\r\n\r\n");
  std::vector<HandedOver> found;
  CHECK(within_five_seconds([&] { return !(found = world.server->take_handed_over()).empty(); }));
  ::close(found.at(0).descriptor);
  world.server->closed(found.at(0).ticket);
  CHECK(read_responses(end, 1).empty());
  ::close(end);
}

TEST(a_full_queue_refuses_and_the_connection_goes_on) {
  const HttpWorld world({.answers = false, .max_waiting = 1});
  const int first = world.connect(), second = world.connect();
  send_all(first, request(1));
  CHECK(within_five_seconds([&] { return world.queue->size() == 1; }));
  for (int i = 0; i < 3; ++i) {
    send_all(second, request(1));
    const std::string got = read_responses(second, 1);
    CHECK(begins(got, "HTTP/1.1 503 "));
    CHECK(got.find("exceeds maximum queue size of 1; try later\"}") != std::string::npos);
  }
  CHECK(world.server->take_missed().size() == 3);
  ::close(first);
  CHECK(within_five_seconds([&] { return world.queue->size() == 0; }));  // it was cancelled
  CHECK(world.server->in_flight() == 0);
  ::close(second);
}

TEST(a_request_that_waits_too_long_expires) {
  const HttpWorld world({.answers = false, .timeout_ns = 20'000'000});
  const int end = world.connect();
  send_all(end, request(1));
  CHECK(begins(read_responses(end, 1), "HTTP/1.1 504 "));
  CHECK(world.queue->size() == 0 && world.server->in_flight() == 0);
  const auto missed = world.server->take_missed();
  CHECK(missed.size() == 1 && missed[0].why == Missed::Why::kExpired);
  ::close(end);
}

TEST(a_request_that_does_not_arrive_is_refused_and_ends) {
  ServerOptions hurried = options();
  hurried.body_timeout_ns = 300'000'000;
  const HttpWorld world({.server = hurried});
  const int end = world.connect();
  send_all(end, request(1).substr(0, 150));
  const std::string got = read_responses(end, 2);
  CHECK(begins(got, "HTTP/1.1 400 ") && got.find("connection: close") != std::string::npos);
  ::close(end);
}

TEST(connections_and_bytes_are_bounded) {
  ServerOptions few = options();
  few.max_connections = 2;
  few.max_inflight_bytes = 600;
  const HttpWorld world({.server = few, .answers = false});
  const int first = world.connect(), second = world.connect();
  send_all(first, request(1));
  CHECK(within_five_seconds([&] { return world.queue->size() == 1; }));
  send_all(second, request(16));
  CHECK(read_responses(second, 1).find("\"bytes\"") != std::string::npos);
  const int third = world.connect(), fourth = world.connect();
  CHECK(read_responses(fourth, 1).find("\"connections\"") != std::string::npos ||
        within_five_seconds([&] { return world.server->connections() <= 2; }));
  for (const int end : {first, second, third, fourth}) ::close(end);
}

TEST(no_connection_is_handed_over_when_few_files_are_left) {
  ServerOptions few = options();
  {
    const HttpWorld before;  // it opens the same files as the next one
    const int lowest = ::dup(0);
    ::close(lowest);
    few.last_descriptor = lowest + 2;  // behind a client's and the server's end of one connection
  }
  const HttpWorld world({.server = few});
  const int end = world.connect();
  send_all(end, "GET / HTTP/1.1\r\n\r\n");
  CHECK(begins(read_responses(end, 1), "HTTP/1.1 503 "));
  CHECK(world.server->take_handed_over().empty());
  ::close(end);
}

TEST(draining_answers_what_was_begun_and_ends) {
  const HttpWorld world;
  const int busy = world.connect(), idle = world.connect();
  send_all(busy, request(2));
  CHECK(begins(read_responses(busy, 1), "HTTP/1.1 200 "));
  world.server->drain();
  CHECK(read_responses(idle, 1).empty());
  CHECK(read_responses(busy, 1).empty());
  CHECK(within_five_seconds([&] { return world.server->connections() == 0; }));
  ::close(busy);
  ::close(idle);
}

TEST(draining_loses_no_answer_to_a_client_that_still_sends) {
  const HttpWorld world({.answers = false});
  const int end = world.connect();
  send_all(end, request(1));
  CHECK(within_five_seconds([&] { return world.queue->size() == 1; }));
  world.server->drain();
  send_all(end, request(2) + request(3));  // the server has not read these when it closes
  const Batch batch = world.queue->take();
  CHECK(batch.requests.size() == 1);
  const RequestBatch joined({std::static_pointer_cast<InferRequest>(batch.requests.at(0))});
  const float score = 1.0F;
  joined.respond({reinterpret_cast<const char*>(&score)}, {"\"1\"", "{}", "1", ""});
  CHECK(begins(read_responses(end, 1), "HTTP/1.1 200 "));
  char piece = 0;
  CHECK(::recv(end, &piece, 1, 0) == 0);  // an end, not a reset
  ::close(end);
  CHECK(within_five_seconds([&] { return world.server->connections() == 0; }));
}

TEST(many_clients_at_once_that_come_and_go) {
  const HttpWorld world;
  std::vector<std::thread> clients;
  for (int i = 0; i < 4; ++i) {
    clients.emplace_back([&world, i] {
      for (int k = 0; k < 60; ++k) {
        const int end = world.connect();
        for (int n = 0; n < 5; ++n) {
          send_all(end, request(1 + n, "", i));
          if (k % 3 != 0) CHECK(begins(read_responses(end, 1), "HTTP/1.1 200 "));
        }
        ::close(end);  // one in three goes without waiting for its answers
      }
    });
  }
  for (std::thread& client : clients) client.join();
  CHECK(within_five_seconds([&] { return world.server->connections() == 0 && world.server->in_flight() == 0; }));
}

RUN_ALL_TESTS()
