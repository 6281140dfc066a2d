// Counts how often this thread waits for the disk when it touches memory of a file.
#pragma once

#include <sys/resource.h>

#include <cstdint>

#include "training/row_budget.h"

namespace emberline {

class DiskWaits {
 public:
  // Adds what comes until its end to `total`, and tells the budget.
  DiskWaits(std::uint64_t& total, RowBudget& budget) : total_(total), budget_(budget), before_(now()) {}
  ~DiskWaits() {
    const auto waits = static_cast<std::uint64_t>(now() - before_);
    total_ += waits;
    if (waits > 0) budget_.add_waits(waits);
  }
  DiskWaits(const DiskWaits&) = delete;
  DiskWaits& operator=(const DiskWaits&) = delete;

 private:
  static long now() {
    rusage usage{};
    getrusage(RUSAGE_THREAD, &usage);
    return usage.ru_majflt;
  }

  std::uint64_t& total_;
  RowBudget& budget_;
  long before_;
};

}  // namespace emberline
