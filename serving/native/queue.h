// The bounded queue of a session group: requests wait by arm and priority, and sessions take batches of them.
//
// One session at a time gathers a batch (it may wait for more requests); the others wait for their turn to gather. So
// two sessions never compete for the same late request, and an idle one never breaks up a batch that is being gathered.
// Requests of the two arms, main and canary, wait apart and never share a batch; the arm whose request has waited
// longest is taken.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace emberline::front {

// A request that waits for a session. Times are nanoseconds on the clock of CLOCK_MONOTONIC.
struct Waiting {
  virtual ~Waiting() = default;

  std::int64_t rows = 0;
  std::int64_t arrived_ns = 0;
  // When it expires in the queue; 0 for never.
  std::int64_t deadline_ns = 0;
  // When it has waited longer than its level's timeout and goes behind those that have not; 0 for never.
  std::int64_t delay_at_ns = 0;
  std::size_t level = 0;
  bool canary = false;
};

using Request = std::shared_ptr<Waiting>;

struct QueueOptions {
  // How errors name the model, such as: model 'm'.
  std::string model;
  // The largest batch, in rows.
  std::int64_t max_rows = 0;
  // Whether requests share batches.
  bool merge = false;
  // Batch sizes worth waiting for, ascending.
  std::vector<std::int64_t> preferred;
  // How long a batch waits for more requests.
  std::int64_t delay_ns = 0;
  // The most requests that may wait, by level.
  std::vector<std::int64_t> max_waiting;
  // A request that would wait longer, by estimate, is refused; 0 for no limit.
  std::int64_t max_wait_ns = 0;
};

// Why a request was refused; empty when it was not.
struct Refusal {
  bool is_closed = false;
  // Says what is overloaded, for the client.
  std::string overloaded;

  explicit operator bool() const { return is_closed || !overloaded.empty(); }
};

struct Batch {
  std::vector<Request> requests;
  // Requests whose deadline had passed before a session could take them.
  std::vector<Request> expired;
  // The session is to end; the batch is empty.
  bool is_end = false;
};

// The requests of one arm. Not thread-safe: the queue holds its lock.
class Arm {
 public:
  explicit Arm(std::size_t levels) : levels_(levels), rows_(levels, 0) {}

  std::size_t count() const { return count_; }
  std::int64_t rows() const;
  std::size_t size(std::size_t level) const;
  // The rows that are taken before a request that is added to this level now.
  std::int64_t rows_before(std::size_t level) const;
  void add(Request request);
  bool discard(const Waiting* request);
  // The request whose turn it is; null when none waits.
  const Waiting* first(std::int64_t now_ns);
  // Removes and returns the request that `first` just returned.
  Request pop();
  // When the request that has waited longest arrived. There must be one.
  std::int64_t oldest_ns() const;
  // Every request, in the order of their turns.
  void append_all(std::vector<Request>& out) const;
  void clear();

 private:
  struct Level {
    std::deque<Request> timely, delayed;
  };
  std::vector<Level> levels_;
  std::vector<std::int64_t> rows_;
  std::size_t count_ = 0;
  // Where `first` found its request.
  std::deque<Request>* found_ = nullptr;
};

// Thread-safe. A request that was taken is answered; one whose deadline has passed is no longer taken.
class Queue {
 public:
  Queue(QueueOptions options, std::int64_t sessions);

  std::size_t size() const;
  std::int64_t sessions() const;
  // Counts one more session.
  void enter();

  // Adds a request, unless it is refused: its level is full, it would wait past its deadline or the model's bound by
  // estimate, or the queue is closed.
  Refusal put(Request request);
  // Returns why no request of any level would be accepted now, so that no work is spent on one.
  Refusal check();
  // Removes a request; returns false when a session already has it.
  bool discard(const Waiting* request);
  // Waits for the next batch. It may also return expired requests alone.
  Batch take();
  // Makes the next `sessions` calls of `take` end, so that as many sessions end.
  void leave(std::int64_t sessions);
  // Lets the calling session end if others take from the queue; returns false for the last one: it must stay.
  bool retire();
  // Refuses requests from now on; sessions still take those that wait.
  void close();
  // Removes and returns all requests; the caller refuses them.
  std::vector<Request> clear();
  // Lets no session begin a batch until `resume`; requests are still added.
  void pause();
  void resume();
  // The levels of the requests that wait, in the order of their turns, the main arm first.
  std::vector<std::size_t> levels() const;
  // Records that a session worked on a batch.
  void worked(std::int64_t rows, std::int64_t ns);
  // How many nanoseconds pass until the sessions have worked on what they have and on rows; 0 before the first batch.
  std::int64_t wait_ns(std::int64_t rows) const;

 private:
  // A batch that a session took and works on: until it takes the next one, or retires.
  struct UnderWay {
    std::thread::id session;
    std::int64_t taken_ns, rows;
  };

  void forget_batch();
  std::int64_t gather_batch(std::unique_lock<std::mutex>& lock, Batch& batch);
  std::int64_t estimate_ns(std::int64_t rows) const;
  std::string full(std::size_t level) const;
  std::string slow(std::size_t level, std::int64_t deadline_ns) const;
  Arm* first_arm();
  bool gather(Arm& arm, Batch& batch, std::int64_t& rows);
  std::int64_t stop_at(const Arm& arm, std::int64_t rows) const;
  std::size_t waiting() const { return main_.count() + canary_.count(); }

  const QueueOptions options_;
  std::int64_t least_room_;
  // Held by the session that gathers.
  std::mutex turn_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  Arm main_, canary_;
  std::atomic<std::size_t> count_{0};
  std::vector<UnderWay> under_way_;
  std::int64_t sessions_;
  std::int64_t leaving_ = 0;
  bool is_closed_ = false, is_paused_ = false;
  // A moving average.
  std::atomic<double> row_ns_{0.0};
};

std::int64_t now_ns();

}  // namespace emberline::front
