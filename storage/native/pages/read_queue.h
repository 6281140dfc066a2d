// Keeps many reads in flight at once: by io_uring where the kernel allows it, else by threads that block.
//
// A queue belongs to one thread at a time. Its reads write into memory of its owner, which must stay until they have
// ended.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace emberline::pages {

using Clock = std::chrono::steady_clock;
using Deadline = std::optional<Clock::time_point>;

struct ReadOp {
  int fd = -1;
  std::uint64_t offset = 0;
  std::uint32_t bytes = 0;
  char* buffer = nullptr;
  std::int32_t result = 0;  // bytes read, or minus an errno
};

class ReadQueue {
 public:
  virtual ~ReadQueue() = default;

  // Prepares a read. At most `depth` may be between push and their end.
  virtual void push(ReadOp& op) = 0;

  // Starts what was pushed and waits until at least `least` reads ended, or the deadline; adds all that ended to
  // `ended`.
  virtual void turn(std::size_t least, Deadline deadline, std::vector<ReadOp*>& ended) = 0;
};

// Makes queues of one kind. Thread-safe.
class ReadQueues {
 public:
  virtual ~ReadQueues() = default;
  virtual std::unique_ptr<ReadQueue> make() = 0;  // throws DiskError
  virtual const char* name() const = 0;
};

// depth: reads of one queue in flight. Null where the kernel has no io_uring, is too old for it, or refuses it.
std::unique_ptr<ReadQueues> uring_queues(std::size_t depth);

// threads: that all queues share.
std::unique_ptr<ReadQueues> thread_queues(std::size_t threads);

// kind: "uring", "threads" or "auto". Throws std::invalid_argument, and DiskError where "uring" is refused.
std::unique_ptr<ReadQueues> make_read_queues(const std::string& kind, std::size_t depth, std::size_t threads);

}  // namespace emberline::pages
