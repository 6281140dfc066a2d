#include "table/workers.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <system_error>
#include <thread>

namespace emberline {

struct Workers::Job {
  const std::function<void(std::size_t)>& task;
  std::size_t count;
  std::atomic<std::size_t> next{0};
  std::size_t helpers = 0;       // parked threads at work on it; under the mutex
  std::exception_ptr error = nullptr;  // likewise
};

namespace {

// The pool is never destroyed: at the end of the process its threads are parked in it.
std::atomic<Workers*> of_process{nullptr};

Workers* make_workers() {
  // The child has this thread alone, and perhaps a mutex that another one held.
  pthread_atfork(nullptr, nullptr, [] { of_process.store(new Workers); });
  of_process.store(new Workers);
  return of_process.load();
}

}  // namespace

Workers& Workers::shared() {
  static Workers* first = make_workers();
  (void)first;
  return *of_process.load(std::memory_order_acquire);
}

void Workers::run(std::size_t count, const std::function<void(std::size_t)>& task) {
  if (count == 0) return;
  Job job{task, count};
  {
    const std::lock_guard lock(mutex_);
    const std::size_t wanted = std::min(count - 1, kMost);
    try {
      for (; threads_ < wanted; ++threads_) std::thread([this] { park(); }).detach();
    } catch (const std::system_error&) {
      // The system gives no more threads: those that there are and this one do the work.
    }
    if (count > 1) jobs_.push_back(&job);
  }
  if (count == 2) {
    wanted_.notify_one();
  } else if (count > 2) {
    wanted_.notify_all();
  }
  work(job);
  std::unique_lock lock(mutex_);
  jobs_.erase(std::remove(jobs_.begin(), jobs_.end(), &job), jobs_.end());
  ended_.wait(lock, [&] { return job.helpers == 0; });
  if (job.error) std::rethrow_exception(job.error);
}

void Workers::work(Job& job) {
  for (std::size_t i = job.next.fetch_add(1); i < job.count; i = job.next.fetch_add(1)) {
    try {
      job.task(i);
    } catch (...) {
      const std::lock_guard lock(mutex_);
      if (!job.error) job.error = std::current_exception();
    }
  }
}

void Workers::park() {
  std::unique_lock lock(mutex_);
  for (;;) {
    wanted_.wait(lock, [&] { return !jobs_.empty(); });
    Job* job = jobs_.front();
    if (job->next.load() >= job->count) {
      jobs_.pop_front();
      continue;
    }
    ++job->helpers;
    lock.unlock();
    work(*job);
    lock.lock();
    if (--job->helpers == 0) ended_.notify_all();
  }
}

}  // namespace emberline
