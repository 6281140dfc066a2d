// Who may be answered without the Python path, and how often; and servers that ask for it. Run under the sanitizers
// too.
#include "callers.h"

#include <unistd.h>

#include <limits>
#include <thread>

#include "blake2b.h"
#include "check.h"
#include "http_client.h"

using namespace emberline::front;

namespace {

constexpr double kNeverOver = std::numeric_limits<double>::infinity();

std::shared_ptr<Callers> callers() { return std::make_shared<Callers>(std::make_shared<Rates>(1000), false); }

ServerOptions guarded(const std::shared_ptr<Callers>& known) {
  ServerOptions made = options();
  made.callers = known;
  return made;
}

// What the Python path gets of a request; empty where the server answers it.
std::vector<HandedOver> passed_on(const HttpWorld& world, const std::string& bytes) {
  const int end = world.connect();
  const std::int64_t answered = world.server->answered();
  send_all(end, bytes);
  std::vector<HandedOver> found;
  CHECK(within_five_seconds([&] {
    found = world.server->take_handed_over();
    return !found.empty() || world.server->answered() > answered;
  }));
  for (const HandedOver& each : found) {
    ::close(each.descriptor);
    world.server->closed(each.ticket);
  }
  ::close(end);
  return found;
}

}  // namespace

TEST(digests_are_those_of_hashlib) {
  CHECK((blake2b_256("k", "message") ==
         std::array<std::uint64_t, 4>{0x15d57f376caa4a3d, 0x94e17c44e2772e2b, 0x9756fe441c643f58, 0x5429cda1389cff37}));
  CHECK((blake2b_256(std::string(32, 'k'), "") ==
         std::array<std::uint64_t, 4>{0x7ac892dbdbd9fac7, 0x3f9503cd9a212b93, 0x44e566f400f9eccc, 0x72fd0681261a67b7}));
  CHECK((blake2b_256(std::string(64, 'k'), std::string(300, 'x')) ==
         std::array<std::uint64_t, 4>{0x65536a80befa81bb, 0xbb7f207f84d23f02, 0xe99af3df07eb7033, 0xd13aadeb848280c0}));
}

TEST(a_caller_is_let_in_for_the_models_that_were_named_and_no_other) {
  const auto known = callers();
  CHECK(known->find("Bearer a") == nullptr && known->find(std::nullopt) == nullptr);
  known->let_in("Bearer a", "m", {"a", 0.0, false, kNeverOver, {}});
  known->let_in("Bearer a", "n", {"a", 0.0, false, kNeverOver, {}});
  const auto found = known->find("Bearer a");
  CHECK(found != nullptr && found->name == "a" && found->may_ask("m") && found->may_ask("n"));
  CHECK(!found->may_ask("m.t") && !found->may_ask("") && !found->may_ask("M"));
  CHECK(known->find("Bearer b") == nullptr && known->find("bearer a") == nullptr &&
        known->find("Bearer a ") == nullptr);
  CHECK(known->find(std::nullopt) == nullptr);
  known->let_in("", "m", {"anonymous", 0.0, false, kNeverOver, {}});
  CHECK(known->find(std::nullopt)->name == "anonymous" && !known->find(std::nullopt)->may_ask("n"));
  known->forget();
  CHECK(known->find("Bearer a") == nullptr && known->find(std::nullopt) == nullptr && found->may_ask("m"));
}

TEST(a_caller_whose_time_is_over_is_not_known) {
  const auto known = callers();
  known->let_in("x", "m", {"x", 0.0, false, 1e9, {}});
  known->let_in("y", "m", {"y", 0.0, false, 1e11, {}});
  CHECK(known->find("x") == nullptr && known->find("y") != nullptr);
}

TEST(a_caller_has_few_headers_and_their_models_and_takes_no_place_of_others) {
  const auto known = callers();
  known->let_in("y", "", {"y", 0.0, false, kNeverOver, {}});
  for (int i = 0; i < 20000; ++i)
    known->let_in(std::to_string(i), i == 0 ? "m" : "", {"x", 0.0, false, kNeverOver, {}});
  int left = 0;
  for (int i = 0; i < 20000; ++i) left += known->find(std::to_string(i)) != nullptr;
  CHECK(left == 8 && known->find("y") != nullptr);
  CHECK(known->find("19999") != nullptr && known->find("19999")->may_ask("m") && !known->find("19999")->may_ask(""));
  known->let_in("19999", "n", {"x", 0.0, false, kNeverOver, {}});
  CHECK(known->find("19999")->may_ask("n") && !known->find("y")->may_ask("m"));
}

TEST(where_nobody_has_to_be_known_an_unknown_header_is_none) {
  for (const bool is_open : {false, true}) {
    Callers known(std::make_shared<Rates>(10), is_open);
    CHECK(known.find("Basic x") == nullptr && known.find(std::nullopt) == nullptr);
    known.let_in("", "m", {"anonymous", 0.0, false, kNeverOver, {}});
    known.let_in("own", "m", {"own-token", 0.0, false, kNeverOver, {}});
    CHECK(known.find(std::nullopt) != nullptr && known.find("own")->name == "own-token");
    CHECK((known.find("Basic x") != nullptr) == is_open && (known.find("") != nullptr) == is_open);
  }
}

TEST(a_second_at_once_then_as_the_rate_says) {
  Rates rates(10);
  const auto granted = [&](double now, int times, double rate = 10.0, std::string_view client = "a") {
    int count = 0;
    for (int i = 0; i < times; ++i) count += rates.take(client, rate, now) == 0.0;
    return count;
  };
  CHECK(granted(1000.0, 100) == 10 && granted(1000.5, 100) == 5 && granted(5000.0, 100) == 10);
  CHECK(granted(4999.0, 100) == 0 && granted(5000.0, 100) == 0);  // a thread that is behind brings nothing
  CHECK(granted(5000.0, 100, 0.5, "b") == 1 && rates.take("b", 0.5, 5001.0) == 1.0);
  rates.give_back("a", 10.0);
  rates.give_back("nobody", 10.0);
  CHECK(granted(5000.0, 100) == 1);
  for (int i = 0; i < 100; ++i) rates.give_back("a", 10.0);
  CHECK(granted(5000.0, 100) == 10);
  for (int i = 0; i < 1000; ++i) {
    rates.take("a", 10.0, 5000.0);
    rates.take(std::to_string(i), 10.0, 5000.0);
  }
  CHECK(rates.clients() == 10 && granted(5000.0, 100) == 0);
}

TEST(many_threads_take_what_there_is) {
  const auto rates = std::make_shared<Rates>(4);
  const auto known = std::make_shared<Callers>(rates, false);
  std::atomic<int> granted{0};
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&] {
      for (int i = 0; i < 2000; ++i) {
        if (rates->take("a", 500.0, 7.0) == 0.0) ++granted;
        rates->take(std::to_string(i % 7), 1.0, 7.0);
        known->let_in("x", std::to_string(i % 5), {"x", 0.0, false, kNeverOver, {}});
        if (i % 100 == 0) known->forget();
        if (const auto found = known->find("x")) CHECK(found->name == "x");
      }
    });
  }
  for (std::thread& each : threads) each.join();
  CHECK(granted >= 500);  // more where the busy client was forgotten in between
}

TEST(requests_of_callers_that_were_not_let_in_are_for_python) {
  const auto known = callers();
  const HttpWorld world({.server = guarded(known)});
  const std::string mine = "Authorization: Bearer a\r\n";
  CHECK(passed_on(world, request(1)).size() == 1 && passed_on(world, request(1, mine)).size() == 1);
  known->let_in("Bearer a", "other", {"a", 0.0, false, kNeverOver, {}});
  CHECK(passed_on(world, request(1, mine)).size() == 1);
  known->let_in("Bearer a", "m", {"a", 0.0, false, kNeverOver, {}});
  CHECK(passed_on(world, request(1, mine)).empty() &&
        passed_on(world, request(1, "AUTHORIZATION:Bearer a \r\n")).empty());
  for (const char* other : {"Authorization: Bearer b\r\n", "Authorization: Bearer a b\r\n", "Authorization:\r\n",
                            "Authorization: Bearer a\r\nAuthorization: Bearer a\r\n",
                            "Authorization:\r\nAuthorization: Bearer a\r\n", "Proxy-Authorization: Bearer a\r\n", ""}) {
    CHECK(passed_on(world, request(1, other)).size() == 1);
  }
  known->let_in("", "m", {"anonymous", 0.0, false, kNeverOver, {}});
  CHECK(passed_on(world, request(1)).empty() && passed_on(world, request(1, "Authorization: \r\n")).size() == 1);
  known->forget();
  CHECK(passed_on(world, request(1, mine)).size() == 1 && passed_on(world, request(1)).size() == 1);
}

TEST(a_body_is_not_waited_for_before_its_caller_is_known) {
  const HttpWorld world({.server = guarded(callers())});
  const std::string whole = request(4, "Authorization: Bearer a\r\n");
  const std::string head = whole.substr(0, whole.find("\r\n\r\n") + 4);
  const auto found = passed_on(world, head);
  CHECK(found.size() == 1 && found[0].bytes == head);
}

TEST(a_caller_that_comes_too_often_is_for_python_before_its_body) {
  const auto known = callers();
  known->let_in("Bearer a", "m", {"a", 2.0, false, kNeverOver, {}});
  const HttpWorld world({.server = guarded(known)});
  const std::string mine = request(1, "Authorization: Bearer a\r\n");
  const std::string head = mine.substr(0, mine.find("\r\n\r\n") + 4);
  // A request is counted when its head is there, and once.
  const int end = world.connect();
  send_all(end, head);
  ::usleep(20'000);
  CHECK(passed_on(world, mine).empty());
  const auto found = passed_on(world, head);
  CHECK(found.size() == 1 && found[0].bytes == head && found[0].may_return);
  for (const char byte : mine.substr(head.size())) send_all(end, std::string(1, byte));
  CHECK(read_responses(end, 1).find("HTTP/1.1 200 OK") == 0 && world.server->answered() == 2);
  ::close(end);
}

TEST(a_request_that_python_counts_is_not_counted_here) {
  const auto rates = std::make_shared<Rates>(10);
  const auto known = std::make_shared<Callers>(rates, false);
  known->let_in("Bearer a", "m", {"a", 1.0, false, kNeverOver, {}});
  const auto is_left = [&] { return rates->take("a", 1.0, 1e-9 * static_cast<double>(now_ns())) == 0.0; };
  const std::string mine = request(1, "Authorization: Bearer a\r\n");
  {
    const HttpWorld world({.server = guarded(known)});
    std::string other = mine;  // the body is no plain one
    other.replace(other.find("INT64"), 5, "INT46");
    CHECK(passed_on(world, other).size() == 1 && is_left());
    rates->give_back("a", 1.0);
    world.queue->close();
    CHECK(passed_on(world, mine).size() == 1 && is_left());
    rates->give_back("a", 1.0);
  }
  const HttpWorld world({.server = guarded(known), .answers = false});
  const int end = world.connect();
  send_all(end, mine);
  CHECK(within_five_seconds([&] { return world.queue->size() == 1; }) && !is_left());
  Batch batch = world.queue->take();
  RequestBatch({std::static_pointer_cast<InferRequest>(batch.requests.at(0))}).hand_over();
  std::vector<HandedOver> found;
  CHECK(within_five_seconds([&] { return !(found = world.server->take_handed_over()).empty(); }) && is_left());
  ::close(found.at(0).descriptor);
  ::close(end);
}

TEST(callers_without_a_token_have_their_rate_by_address) {
  const auto rates = std::make_shared<Rates>(10);
  const auto known = std::make_shared<Callers>(rates, false);
  known->let_in("", "m", {"anonymous", 3.0, true, kNeverOver, {}});
  const HttpWorld world({.server = guarded(known)});
  CHECK(rates->take("@127.0.0.1", 3.0, 1e-9 * static_cast<double>(now_ns())) == 0.0);
  CHECK(passed_on(world, request(1)).empty() && passed_on(world, request(1)).empty());
  CHECK(passed_on(world, request(1)).size() == 1 && rates->clients() == 1);
}

RUN_ALL_TESTS()
