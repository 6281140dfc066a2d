// Threads that block in pread, where io_uring is refused (many containers refuse it) or switched off.
#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "pages/format.h"
#include "pages/read_queue.h"

namespace emberline::pages {
namespace {

// Finished reads, left here by the threads.
struct Ended {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<ReadOp*> ops;
};

class Workers {
 public:
  explicit Workers(std::size_t threads) : most_(threads) {}

  ~Workers() {
    {
      const std::lock_guard lock(mutex_);
      closing_ = true;
    }
    changed_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  void submit(std::vector<ReadOp*>& ops, Ended& ended) {
    {
      const std::lock_guard lock(mutex_);
      // Started when there is work for them: most stores never read that much at once.
      while (threads_.size() < most_ && idle_ < waiting_.size() + ops.size()) {
        try {
          threads_.emplace_back([this] { run(); });
        } catch (const std::system_error& error) {
          if (threads_.empty()) throw DiskError(error.code().value(), "starting a thread for reads", "the page reader");
          break;  // the existing threads do the work
        }
        ++idle_;
      }
      for (ReadOp* op : ops) waiting_.emplace_back(op, &ended);
    }
    ops.size() == 1 ? changed_.notify_one() : changed_.notify_all();
    ops.clear();
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return closing_ || !waiting_.empty(); });
      if (waiting_.empty()) return;
      const auto [op, ended] = waiting_.front();
      waiting_.pop_front();
      --idle_;
      lock.unlock();
      const ssize_t got = ::pread(op->fd, op->buffer, op->bytes, static_cast<off_t>(op->offset));
      op->result = static_cast<std::int32_t>(got < 0 ? -errno : got);
      {
        // The lock is held to the end: a waiting thread may destroy the queue as soon as it has this.
        const std::lock_guard ended_lock(ended->mutex);
        ended->ops.push_back(op);
        ended->changed.notify_one();
      }
      lock.lock();
      ++idle_;
    }
  }

  const std::size_t most_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::pair<ReadOp*, Ended*>> waiting_;
  std::vector<std::thread> threads_;
  std::size_t idle_ = 0;  // threads that wait, or were just started
  bool closing_ = false;
};

class ThreadQueue final : public ReadQueue {
 public:
  explicit ThreadQueue(Workers& workers) : workers_(workers) {}

  void push(ReadOp& op) override { pushed_.push_back(&op); }

  void turn(std::size_t least, Deadline deadline, std::vector<ReadOp*>& ended) override {
    if (!pushed_.empty()) workers_.submit(pushed_, ended_);
    std::unique_lock lock(ended_.mutex);
    const auto enough = [&] { return ended_.ops.size() >= least; };
    if (deadline) {
      ended_.changed.wait_until(lock, *deadline, enough);
    } else {
      ended_.changed.wait(lock, enough);
    }
    ended.insert(ended.end(), ended_.ops.begin(), ended_.ops.end());
    ended_.ops.clear();
  }

 private:
  Workers& workers_;
  std::vector<ReadOp*> pushed_;
  Ended ended_;
};

class ThreadQueues final : public ReadQueues {
 public:
  explicit ThreadQueues(std::size_t threads) : workers_(threads) {}
  std::unique_ptr<ReadQueue> make() override { return std::make_unique<ThreadQueue>(workers_); }
  const char* name() const override { return "threads"; }

 private:
  Workers workers_;
};

}  // namespace

std::unique_ptr<ReadQueues> thread_queues(std::size_t threads) { return std::make_unique<ThreadQueues>(threads); }

std::unique_ptr<ReadQueues> make_read_queues(const std::string& kind, std::size_t depth, std::size_t threads) {
  if (kind != "auto" && kind != "uring" && kind != "threads") {
    throw std::invalid_argument("io: '" + kind + "', expected auto, uring or threads");
  }
  if (kind != "threads") {
    if (auto queues = uring_queues(depth)) return queues;
    if (kind == "uring") throw DiskError(ENOSYS, "setting up", "io_uring");
  }
  return thread_queues(threads);
}

}  // namespace emberline::pages
