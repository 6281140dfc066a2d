// The writing side of Table. One writer at a time; readers go on.
#include <algorithm>
#include <cstring>
#include <string>

#include "table/table.h"

namespace emberline {
namespace {

constexpr std::uint32_t kMostDim = 4096;
constexpr std::uint64_t kMostRows = UINT32_MAX - 1;
constexpr std::uint64_t kRowsPerBucket = 4;        // reserve: four fifths full
constexpr std::size_t kWriteAhead = 16;          // buckets prefetched ahead of the writer
constexpr std::size_t kReclaimAt = 1024;         // old slots that are worth a look at the readers
constexpr std::uint8_t kDeliberate = 4;          // count of a row that was inserted on purpose, with no count given
constexpr std::size_t kChangedEntries = 4096;    // power of two
constexpr int kVictimBuckets = 2;                  // buckets whose rows compete for being the victim
constexpr std::uint64_t kUsesPerRow = 30;        // ageing halves the counts after so many uses a row

std::uint64_t buckets_for(std::uint64_t rows) {
  return std::max<std::uint64_t>(2, (rows + kRowsPerBucket - 1) / kRowsPerBucket);
}

// Slots beside the capacity, so that updates rarely wait for readers.
std::uint64_t slots_for(std::uint64_t capacity) {
  return capacity == 0 ? UINT32_MAX : capacity + std::max<std::uint64_t>(64, capacity / 64);
}

}  // namespace

Table::Table(std::uint32_t dim, std::uint32_t extra, std::uint64_t capacity_rows, RowType type)
    : format_{type, dim},
      extra_(extra),
      capacity_(capacity_rows),
      slab_(std::max<std::size_t>(4, stride()), slots_for(std::min(capacity_rows, kMostRows))),
      changed_(kChangedEntries, 0) {
  if (dim < 1 || dim > kMostDim || extra > kMostDim) {
    throw std::invalid_argument("dim must be 1 to 4096 and extra 0 to 4096, got " + std::to_string(dim) + " and " +
                                std::to_string(extra));
  }
  if (extra > 0 && type != RowType::kFp32) {
    throw std::invalid_argument(std::string("extra: only fp32 rows have values behind them, row_type is ") +
                                row_type_name(type));
  }
  if (capacity_rows > kMostRows - kMostRows / 32) {
    throw std::invalid_argument("capacity_rows must be below 2^32, got " + std::to_string(capacity_rows));
  }
  owned_buckets_ = std::make_unique<BucketArray>(buckets_for(std::max<std::uint64_t>(capacity_rows, 16)));
  buckets_.store(owned_buckets_.get(), std::memory_order_release);
  if (capacity_ > 0) sketch_ = std::make_unique<Sketch>(capacity_);
}

std::size_t Table::memory_bytes() const {
  const std::lock_guard lock(mutex_);
  std::size_t bytes = buckets().bytes() + slab_.bytes() + changed_.size() * sizeof(changed_[0]);
  for (const auto& old : old_buckets_) bytes += old.second->bytes();
  bytes += old_slots_.size() * sizeof(old_slots_[0]) + free_slots_.capacity() * sizeof(free_slots_[0]);
  return bytes + (sketch_ ? sketch_->bytes() : 0);
}

void Table::insert_or_assign(const std::int64_t* ids, std::size_t n, RowInput rows, const std::uint8_t* freq) {
  if (rows.floats != nullptr) check_encodable(format_, rows.floats, n);
  const std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < n; ++i) {
    if (i + kWriteAhead < n) __builtin_prefetch(&buckets().first(mix_id(ids[i + kWriteAhead])), 1, 3);
    const Place place = find_place(ids[i]);
    if (place.bucket != nullptr) {
      replace_row(place, rows, i);
      continue;
    }
    if (capacity_ > 0 && size() >= capacity_) {
      throw CapacityExceeded("the table is full: capacity_rows is " + std::to_string(capacity_) +
                             "; erase rows, use insert_and_evict, or build it with a larger capacity");
    }
    insert_new(ids[i], rows, i, freq != nullptr ? freq[i] : kDeliberate, true);
  }
}

std::size_t Table::insert_and_evict(const std::int64_t* ids, std::size_t n, RowInput rows) {
  if (rows.floats != nullptr) check_encodable(format_, rows.floats, n);
  const std::lock_guard lock(mutex_);
  age();
  std::size_t admitted = 0;
  for (std::size_t i = 0; i < n; ++i) {
    if (i + kWriteAhead < n) __builtin_prefetch(&buckets().first(mix_id(ids[i + kWriteAhead])), 1, 3);
    if (find_place(ids[i]).bucket != nullptr) continue;
    const std::uint32_t count = sketch_ ? sketch_->add(ids[i]) : 1;
    if (capacity_ > 0 && size() >= capacity_ && !make_room(count)) continue;
    // A cache never grows its index for ids that strangers choose: what finds no place is not admitted.
    admitted += insert_new(ids[i], rows, i, count_code(count, 0), capacity_ == 0);
  }
  uses_.fetch_add(n, std::memory_order_relaxed);
  return admitted;
}

std::size_t Table::assign(const std::int64_t* ids, std::size_t n, RowInput rows) {
  if (rows.floats != nullptr) check_encodable(format_, rows.floats, n);
  const std::lock_guard lock(mutex_);
  std::size_t assigned = 0;
  for (std::size_t i = 0; i < n; ++i) {
    if (i + kWriteAhead < n) __builtin_prefetch(&buckets().first(mix_id(ids[i + kWriteAhead])), 1, 3);
    const Place place = find_place(ids[i]);
    if (place.bucket == nullptr) continue;
    replace_row(place, rows, i);
    ++assigned;
  }
  return assigned;
}

std::size_t Table::erase(const std::int64_t* ids, std::size_t n) {
  const std::lock_guard lock(mutex_);
  std::size_t erased = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const Place place = find_place(ids[i]);
    if (place.bucket == nullptr) continue;
    remove(place);
    ++erased;
  }
  return erased;
}

void Table::reserve(std::uint64_t rows) {
  const std::lock_guard lock(mutex_);
  if (capacity_ > 0) rows = std::min(rows, capacity_);
  if (rows > kMostRows) throw CapacityExceeded("a table holds fewer than 2^32 rows, asked for " + std::to_string(rows));
  if (buckets_for(rows) > buckets().count()) grow(buckets_for(rows));
}

std::uint32_t Table::create(std::int64_t id) {
  const std::lock_guard lock(mutex_);
  const std::uint32_t slot = take_slot();
  enter(id, slot, true);
  return slot;
}

Table::Place Table::find_place(std::int64_t id) const {
  const std::uint64_t mixed = mix_id(id);
  Bucket* candidates[2] = {&buckets().first(mixed), &buckets().second(mixed)};
  const int count = (candidates[0]->version.load(std::memory_order_relaxed) & kOverflowBit) != 0 ? 2 : 1;
  for (int c = 0; c < count; ++c) {
    for (int at = 0; at < kBucketIds; ++at) {
      if (candidates[c]->ids[at].load(std::memory_order_relaxed) == id &&
          candidates[c]->slots[at].load(std::memory_order_relaxed) != kEmptySlot) {
        return {candidates[c], at};
      }
    }
  }
  return {};
}

std::uint32_t Table::take_slot() {
  if (free_slots_.empty() && old_slots_.size() >= kReclaimAt) reclaim();
  if (free_slots_.empty()) {
    if (const std::uint32_t slot = slab_.extend(); slot != kEmptySlot) return slot;
    if (old_slots_.empty()) throw CapacityExceeded("the table is full: every row slot is in use");
    grace_.wait(old_slots_.front().first);
    reclaim();
  }
  const std::uint32_t slot = free_slots_.back();
  free_slots_.pop_back();
  return slot;
}

// Takes back the slots and bucket arrays that no reader can hold any more.
void Table::reclaim() {
  grace_.poll();
  while (!old_slots_.empty() && grace_.passed(old_slots_.front().first)) {
    free_slots_.push_back(old_slots_.front().second);
    old_slots_.pop_front();
  }
  while (!old_buckets_.empty() && grace_.passed(old_buckets_.front().first)) old_buckets_.pop_front();
}

void Table::write_row(std::uint32_t slot, RowInput rows, std::size_t at) {
  char* to = slab_.row(slot);
  // One pointer of a RowInput is set.  NOLINTBEGIN(clang-analyzer-core.NullPointerArithm,*NonNullParamChecker)
  if (rows.encoded != nullptr) {
    std::memcpy(to, rows.encoded + at * stride(), stride());
  } else if (format_.type == RowType::kFp32) {
    std::memcpy(to, rows.floats + at * (format_.dim + extra_), stride());
  } else {
    encode_rows(format_, rows.floats + at * format_.dim, 1, to);  // was checked: does not throw
  }
  // NOLINTEND(clang-analyzer-core.NullPointerArithm,*NonNullParamChecker)
}

bool Table::insert_new(std::int64_t id, RowInput rows, std::size_t at, std::uint8_t score, bool may_grow) {
  const std::uint32_t slot = take_slot();
  write_row(slot, rows, at);
  slab_.score(slot).store(score, std::memory_order_relaxed);
  return enter(id, slot, may_grow);
}

// Makes a filled slot findable, or gives it back.
bool Table::enter(std::int64_t id, std::uint32_t slot, bool may_grow) {
  bool placed = false;
  try {
    placed = place(id, slot, may_grow);
  } catch (...) {
    free_slots_.push_back(slot);
    throw;
  }
  if (placed) {
    size_.fetch_add(1, std::memory_order_relaxed);
  } else {
    free_slots_.push_back(slot);
  }
  return placed;
}

void Table::replace_row(Place where, RowInput rows, std::size_t at) {
  std::atomic<std::uint32_t>& published = where.bucket->slots[where.at];
  const std::uint32_t old = published.load(std::memory_order_relaxed);
  const std::uint32_t slot = take_slot();
  write_row(slot, rows, at);
  slab_.score(slot).store(slab_.score(old).load(std::memory_order_relaxed), std::memory_order_relaxed);
  published.store(slot, std::memory_order_release);
  old_slots_.emplace_back(grace_.group(), old);
}

void Table::remove(Place where) {
  std::atomic<std::uint32_t>& published = where.bucket->slots[where.at];
  const std::uint32_t old = published.load(std::memory_order_relaxed);
  published.store(kEmptySlot, std::memory_order_release);
  old_slots_.emplace_back(grace_.group(), old);
  size_.fetch_sub(1, std::memory_order_relaxed);
}

// Lets the coldest of a few rows go, if the candidate is hotter: a clock over the buckets, so no list orders the rows.
bool Table::make_room(std::uint32_t candidate_count) {
  Place victim;
  std::uint8_t coldest = 255;
  BucketArray& array = buckets();
  int seen = 0;
  for (std::uint64_t step = 0; step < array.count() && seen < kVictimBuckets; ++step) {
    Bucket& bucket = array.bucket(hand_++ % array.count());
    bool any = false;
    for (int at = 0; at < kBucketIds; ++at) {
      const std::uint32_t slot = bucket.slots[at].load(std::memory_order_relaxed);
      if (slot == kEmptySlot) continue;
      any = true;
      const std::uint8_t score = slab_.score(slot).load(std::memory_order_relaxed);
      if (victim.bucket == nullptr || score < coldest) {
        victim = {&bucket, at};
        coldest = score;
      }
    }
    seen += any;
  }
  if (victim.bucket == nullptr || !is_victim(coldest, candidate_count)) return false;
  // It may be asked for again: it then comes back by its own count.
  sketch_->remember(victim.bucket->ids[victim.at].load(std::memory_order_relaxed), count_value(coldest));
  remove(victim);
  return true;
}

// A row that was hot long ago must not stay for ever: after a number of uses all counts are halved.
void Table::age() {
  if (capacity_ == 0 || uses_.load(std::memory_order_relaxed) < capacity_ * kUsesPerRow) return;
  uses_.store(0, std::memory_order_relaxed);
  for (std::uint32_t slot = 1; slot <= slab_.used(); ++slot) {
    std::atomic<std::uint8_t>& score = slab_.score(slot);
    score.store(count_halve(score.load(std::memory_order_relaxed)), std::memory_order_relaxed);
  }
  sketch_->halve();
}

}  // namespace emberline
