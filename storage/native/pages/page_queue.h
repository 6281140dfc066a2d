// A queue of reads with the memory that they read into, and the handling of each page that arrives.
//
// It belongs to one call at a time. A call that gives up leaves its reads under way; then the queue goes to the janitor
// (reader.cpp), which lands them, and only then to the next call. So no memory is used again while a disk may write
// into it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <vector>

#include "pages/aligned.h"
#include "pages/file.h"
#include "pages/flights.h"
#include "pages/read_queue.h"

namespace emberline::pages {

class PageQueue {
 public:
  // A page under way. task: the caller's own number for it.
  struct Slot {
    ReadOp op;
    AlignedBytes buffer;
    std::shared_ptr<const PageFile> file;
    Flights::Ref flight;
    std::size_t task = 0;
    std::uint32_t got = 0;  // bytes of earlier, shorter reads
  };

  PageQueue(std::unique_ptr<ReadQueue> queue, std::size_t depth, Flights& flights);

  bool full() const { return free_.empty(); }
  std::size_t under_way() const { return slots_.size() - free_.size(); }
  std::size_t depth() const { return slots_.size(); }

  // Begins to read a page for a flight of the caller's own.
  void start(std::shared_ptr<const PageFile> file, Flights::Ref flight, std::size_t task);

  // Waits until at least `least` reads ended, or the deadline; lands all that ended and calls
  // done(slot, failure) for each: the page is in slot.buffer then, unless there is a failure.
  template <class Done>
  void turn(std::size_t least, Deadline deadline, Done done) {
    ended_.clear();
    queue_->turn(least, deadline, ended_);
    for (ReadOp* op : ended_) {
      Slot& slot = slots_[static_cast<std::size_t>(reinterpret_cast<Slot*>(op) - slots_.data())];
      std::exception_ptr failure;
      if (!settle(slot, failure)) continue;  // the read was started again
      flights_.land(slot.flight, slot.buffer.data(), slot.file->geometry().page_bytes, failure);
      done(slot, failure);
      slot.file.reset();
      slot.flight.reset();
      free_.push_back(&slot);
    }
  }

  // Lands all that is under way with a failure, and nothing can be done with this afterwards.
  void fail(const std::exception_ptr& failure);

 private:
  bool settle(Slot& slot, std::exception_ptr& failure);

  std::unique_ptr<ReadQueue> queue_;
  Flights& flights_;
  std::vector<Slot> slots_;
  std::vector<Slot*> free_;
  std::vector<ReadOp*> ended_;
};

}  // namespace emberline::pages
