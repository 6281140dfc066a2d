#include "pages/reader.h"

#include <algorithm>
#include <cerrno>
#include <exception>
#include <system_error>
#include <utility>

namespace emberline::pages {
namespace {

// An id that a page may hold.
struct Wanted {
  std::uint64_t page;
  std::uint32_t request;
  std::uint32_t index;
};

// The ids that one page may hold: [begin, end) of the wanted.
struct Task {
  std::size_t begin, end;
};

struct Joined {
  Flights::Ref flight;
  std::size_t task;
};

}  // namespace

// One call of `read`.
struct PageReader::Call {
  explicit Call(const std::vector<ReadRequest>& all) : requests(all) {}

  const std::vector<ReadRequest>& requests;
  std::vector<Wanted> wanted;
  std::vector<Task> tasks;
  std::exception_ptr failure;

  // Finds the pages that are needed. Returns how many ids are absent without one.
  std::size_t locate() {
    std::size_t absent = 0;
    std::vector<std::uint64_t> pages;
    for (std::uint32_t r = 0; r < requests.size(); ++r) {
      const ReadRequest& request = requests[r];
      if (request.n == 0) continue;
      if (!request.file) {
        std::fill_n(request.states, request.n, kAbsent);
        absent += request.n;
        continue;
      }
      pages.resize(request.n);
      request.file->locate(request.ids, request.n, pages.data());
      for (std::size_t i = 0; i < request.n; ++i) {
        const bool none = pages[i] == PageFile::kNoPage;
        request.states[i] = none ? kAbsent : kUnresolved;
        absent += none;
        if (!none) wanted.push_back({pages[i], r, static_cast<std::uint32_t>(i)});
      }
    }
    const auto by_page = [](const Wanted& a, const Wanted& b) {
      return a.request != b.request ? a.request < b.request : a.page < b.page;
    };
    if (!std::is_sorted(wanted.begin(), wanted.end(), by_page)) std::sort(wanted.begin(), wanted.end(), by_page);
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      if (i > 0 && wanted[i].request == wanted[i - 1].request && wanted[i].page == wanted[i - 1].page) {
        ++tasks.back().end;
      } else {
        tasks.push_back({i, i + 1});
      }
    }
    return absent;
  }

  const std::shared_ptr<const PageFile>& file_of(std::size_t task) const {
    return requests[wanted[tasks[task].begin].request].file;
  }

  // Copies what the ids of a task need out of its page.
  void deliver(std::size_t task, const char* bytes) {
    const Geometry& geometry = file_of(task)->geometry();
    const PageView page{bytes, geometry};
    const std::int64_t* const ids = page.ids();
    const std::size_t count = page.header().count;
    for (std::size_t i = tasks[task].begin; i < tasks[task].end; ++i) {
      const ReadRequest& request = requests[wanted[i].request];
      const std::size_t index = wanted[i].index;
      const std::int64_t* const place = std::lower_bound(ids, ids + count, request.ids[index]);
      const bool found = place != ids + count && *place == request.ids[index];
      request.states[index] = found ? kFound : kAbsent;
      if (found) {
        std::memcpy(request.rows + index * geometry.row_bytes, page.row(static_cast<std::size_t>(place - ids)),
                    geometry.row_bytes);
      }
    }
  }

  void take(std::size_t task, const char* bytes, const std::exception_ptr& failed) {
    if (failed) {
      if (!failure) failure = failed;
    } else {
      deliver(task, bytes);
    }
  }

  std::size_t unresolved() const {
    std::size_t count = 0;
    for (const Wanted& one : wanted) count += requests[one.request].states[one.index] == kUnresolved;
    return count;
  }
};

PageReader::PageReader(const ReaderOptions& options)
    : PageReader(options, make_read_queues(options.io, options.depth, options.threads)) {}

PageReader::PageReader(ReaderOptions options, std::unique_ptr<ReadQueues> queues)
    : options_(std::move(options)), queues_(std::move(queues)), io_(queues_->name()), most_lanes_(options_.lanes) {}

PageReader::~PageReader() { close(); }

void PageReader::close() {
  std::unique_ptr<ReadQueues> queues;  // outlive their page queues
  std::vector<std::unique_ptr<Lane>> lanes;
  std::thread janitor;
  {
    std::unique_lock lock(mutex_);
    closing_ = true;
    left_.notify_all();
    lane_free_.notify_all();
    if (!left_lanes_.empty() && !janitor_.joinable()) {
      lock.unlock();
      run_janitor();
      lock.lock();
    }
    lane_free_.wait(lock, [this] { return free_lanes_.size() == lanes_; });
    lanes.swap(free_lanes_);
    lanes_ = 0;
    queues.swap(queues_);
    janitor.swap(janitor_);
  }
  if (janitor.joinable()) janitor.join();
}

void PageReader::read(const std::vector<ReadRequest>& requests, Deadline deadline) {
  Call call(requests);
  filtered_.fetch_add(call.locate(), std::memory_order_relaxed);
  if (call.tasks.empty()) return;
  std::unique_ptr<Lane> lane;
  if (!deadline || Clock::now() < *deadline) lane = take_lane(deadline);
  if (!lane) {
    unresolved_.fetch_add(call.wanted.size(), std::memory_order_relaxed);
    return;
  }
  std::vector<Joined> joined;
  std::size_t next = 0;
  const auto own = [&](Lane::Slot& slot, const std::exception_ptr& failed) {
    call.take(slot.task, slot.buffer.data(), failed);
  };
  const auto late = [&] { return deadline && Clock::now() >= *deadline; };
  try {
    while (!call.failure && (next < call.tasks.size() || lane->under_way() > 0 || !joined.empty()) && !late()) {
      // A window of pages, own and others' together: what is held at once is bounded.
      while (next < call.tasks.size() && !lane->full() && lane->under_way() + joined.size() < lane->depth()) {
        const std::shared_ptr<const PageFile>& file = call.file_of(next);
        auto [flight, mine] = flights_.board(file->number(), call.wanted[call.tasks[next].begin].page);
        if (mine) {
          try {
            lane->start(file, flight, next);
          } catch (...) {
            flights_.land(flight, nullptr, 0, std::current_exception());
            throw;
          }
          pages_.fetch_add(1, std::memory_order_relaxed);
        } else {
          joined.push_back({std::move(flight), next});
          coalesced_.fetch_add(1, std::memory_order_relaxed);
        }
        ++next;
      }
      if (lane->under_way() > 0) {
        // A few at a time: fewer system calls, and the disk still has most of the window to work on.
        lane->turn(std::min(lane->under_way(), std::max<std::size_t>(1, lane->depth() / 8)), deadline, own);
      } else if (!joined.empty()) {
        if (!flights_.wait(joined.front().flight, deadline)) break;
      }
      std::erase_if(joined, [&](const Joined& one) {
        if (!flights_.landed(one.flight)) return false;
        call.take(one.task, one.flight->bytes.data(), one.flight->failure);
        return true;
      });
    }
  } catch (...) {
    if (!call.failure) call.failure = std::current_exception();
  }
  give_back(std::move(lane));
  if (call.failure) std::rethrow_exception(call.failure);
  unresolved_.fetch_add(call.unresolved(), std::memory_order_relaxed);
}

std::unique_ptr<Lane> PageReader::take_lane(Deadline deadline) {
  std::unique_lock lock(mutex_);
  start_janitor();
  const auto possible = [this] { return closing_ || !free_lanes_.empty() || lanes_ < most_lanes_; };
  for (;;) {
    if (!deadline) {
      lane_free_.wait(lock, possible);
    } else if (!lane_free_.wait_until(lock, *deadline, possible)) {
      return nullptr;
    }
    if (closing_) throw DiskError(ECANCELED, "reading", "a reader that was closed");
    if (!free_lanes_.empty()) {
      std::unique_ptr<Lane> lane = std::move(free_lanes_.back());  // the last one used: its memory is warm
      free_lanes_.pop_back();
      return lane;
    }
    try {
      auto lane = std::make_unique<Lane>(queues_->make(), options_.depth, flights_);
      ++lanes_;
      return lane;
    } catch (const DiskError&) {
      if (lanes_ == 0) throw;
      most_lanes_ = lanes_;  // the system gives no more rings: make do with those that there are
    }
  }
}

void PageReader::give_back(std::unique_ptr<Lane> lane) {
  const std::lock_guard lock(mutex_);
  if (lane->under_way() > 0) {
    left_lanes_.push_back(std::move(lane));
    start_janitor();
    left_.notify_one();
  } else {
    free_lanes_.push_back(std::move(lane));
    lane_free_.notify_all();  // a call, or a close that waits for every lane
  }
}

// Under the lock.
void PageReader::start_janitor() {
  if (janitor_.joinable() || left_lanes_.empty()) return;
  try {
    janitor_ = std::thread([this] { run_janitor(); });
  } catch (const std::system_error&) {
    // The system gives no more threads: the next call tries again, or close lands what was left.
  }
}

// Lands what callers gave up: others may have joined it, and the memory is used again only afterwards.
void PageReader::run_janitor() {
  std::vector<std::unique_ptr<Lane>> lanes;
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      if (lanes.empty()) left_.wait(lock, [this] { return closing_ || !left_lanes_.empty(); });
      for (std::unique_ptr<Lane>& lane : left_lanes_) lanes.push_back(std::move(lane));
      left_lanes_.clear();
      if (lanes.empty()) return;
    }
    for (std::unique_ptr<Lane>& lane : lanes) {
      // Serve them in turn, and none for long: a page queue may come to an end while another's disk hangs.
      try {
        lane->turn(1, Clock::now() + std::chrono::milliseconds(1), [](Lane::Slot&, const std::exception_ptr&) {});
      } catch (...) {
        // The system does not say any more what becomes of its reads. Their memory is never used again.
        lane->fail(std::current_exception());
        (void)lane.release();
        const std::lock_guard lock(mutex_);
        --lanes_;
        lane_free_.notify_all();
        continue;
      }
      if (lane->under_way() == 0) give_back(std::move(lane));
    }
    std::erase(lanes, nullptr);
  }
}

ReaderStats PageReader::stats() const {
  return {pages_.load(std::memory_order_relaxed), coalesced_.load(std::memory_order_relaxed),
          unresolved_.load(std::memory_order_relaxed), filtered_.load(std::memory_order_relaxed)};
}

}  // namespace emberline::pages
