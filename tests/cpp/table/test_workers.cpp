// The parked threads of one call: every task once, several callers at once, what a task throws, a child of fork.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

#include "check.h"
#include "table/workers.h"

using namespace emberline;

TEST(every_task_is_done_once) {
  for (const std::size_t count : {0u, 1u, 2u, 3u, 17u, 64u, 200u}) {
    std::vector<std::atomic<int>> done(count);
    Workers::shared().run(count, [&](std::size_t i) { ++done[i]; });
    for (const std::atomic<int>& each : done) CHECK(each == 1);
  }
}

TEST(callers_do_not_disturb_each_other) {
  std::vector<std::thread> callers;
  std::atomic<int> wrong{0};
  for (int caller = 0; caller < 6; ++caller) {
    callers.emplace_back([&wrong, caller] {
      for (int round = 0; round < 200; ++round) {
        std::vector<int> results(5, 0);  // plain words: what a helper wrote is seen when run() returns
        Workers::shared().run(5, [&](std::size_t i) { results[i] = caller * 1000 + round; });
        for (const int result : results) wrong += result != caller * 1000 + round;
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  CHECK(wrong == 0);
}

TEST(the_first_error_is_thrown_when_all_have_ended) {
  std::atomic<int> ended{0};
  bool thrown = false;
  try {
    Workers::shared().run(8, [&](std::size_t i) {
      ++ended;
      if (i % 2 == 1) throw std::runtime_error("odd");
    });
  } catch (const std::runtime_error& error) {
    thrown = std::string(error.what()) == "odd";
  }
  CHECK(thrown && ended == 8);
}

#if !defined(__SANITIZE_THREAD__)  // which does not follow a process with threads into its child
TEST(a_child_of_fork_has_workers_of_its_own) {
  Workers::shared().run(4, [](std::size_t) {});
  const pid_t child = fork();
  if (child == 0) {
    std::atomic<int> done{0};
    Workers::shared().run(4, [&](std::size_t) { ++done; });
    _exit(done == 4 ? 0 : 1);
  }
  int status = -1;
  CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}
#endif

RUN_ALL_TESTS()
