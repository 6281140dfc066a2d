// Answers ids of many tables at once from their page files: which page each may be in, all those pages in flight
// together, rows copied out as the pages come.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "pages/file.h"
#include "pages/flights.h"
#include "pages/page_queue.h"
#include "pages/read_queue.h"

namespace emberline::pages {

enum State : std::uint8_t { kAbsent = 0, kFound = 1, kUnresolved = 2 };

struct ReadRequest {
  std::shared_ptr<const PageFile> file;  // null: the table has none, so every id is absent
  const std::int64_t* ids = nullptr;
  std::size_t n = 0;
  char* rows = nullptr;  // n * row_bytes of the file; those of ids that are not found are left as they are
  std::uint8_t* states = nullptr;  // n
};

struct ReaderOptions {
  std::string io = "auto";  // "uring", "threads" or "auto"
  std::size_t depth = 64;  // pages of one call in flight
  std::size_t page_queues = 16;  // calls that read at the same time; one more waits, within its deadline
  std::size_t threads = 32;  // threads of the fall-back
};

struct ReaderStats {
  std::uint64_t pages = 0;  // read from files
  std::uint64_t coalesced = 0;  // taken from another call's read instead
  std::uint64_t unresolved = 0;  // ids whose row did not come before the deadline
  std::uint64_t filtered = 0;  // ids that were found absent without a read
};

class PageReader {
 public:
  explicit PageReader(const ReaderOptions& options);
  PageReader(ReaderOptions options, std::unique_ptr<ReadQueues> queues);
  ~PageReader();  // closes it

  // Answers requests. Thread-safe. deadline: an id that has not been read by then stays kUnresolved, its row as it was.
  // Throws CorruptPage and DiskError; requests may be answered in part then.
  void read(const std::vector<ReadRequest>& requests, Deadline deadline);

  // Waits for the reads under way, then frees rings, memory and threads; later reads throw DiskError. Thread-safe.
  void close();

  const std::string& io() const { return io_; }
  ReaderStats stats() const;

 private:
  struct Call;

  std::unique_ptr<PageQueue> take_page_queue(Deadline deadline);
  void give_back(std::unique_ptr<PageQueue> page_queue);
  void start_janitor();
  void run_janitor();

  const ReaderOptions options_;
  std::unique_ptr<ReadQueues> queues_;  // null once it is closed
  const std::string io_;
  Flights flights_;

  std::mutex mutex_;
  std::condition_variable page_queue_free_;
  std::vector<std::unique_ptr<PageQueue>> free_page_queues_;
  std::size_t page_queues_ = 0;
  std::size_t most_page_queues_;

  // Signals page queues with reads that no call waits for any more.
  std::condition_variable left_;
  std::vector<std::unique_ptr<PageQueue>> left_page_queues_;
  std::thread janitor_;
  bool closing_ = false;

  std::atomic<std::uint64_t> pages_{0}, coalesced_{0}, unresolved_{0}, filtered_{0};
};

}  // namespace emberline::pages
