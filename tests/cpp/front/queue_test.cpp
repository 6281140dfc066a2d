#include "queue.h"

#include <atomic>
#include <set>
#include <thread>

#include "check.h"

using namespace emberline::front;

namespace {

QueueOptions options(std::int64_t max_rows = 16) {
  QueueOptions made;
  made.model = "model 'm'";
  made.max_rows = max_rows;
  made.merge = true;
  made.max_waiting = {1000, 1000};
  return made;
}

Request request(std::int64_t rows, std::size_t level = 0, bool canary = false, std::int64_t deadline_ns = 0) {
  auto made = std::make_shared<Waiting>();
  made->rows = rows;
  made->level = level;
  made->canary = canary;
  made->arrived_ns = now_ns();
  made->deadline_ns = deadline_ns;
  return made;
}

}  // namespace

TEST(batches_are_filled_in_order) {
  Queue queue(options(), 1);
  for (const std::int64_t rows : {4, 4, 9, 1}) CHECK(!queue.put(request(rows)));
  CHECK(queue.size() == 4);
  CHECK(queue.take().requests.size() == 2);
  const Batch batch = queue.take();
  CHECK(batch.requests.size() == 2 && batch.requests.front()->rows == 9);
  CHECK(queue.size() == 0);
}

TEST(levels_and_arms_are_kept_apart) {
  Queue queue(options(), 1);
  const Request low = request(1, 1), high = request(1, 0), canary = request(1, 0, true);
  for (const Request& each : {low, canary, high}) CHECK(!queue.put(each));
  const Batch first = queue.take(), second = queue.take();
  CHECK(first.requests.size() == 2 && first.requests[0] == high && first.requests[1] == low);
  CHECK(second.requests.size() == 1 && second.requests[0] == canary);
}

TEST(a_batch_under_way_counts_for_the_wait_until_its_session_takes_again) {
  QueueOptions made = options();
  made.max_wait_ns = 500'000'000;
  Queue queue(std::move(made), 1);
  queue.worked(1, 1'000'000'000);
  CHECK(!queue.put(request(1)));
  CHECK(queue.take().requests.size() == 1);
  CHECK(queue.check() && queue.put(request(1)));
  queue.leave(1);
  CHECK(queue.take().is_end);
  CHECK(!queue.check() && !queue.put(request(1)));
}

TEST(a_session_that_retires_leaves_no_batch_under_way) {
  QueueOptions made = options();
  made.max_wait_ns = 500'000'000;
  Queue queue(std::move(made), 2);
  queue.worked(1, 1'000'000'000);
  CHECK(!queue.put(request(1)));
  std::thread([&] {
    CHECK(queue.take().requests.size() == 1);
    CHECK(queue.retire());
  }).join();
  CHECK(queue.wait_ns(0) == 0);
}

TEST(requests_that_expired_are_returned_apart) {
  Queue queue(options(), 1);
  const Request late = request(1, 0, false, now_ns() - 1);
  queue.put(late);
  queue.put(request(1));
  const Batch batch = queue.take();
  CHECK(batch.requests.size() == 1 && batch.expired.size() == 1 && batch.expired[0] == late);
}

TEST(a_full_or_closed_queue_refuses) {
  QueueOptions small = options();
  small.max_waiting = {1};
  Queue queue(small, 1);
  const Request only = request(1);
  CHECK(!queue.put(only));
  const Refusal refusal = queue.put(request(1));
  CHECK(refusal.overloaded == "model 'm': exceeds maximum queue size of 1; try later");
  CHECK(queue.check().overloaded == refusal.overloaded);
  CHECK(queue.discard(only.get()));
  CHECK(!queue.discard(only.get()));
  CHECK(!queue.check());
  queue.close();
  CHECK(queue.put(request(1)).is_closed);
  CHECK(queue.take().is_end);
}

// Run under the thread sanitizer too.
TEST(many_threads_put_take_and_discard_and_nothing_is_lost) {
  QueueOptions large = options();
  large.max_waiting = {1 << 20, 1 << 20};
  Queue queue(large, 3);
  std::atomic<std::int64_t> taken{0}, discarded{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      while (true) {
        const Batch batch = queue.take();
        if (batch.is_end) return;
        std::int64_t rows = 0;
        for (const Request& each : batch.requests) rows += each->rows;
        CHECK(rows <= 16);
        taken += static_cast<std::int64_t>(batch.requests.size());
        queue.worked(rows, 1000);
      }
    });
  }
  constexpr int kEach = 3000;
  std::vector<std::thread> senders;
  for (int i = 0; i < 2; ++i) {
    senders.emplace_back([&, i] {
      for (int k = 0; k < kEach; ++k) {
        const Request made = request(1 + k % 5, static_cast<std::size_t>(k % 2), k % 7 == 0);
        queue.put(made);
        queue.check();
        if (k % 11 == i && queue.discard(made.get())) ++discarded;
      }
    });
  }
  for (std::thread& sender : senders) sender.join();
  queue.close();
  for (std::thread& thread : threads) thread.join();
  CHECK(taken + discarded == 2 * kEach);
}

RUN_ALL_TESTS()
