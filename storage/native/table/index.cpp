#include "table/index.h"

#include <algorithm>
#include <atomic>

namespace emberline {

namespace {

// The fields are shared with readers, so every access is atomic; which thread may write is said in the header.
int64_t load_id(const Line& line, int way) {
  return std::atomic_ref<int64_t>(const_cast<Line&>(line).ids[way]).load(std::memory_order_relaxed);
}
uint32_t load_slot(const Line& line, int way) {
  return std::atomic_ref<uint32_t>(const_cast<Line&>(line).slots[way]).load(std::memory_order_acquire);
}
void store_slot(Line& line, int way, uint32_t slot) {
  std::atomic_ref<uint32_t>(line.slots[way]).store(slot, std::memory_order_release);
}
uint32_t load_version(const Line& line) {
  return std::atomic_ref<uint32_t>(const_cast<Line&>(line).version).load(std::memory_order_acquire);
}

uint32_t match(const Line& line, int64_t id) {
  for (int way = 0; way < kWays; ++way) {
    if (load_id(line, way) != id) continue;
    const uint32_t slot = load_slot(line, way);
    if (slot != kEmptySlot && load_id(line, way) == id) return slot;
  }
  return kEmptySlot;
}

}  // namespace

Index::Index(uint64_t lines) : count_(std::max<uint64_t>(lines, 2)), pages_(count_ * sizeof(Line)) {
  pages_.commit(count_ * sizeof(Line));
  lines_ = reinterpret_cast<Line*>(pages_.data());
  for (uint64_t number = 0; number < count_; ++number) {
    std::fill(std::begin(lines_[number].slots), std::end(lines_[number].slots), kEmptySlot);
  }
}

uint32_t Index::find(int64_t id, const Candidates& at) const {
  for (;;) {
    const Line& first = lines_[at.first];
    const uint32_t version = load_version(first);
    uint32_t slot = match(first, id);
    if (slot != kEmptySlot) return slot;
    slot = match(lines_[at.second], id);
    if (slot != kEmptySlot) return slot;
    if (load_version(first) == version) return kEmptySlot;
  }
}

int Index::position_of(const Line& line, int64_t id) const {
  for (int way = 0; way < kWays; ++way) {
    if (load_id(line, way) == id && load_slot(line, way) != kEmptySlot) return way;
  }
  return -1;
}

uint32_t Index::exchange(int64_t id, uint32_t slot) {
  const Candidates at = candidates(id);
  for (uint64_t number : {at.first, at.second}) {
    const int way = position_of(lines_[number], id);
    if (way < 0) continue;
    const uint32_t old = load_slot(lines_[number], way);
    store_slot(lines_[number], way, slot);
    return old;
  }
  return kEmptySlot;
}

uint32_t Index::vacate(int64_t id) {
  const Candidates at = candidates(id);
  for (uint64_t number : {at.first, at.second}) {
    const int way = position_of(lines_[number], id);
    if (way < 0) continue;
    const uint32_t old = load_slot(lines_[number], way);
    store_slot(lines_[number], way, kEmptySlot);
    if (published_) vacated_[number * kWays + static_cast<uint64_t>(way)] = Epochs::global().retire();
    return old;
  }
  return kEmptySlot;
}

int Index::empty_position(uint64_t number) {
  for (int way = 0; way < kWays; ++way) {
    if (load_slot(lines_[number], way) != kEmptySlot) continue;
    const auto vacated = vacated_.find(number * kWays + static_cast<uint64_t>(way));
    if (vacated == vacated_.end()) return way;
    if (vacated->second < Epochs::global().safe_below()) {
      vacated_.erase(vacated);
      return way;
    }
  }
  return -1;
}

void Index::write(uint64_t number, int way, int64_t id, uint32_t slot) {
  std::atomic_ref<int64_t>(lines_[number].ids[way]).store(id, std::memory_order_relaxed);
  store_slot(lines_[number], way, slot);
}

// Moves one entry of a full line to its other candidate line, if that has an empty position, and waits until the position left behind may
// change its owner.
bool Index::displace_from(uint64_t number) {
  for (int way = 0; way < kWays; ++way) {
    const uint32_t slot = load_slot(lines_[number], way);
    if (slot == kEmptySlot) continue;
    const int64_t id = load_id(lines_[number], way);
    const Candidates at = candidates(id);
    const uint64_t other = at.first == number ? at.second : at.first;
    const int target = empty_position(other);
    if (other == number || target < 0) continue;
    write(other, target, id, slot);
    std::atomic_ref<uint32_t>(lines_[other].version).fetch_add(1, std::memory_order_acq_rel);
    store_slot(lines_[number], way, kEmptySlot);
    if (published_) Epochs::global().wait_for(Epochs::global().retire());
    return true;
  }
  return false;
}

bool Index::fill(int64_t id, uint32_t slot) {
  const Candidates at = candidates(id);
  for (int attempt = 0; attempt < 2; ++attempt) {
    for (uint64_t number : {at.first, at.second}) {
      const int way = empty_position(number);
      if (way < 0) continue;
      write(number, way, id, slot);
      return true;
    }
    if (attempt == 0 && !displace_from(at.first) && !displace_from(at.second)) return false;
  }
  return false;
}

bool Index::absorb(const Index& other) {
  published_ = false;
  for (uint64_t number = 0; number < other.count_; ++number) {
    for (int way = 0; way < kWays; ++way) {
      const uint32_t slot = load_slot(other.lines_[number], way);
      if (slot != kEmptySlot && !fill(load_id(other.lines_[number], way), slot)) return false;
    }
  }
  published_ = true;
  return true;
}

}  // namespace emberline
