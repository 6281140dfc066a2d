// Work on several tables by several threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <functional>
#include <mutex>
#include <vector>

#include "table/workers.h"
#include "training/training_table.h"

namespace emberline {

// The mutexes of tables, taken in one order everywhere.
class Locks {
 public:
  explicit Locks(std::vector<TrainingTable*> tables) {
    std::sort(tables.begin(), tables.end(), std::less<>());
    tables.erase(std::unique(tables.begin(), tables.end()), tables.end());
    locks_.reserve(tables.size());
    for (TrainingTable* table : tables) locks_.emplace_back(table->mutex());
  }

 private:
  std::vector<std::unique_lock<std::mutex>> locks_;
};

// Calls task(0) to task(count - 1) on at most so many threads; each takes the next one that is left.
template <class Task>
void on_threads(std::size_t threads, std::size_t count, const Task& task) {
  if (threads <= 1 || count <= 1) {
    for (std::size_t i = 0; i < count; ++i) task(i);
    return;
  }
  std::atomic<std::size_t> next{0};
  Workers::shared().run(std::min(threads, count), [&](std::size_t) {
    for (std::size_t i = next.fetch_add(1); i < count; i = next.fetch_add(1)) task(i);
  });
}

}  // namespace emberline
