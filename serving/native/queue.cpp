#include "queue.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <numeric>
#include <utility>

namespace emberline::front {

namespace {

// The weight of the newest batch: about the last twenty batches decide. The estimate follows a change of load soon, and
// one slow batch hardly changes it.
constexpr double kNewest = 0.1;

std::string formatted(const char* format, double value) {
  char text[64];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

}  // namespace

std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

std::int64_t Arm::rows() const { return std::accumulate(rows_.begin(), rows_.end(), std::int64_t{0}); }

std::size_t Arm::size(std::size_t level) const { return levels_[level].timely.size() + levels_[level].delayed.size(); }

std::int64_t Arm::rows_before(std::size_t level) const {
  return std::accumulate(rows_.begin(), rows_.begin() + static_cast<std::ptrdiff_t>(level) + 1, std::int64_t{0});
}

void Arm::add(Request request) {
  rows_[request->level] += request->rows;
  ++count_;
  levels_[request->level].timely.push_back(std::move(request));
}

bool Arm::discard(const Waiting* request) {
  for (auto* queue : {&levels_[request->level].timely, &levels_[request->level].delayed}) {
    const auto found =
        std::find_if(queue->begin(), queue->end(), [&](const Request& each) { return each.get() == request; });
    if (found == queue->end()) continue;
    rows_[request->level] -= request->rows;
    --count_;
    queue->erase(found);
    return true;
  }
  return false;
}

const Waiting* Arm::first(std::int64_t now) {
  if (count_ == 0) return nullptr;
  for (Level& level : levels_) {
    while (!level.timely.empty() && level.timely.front()->delay_at_ns > 0 && level.timely.front()->delay_at_ns <= now) {
      level.delayed.push_back(std::move(level.timely.front()));
      level.timely.pop_front();
    }
    found_ = level.timely.empty() ? &level.delayed : &level.timely;
    if (!found_->empty()) return found_->front().get();
  }
  return nullptr;
}

Request Arm::pop() {
  Request request = std::move(found_->front());
  found_->pop_front();
  rows_[request->level] -= request->rows;
  --count_;
  return request;
}

std::int64_t Arm::oldest_ns() const {
  std::int64_t oldest = INT64_MAX;
  for (const Level& level : levels_) {
    for (const auto* queue : {&level.timely, &level.delayed}) {
      if (!queue->empty()) oldest = std::min(oldest, queue->front()->arrived_ns);
    }
  }
  return oldest;
}

void Arm::append_all(std::vector<Request>& out) const {
  for (const Level& level : levels_) {
    out.insert(out.end(), level.timely.begin(), level.timely.end());
    out.insert(out.end(), level.delayed.begin(), level.delayed.end());
  }
}

void Arm::clear() {
  for (Level& level : levels_) {
    level.timely.clear();
    level.delayed.clear();
  }
  std::fill(rows_.begin(), rows_.end(), 0);
  count_ = 0;
}

Queue::Queue(QueueOptions options, std::int64_t sessions)
    : options_(std::move(options)),
      least_room_(*std::min_element(options_.max_waiting.begin(), options_.max_waiting.end())),
      main_(options_.max_waiting.size()),
      canary_(options_.max_waiting.size()),
      sessions_(sessions) {}

std::size_t Queue::size() const { return count_.load(std::memory_order_relaxed); }

std::int64_t Queue::sessions() const {
  const std::lock_guard lock(mutex_);
  return sessions_;
}

void Queue::enter() {
  const std::lock_guard lock(mutex_);
  ++sessions_;
}

Refusal Queue::put(Request request) {
  const std::lock_guard lock(mutex_);
  if (is_closed_) return {true, ""};
  std::string why = full(request->level);
  if (why.empty() && (request->deadline_ns != 0 || options_.max_wait_ns != 0)) {
    why = slow(request->level, request->deadline_ns);
  }
  if (!why.empty()) return {false, std::move(why)};
  (request->canary ? canary_ : main_).add(std::move(request));
  count_.store(waiting(), std::memory_order_relaxed);
  changed_.notify_one();
  return {};
}

Refusal Queue::check() {
  // Without the lock where that is enough, because this runs for every request.
  if (options_.max_wait_ns == 0 && static_cast<std::int64_t>(size()) < least_room_) return {};
  const std::lock_guard lock(mutex_);
  std::string why;
  for (std::size_t level = 0; level < options_.max_waiting.size(); ++level) {
    why = full(level);
    if (why.empty()) why = slow(level, 0);
    if (why.empty()) return {};
  }
  return {false, std::move(why)};
}

bool Queue::discard(const Waiting* request) {
  const std::lock_guard lock(mutex_);
  const bool was_waiting = (request->canary ? canary_ : main_).discard(request);
  count_.store(waiting(), std::memory_order_relaxed);
  return was_waiting;
}

Batch Queue::take() {
  {
    const std::lock_guard lock(mutex_);
    forget_batch();
  }
  const std::lock_guard turn(turn_);
  std::unique_lock lock(mutex_);
  Batch batch;
  const std::int64_t rows = gather_batch(lock, batch);
  if (rows > 0) under_way_.push_back({std::this_thread::get_id(), now_ns(), rows});
  return batch;
}

// The calling session no longer works on the batch that it took last.
void Queue::forget_batch() {
  const std::thread::id session = std::this_thread::get_id();
  std::erase_if(under_way_, [&](const UnderWay& each) { return each.session == session; });
}

// Waits for the next batch; returns its rows.
std::int64_t Queue::gather_batch(std::unique_lock<std::mutex>& lock, Batch& batch) {
  std::int64_t rows = 0;
  Arm* arm = &main_;
  while (true) {
    if (batch.requests.empty()) {
      if (leaving_ > 0) {
        --leaving_;
        batch.is_end = true;
        return rows;
      }
      if (is_paused_) {
        changed_.wait(lock);
        continue;
      }
      arm = first_arm();
    }
    const bool is_full = gather(*arm, batch, rows);
    if (batch.requests.empty()) {
      if (!batch.expired.empty()) return rows;
      if (waiting() == 0) {
        if (is_closed_) {
          batch.is_end = true;
          return rows;
        }
        changed_.wait(lock);
      }
      continue;
    }
    const auto& preferred = options_.preferred;
    if (is_full || is_closed_ || options_.delay_ns == 0 ||
        std::find(preferred.begin(), preferred.end(), rows) != preferred.end()) {
      return rows;
    }
    if ((arm == &main_ ? canary_ : main_).count() > 0) {
      return rows;  // the other arm must not wait while this one gathers more requests
    }
    const std::int64_t until_ns = batch.requests.front()->arrived_ns + options_.delay_ns;
    const std::int64_t left_ns = until_ns - now_ns();
    // No deadline may pass while the batch waits for more requests.
    const bool is_due = std::any_of(batch.requests.begin(), batch.requests.end(), [&](const Request& each) {
      return each->deadline_ns > 0 && each->deadline_ns <= until_ns;
    });
    if (left_ns <= 0 || is_due) return rows;
    changed_.wait_for(lock, std::chrono::nanoseconds(left_ns));
  }
}

void Queue::leave(std::int64_t sessions) {
  const std::lock_guard lock(mutex_);
  leaving_ += sessions;
  sessions_ -= sessions;
  changed_.notify_all();
}

bool Queue::retire() {
  const std::lock_guard lock(mutex_);
  if (sessions_ <= 1) return false;
  --sessions_;
  forget_batch();
  return true;
}

void Queue::close() {
  const std::lock_guard lock(mutex_);
  is_closed_ = true;
  changed_.notify_all();
}

std::vector<Request> Queue::clear() {
  const std::lock_guard lock(mutex_);
  std::vector<Request> left;
  main_.append_all(left);
  canary_.append_all(left);
  main_.clear();
  canary_.clear();
  count_.store(0, std::memory_order_relaxed);
  return left;
}

void Queue::pause() {
  const std::lock_guard lock(mutex_);
  is_paused_ = true;
}

void Queue::resume() {
  const std::lock_guard lock(mutex_);
  is_paused_ = false;
  changed_.notify_all();
}

std::vector<std::size_t> Queue::levels() const {
  const std::lock_guard lock(mutex_);
  std::vector<Request> every;
  main_.append_all(every);
  canary_.append_all(every);
  std::vector<std::size_t> found;
  for (const Request& each : every) found.push_back(each->level);
  return found;
}

void Queue::worked(std::int64_t rows, std::int64_t ns) {
  const double row_ns = static_cast<double>(ns) / static_cast<double>(std::max<std::int64_t>(1, rows));
  const double known = row_ns_.load(std::memory_order_relaxed);
  row_ns_.store(known == 0.0 ? row_ns : known + kNewest * (row_ns - known), std::memory_order_relaxed);
}

std::int64_t Queue::wait_ns(std::int64_t rows) const {
  const std::lock_guard lock(mutex_);
  return estimate_ns(rows);
}

// Returns how long the sessions work on the batches that they have and on so many rows more; 0 if one of them is idle
// and no row waits.
std::int64_t Queue::estimate_ns(std::int64_t rows) const {
  const std::int64_t sessions = std::max<std::int64_t>(1, sessions_);
  if (rows == 0 && static_cast<std::int64_t>(under_way_.size()) < sessions) return 0;
  const double each = row_ns_.load(std::memory_order_relaxed);
  double ns = static_cast<double>(rows) * each;
  const std::int64_t now = now_ns();
  for (const UnderWay& batch : under_way_) {
    ns += std::max(0.0, static_cast<double>(batch.rows) * each - static_cast<double>(now - batch.taken_ns));
  }
  return static_cast<std::int64_t>(ns / static_cast<double>(sessions));
}

// Returns what to say when a level has no room; "" when it has.
std::string Queue::full(std::size_t level) const {
  const auto waiting_here = static_cast<std::int64_t>(main_.size(level) + canary_.size(level));
  if (waiting_here < options_.max_waiting[level]) return "";
  return options_.model + ": exceeds maximum queue size of " + std::to_string(options_.max_waiting[level]) +
         "; try later";
}

// Returns what to say when the rows that come before would take too long; "" when they would not. An idle model never
// refuses a request, however slow its last batch was.
std::string Queue::slow(std::size_t level, std::int64_t deadline_ns) const {
  const std::int64_t wait = estimate_ns(main_.rows_before(level) + canary_.rows_before(level));
  if (wait == 0) return "";
  const std::string takes = formatted("%.0f", static_cast<double>(wait) / 1e6);
  if (options_.max_wait_ns != 0 && wait > options_.max_wait_ns) {
    return options_.model + ": a request would wait " + takes + " ms, at most " +
           formatted("%g", static_cast<double>(options_.max_wait_ns) / 1e6) +
           " ms are allowed (max_wait_ms); try later";
  }
  if (deadline_ns != 0 && now_ns() + wait > deadline_ns) {
    return options_.model + ": the request would wait " + takes + " ms, past its deadline; try later";
  }
  return "";
}

// Returns the arm with the request that has waited longest.
Arm* Queue::first_arm() {
  if (canary_.count() == 0) return &main_;
  if (main_.count() == 0) return &canary_;
  return main_.oldest_ns() <= canary_.oldest_ns() ? &main_ : &canary_;
}

// Moves the requests of an arm that fit into the batch; returns whether nothing more will fit.
bool Queue::gather(Arm& arm, Batch& batch, std::int64_t& rows) {
  const std::int64_t now = now_ns();
  const std::int64_t stop = stop_at(arm, rows);
  bool is_full = false;
  const Waiting* request = nullptr;
  while (!is_full && (request = arm.first(now)) != nullptr) {
    if (request->deadline_ns > 0 && request->deadline_ns <= now) {
      batch.expired.push_back(arm.pop());
    } else if (!batch.requests.empty() && rows + request->rows > stop) {
      is_full = true;
    } else {
      rows += request->rows;
      batch.requests.push_back(arm.pop());
      is_full = rows >= stop || !options_.merge;
    }
  }
  count_.store(waiting(), std::memory_order_relaxed);
  return is_full;
}

// Returns how large the batch may grow: the largest preferred size that the waiting rows can fill, else the last
// preferred size; without preferred sizes, the limit.
std::int64_t Queue::stop_at(const Arm& arm, std::int64_t rows) const {
  const auto& preferred = options_.preferred;
  if (preferred.empty()) return options_.max_rows;
  const std::int64_t fill = rows + arm.rows();
  const auto above = std::upper_bound(preferred.begin(), preferred.end(), fill);
  return above == preferred.begin() ? preferred.back() : *(above - 1);
}

}  // namespace emberline::front
