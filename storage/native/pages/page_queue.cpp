#include "pages/page_queue.h"

#include <cerrno>
#include <string>
#include <utility>

namespace emberline::pages {

PageQueue::PageQueue(std::unique_ptr<ReadQueue> queue, std::size_t depth, Flights& flights)
    : queue_(std::move(queue)), flights_(flights), slots_(depth) {
  for (Slot& slot : slots_) free_.push_back(&slot);
}

void PageQueue::start(std::shared_ptr<const PageFile> file, Flights::Ref flight, std::size_t task) {
  Slot& slot = *free_.back();
  const std::size_t bytes = file->geometry().page_bytes;
  if (slot.buffer.size() < bytes) slot.buffer = AlignedBytes(bytes);
  free_.pop_back();
  slot.op = {file->descriptor(), file->offset_of(flight->page), static_cast<std::uint32_t>(bytes), slot.buffer.data(),
             0};
  slot.file = std::move(file);
  slot.flight = std::move(flight);
  slot.task = task;
  slot.got = 0;
  queue_->push(slot.op);
}

void PageQueue::fail(const std::exception_ptr& failure) {
  for (Slot& slot : slots_) {
    if (slot.flight) flights_.land(slot.flight, nullptr, 0, failure);
  }
}

// Returns whether a read is finished; otherwise it was started again.
bool PageQueue::settle(Slot& slot, std::exception_ptr& failure) {
  const std::size_t bytes = slot.file->geometry().page_bytes;
  const std::int32_t result = slot.op.result;
  bool again = result == -EINTR || result == -EAGAIN || result == -ECANCELED;
  if (result == -EINVAL && slot.op.fd != slot.file->buffered_descriptor()) {
    slot.op.fd = slot.file->buffered_descriptor();  // a disk whose blocks are larger than a page's alignment
    again = true;
  }
  if (result > 0) {
    slot.got += static_cast<std::uint32_t>(result);
    again = slot.got < bytes;
  }
  try {
    if (again) {
      slot.op.offset = slot.file->offset_of(slot.flight->page) + slot.got;
      slot.op.bytes = static_cast<std::uint32_t>(bytes) - slot.got;
      slot.op.buffer = slot.buffer.data() + slot.got;
      queue_->push(slot.op);
      return false;
    }
    if (result < 0) throw DiskError(-result, "reading page " + std::to_string(slot.flight->page), slot.file->path());
    if (result == 0) {
      throw CorruptPage(slot.file->path() + ": it ends before page " + std::to_string(slot.flight->page) +
                        "; the file was cut off");
    }
    slot.file->check(slot.buffer.data(), slot.flight->page);
  } catch (...) {
    failure = std::current_exception();
  }
  return true;
}

}  // namespace emberline::pages
