// A few parked threads that help with one large call. They wait in the kernel, never in a loop: a spinning waiter on a
// machine that is shared costs the others ten times what it gains.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>

namespace emberline {

class Workers {
 public:
  static constexpr std::size_t kMost = 64;  // threads

  // Returns the workers of the process. A child of fork gets fresh ones.
  static Workers& shared();

  // Calls task(0) to task(count - 1), each once, on this thread and on parked ones that are free; returns when all have
  // ended. Rethrows the first of what they threw. Several threads may call at once.
  void run(std::size_t count, const std::function<void(std::size_t)>& task);

 private:
  struct Job;

  void work(Job& job);
  void park();

  std::mutex mutex_;
  std::condition_variable wanted_;
  std::condition_variable ended_;
  std::deque<Job*> jobs_;
  std::size_t threads_ = 0;
};

}  // namespace emberline
