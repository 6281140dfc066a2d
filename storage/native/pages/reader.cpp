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
    : options_(std::move(options)),
      queues_(std::move(queues)),
      io_(queues_->name()),
      most_page_queues_(options_.page_queues) {}

PageReader::~PageReader() { close(); }

void PageReader::close() {
  std::unique_ptr<ReadQueues> queues;  // outlive their page queues
  std::vector<std::unique_ptr<PageQueue>> page_queues;
  std::thread janitor;
  {
    std::unique_lock lock(mutex_);
    closing_ = true;
    left_.notify_all();
    page_queue_free_.notify_all();
    if (!left_page_queues_.empty() && !janitor_.joinable()) {
      lock.unlock();
      run_janitor();
      lock.lock();
    }
    page_queue_free_.wait(lock, [this] { return free_page_queues_.size() == page_queues_; });
    page_queues.swap(free_page_queues_);
    page_queues_ = 0;
    queues.swap(queues_);
    janitor.swap(janitor_);
  }
  if (janitor.joinable()) janitor.join();
}

void PageReader::read(const std::vector<ReadRequest>& requests, Deadline deadline) {
  Call call(requests);
  filtered_.fetch_add(call.locate(), std::memory_order_relaxed);
  if (call.tasks.empty()) return;
  std::unique_ptr<PageQueue> page_queue;
  if (!deadline || Clock::now() < *deadline) page_queue = take_page_queue(deadline);
  if (!page_queue) {
    unresolved_.fetch_add(call.wanted.size(), std::memory_order_relaxed);
    return;
  }
  std::vector<Joined> joined;
  std::size_t next = 0;
  const auto own = [&](PageQueue::Slot& slot, const std::exception_ptr& failed) {
    call.take(slot.task, slot.buffer.data(), failed);
  };
  const auto late = [&] { return deadline && Clock::now() >= *deadline; };
  try {
    while (!call.failure && (next < call.tasks.size() || page_queue->under_way() > 0 || !joined.empty()) && !late()) {
      // A window of pages, own and others' together: what is held at once is bounded.
      while (next < call.tasks.size() && !page_queue->full() &&
             page_queue->under_way() + joined.size() < page_queue->depth()) {
        const std::shared_ptr<const PageFile>& file = call.file_of(next);
        auto [flight, mine] = flights_.board(file->number(), call.wanted[call.tasks[next].begin].page);
        if (mine) {
          try {
            page_queue->start(file, flight, next);
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
      if (page_queue->under_way() > 0) {
        // A few at a time: fewer system calls, and the disk still has most of the window to work on.
        page_queue->turn(std::min(page_queue->under_way(), std::max<std::size_t>(1, page_queue->depth() / 8)), deadline,
                         own);
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
  give_back(std::move(page_queue));
  if (call.failure) std::rethrow_exception(call.failure);
  unresolved_.fetch_add(call.unresolved(), std::memory_order_relaxed);
}

std::unique_ptr<PageQueue> PageReader::take_page_queue(Deadline deadline) {
  std::unique_lock lock(mutex_);
  start_janitor();
  const auto possible = [this] { return closing_ || !free_page_queues_.empty() || page_queues_ < most_page_queues_; };
  for (;;) {
    if (!deadline) {
      page_queue_free_.wait(lock, possible);
    } else if (!page_queue_free_.wait_until(lock, *deadline, possible)) {
      return nullptr;
    }
    if (closing_) throw DiskError(ECANCELED, "reading", "a reader that was closed");
    if (!free_page_queues_.empty()) {
      std::unique_ptr<PageQueue> page_queue =
          std::move(free_page_queues_.back());  // the last one used: its memory is warm
      free_page_queues_.pop_back();
      return page_queue;
    }
    try {
      auto page_queue = std::make_unique<PageQueue>(queues_->make(), options_.depth, flights_);
      ++page_queues_;
      return page_queue;
    } catch (const DiskError&) {
      if (page_queues_ == 0) throw;
      most_page_queues_ = page_queues_;  // the system gives no more rings: make do with those that there are
    }
  }
}

void PageReader::give_back(std::unique_ptr<PageQueue> page_queue) {
  const std::lock_guard lock(mutex_);
  if (page_queue->under_way() > 0) {
    left_page_queues_.push_back(std::move(page_queue));
    start_janitor();
    left_.notify_one();
  } else {
    free_page_queues_.push_back(std::move(page_queue));
    page_queue_free_.notify_all();  // a call, or a close that waits for every page queue
  }
}

// Under the lock.
void PageReader::start_janitor() {
  if (janitor_.joinable() || left_page_queues_.empty()) return;
  try {
    janitor_ = std::thread([this] { run_janitor(); });
  } catch (const std::system_error&) {
    // The system gives no more threads: the next call tries again, or close lands what was left.
  }
}

// Lands what callers gave up: others may have joined it, and the memory is used again only afterwards.
void PageReader::run_janitor() {
  std::vector<std::unique_ptr<PageQueue>> page_queues;
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      if (page_queues.empty()) left_.wait(lock, [this] { return closing_ || !left_page_queues_.empty(); });
      for (std::unique_ptr<PageQueue>& page_queue : left_page_queues_) page_queues.push_back(std::move(page_queue));
      left_page_queues_.clear();
      if (page_queues.empty()) return;
    }
    for (std::unique_ptr<PageQueue>& page_queue : page_queues) {
      // Serve them in turn, and none for long: a page queue may come to an end while another's disk hangs.
      try {
        page_queue->turn(1, Clock::now() + std::chrono::milliseconds(1),
                         [](PageQueue::Slot&, const std::exception_ptr&) {});
      } catch (...) {
        // The system does not say any more what becomes of its reads. Their memory is never used again.
        page_queue->fail(std::current_exception());
        (void)page_queue.release();
        const std::lock_guard lock(mutex_);
        --page_queues_;
        page_queue_free_.notify_all();
        continue;
      }
      if (page_queue->under_way() == 0) give_back(std::move(page_queue));
    }
    std::erase(page_queues, nullptr);
  }
}

ReaderStats PageReader::stats() const {
  return {pages_.load(std::memory_order_relaxed), coalesced_.load(std::memory_order_relaxed),
          unresolved_.load(std::memory_order_relaxed), filtered_.load(std::memory_order_relaxed)};
}

}  // namespace emberline::pages
