#include "table/table.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <unordered_set>

namespace emberline {

namespace {

constexpr uint64_t kMostRows = kEmptySlot;           // slots are 32 bits
constexpr uint64_t kAddressSpace = uint64_t{1} << 40;  // reserved, not used, per growing table
constexpr size_t kInFlight = 64;                     // ids whose cache misses overlap
constexpr double kLoad = 0.78;

uint64_t lines_for(uint64_t rows) { return static_cast<uint64_t>(static_cast<double>(rows) / (kLoad * kWays)) + 2; }

uint64_t slots_at_most(uint64_t capacity, size_t row_bytes) {
  // A cache keeps a few spare slots, because an evicted row stays readable until its readers have left.
  if (capacity > 0) return std::min(capacity + std::max<uint64_t>(64, capacity / 64), kMostRows);
  return std::min(kMostRows, kAddressSpace / row_bytes);
}

void prefetch_row(const float* row, size_t bytes) {
  const char* at = reinterpret_cast<const char*>(row);
  for (size_t offset = 0; offset < bytes; offset += 64) __builtin_prefetch(at + offset, 0, 2);  // into L2: more are in flight
}

uint32_t random_bits() {
  thread_local uint64_t state = 0x9E3779B97F4A7C15ull ^ reinterpret_cast<uintptr_t>(&state);
  state = state * 6364136223846793005ull + 1442695040888963407ull;
  return static_cast<uint32_t>(state >> 32);
}

}  // namespace

Table::Table(uint32_t dim, uint32_t extra, uint64_t capacity_rows)
    : dim_(dim),
      extra_(extra),
      capacity_(capacity_rows),
      slab_(slots_at_most(capacity_rows, size_t{dim + extra} * sizeof(float)) * (size_t{dim} + extra) * sizeof(float)),
      scores_(slots_at_most(capacity_rows, size_t{dim + extra} * sizeof(float))) {
  current_ = std::make_unique<Index>(lines_for(std::max<uint64_t>(capacity_rows, 1024)));
  index_.store(current_.get(), std::memory_order_release);
  if (capacity_ > 0) sketch_.emplace(capacity_);
}

Table::~Table() = default;

size_t Table::memory_bytes() const {
  std::lock_guard lock(writer_);
  return slab_.committed_bytes() + scores_.committed_bytes() + current_->bytes() + (sketch_ ? sketch_->bytes() : 0);
}

void Table::resolve(const int64_t* ids, size_t n, uint32_t* slots) const {
  const Index& lines = index();
  const size_t bytes = size_t{dim_} * sizeof(float);
  const uint32_t phase = random_bits();
  Candidates at[kInFlight];
  for (size_t start = 0; start < n; start += kInFlight) {
    const size_t end = std::min(n, start + kInFlight);
    for (size_t i = start; i < end; ++i) {
      at[i - start] = lines.candidates(ids[i]);
      lines.prefetch(at[i - start]);
    }
    for (size_t i = start; i < end; ++i) {
      const uint32_t slot = lines.find(ids[i], at[i - start]);
      slots[i] = slot;
      if (slot == kEmptySlot) continue;
      prefetch_row(rows_at(slot), bytes);
      if (((i + phase) % kSampleEvery) == 0) {
        auto counted = score(slot);
        const uint8_t old = counted.load(std::memory_order_relaxed);
        const uint8_t next = touch_score(old, random_bits());
        if (next != old) counted.store(next, std::memory_order_relaxed);  // a lost update is a lost sample
      }
    }
  }
  sampled_.fetch_add(n / kSampleEvery, std::memory_order_relaxed);
}

size_t Table::find(const int64_t* ids, size_t n, float* out, uint8_t* found) const {
  const Epochs::Guard guard(Epochs::global());
  const size_t bytes = size_t{dim_} * sizeof(float);
  uint32_t slots[kInFlight];
  size_t hits = 0;
  for (size_t start = 0; start < n; start += kInFlight) {
    const size_t count = std::min(kInFlight, n - start);
    resolve(ids + start, count, slots);
    for (size_t i = 0; i < count; ++i) {
      float* to = out + (start + i) * dim_;
      const bool hit = slots[i] != kEmptySlot;
      found[start + i] = hit;
      hits += hit;
      if (hit) {
        std::memcpy(to, rows_at(slots[i]), bytes);
      } else {
        std::memset(to, 0, bytes);
      }
    }
  }
  return hits;
}

// --- the writer ------------------------------------------------------------------------------------------------------------------------

void Table::harvest() {
  if (limbo_.empty()) return;
  const uint64_t safe = Epochs::global().safe_below();
  while (!limbo_.empty() && limbo_.front().first < safe) {
    free_.push_back(limbo_.front().second);
    limbo_.pop_front();
  }
}

bool Table::take_slot(uint32_t& slot) {
  if (free_.empty()) harvest();
  if (!free_.empty()) {
    slot = free_.back();
    free_.pop_back();
    return true;
  }
  const uint64_t most = slab_.reserved_bytes() / (size_t{row_floats()} * sizeof(float));
  if (next_slot_ < std::min(most, kMostRows)) {
    const size_t row_bytes = size_t{row_floats()} * sizeof(float);
    if ((next_slot_ + 1) * row_bytes > slab_.committed_bytes()) {
      // An eighth more at a time: few system calls, little unused memory.
      slab_.commit(std::min((next_slot_ + next_slot_ / 8 + 256) * row_bytes, slab_.reserved_bytes()));
    }
    if (next_slot_ + 1 > scores_.committed_bytes()) {
      scores_.commit(std::min<size_t>(next_slot_ + next_slot_ / 8 + 4096, scores_.reserved_bytes()));
    }
    slot = static_cast<uint32_t>(next_slot_++);
    return true;
  }
  if (limbo_.empty()) return false;
  Epochs::global().wait_for(limbo_.front().first);
  return take_slot(slot);
}

void Table::retire_slot(uint32_t slot) { limbo_.emplace_back(Epochs::global().retire(), slot); }

void Table::grow(uint64_t lines) {
  for (uint64_t wanted = lines;; wanted += wanted / 4) {
    auto next = std::make_unique<Index>(wanted);
    if (!next->absorb(*current_)) continue;
    index_.store(next.get(), std::memory_order_release);
    Epochs::global().wait_for(Epochs::global().retire());
    current_ = std::move(next);  // frees the old one: nobody reads it any more
    return;
  }
}

void Table::place(int64_t id, uint32_t slot) {
  if (capacity_ == 0 && size() + 1 > static_cast<uint64_t>(static_cast<double>(current_->lines() * kWays) * kLoad)) {
    grow(current_->lines() * 2);
  }
  while (!current_->fill(id, slot)) grow(current_->lines() + current_->lines() / 4);
  size_.fetch_add(1, std::memory_order_relaxed);
}

void Table::publish_row(int64_t id, const float* row, uint32_t slot, bool present) {
  std::memcpy(rows_at(slot), row, size_t{row_floats()} * sizeof(float));
  if (present) {
    const uint32_t old = current_->exchange(id, slot);
    score(slot).store(score(old).load(std::memory_order_relaxed), std::memory_order_relaxed);
    retire_slot(old);
  } else {
    score(slot).store(0, std::memory_order_relaxed);
    place(id, slot);
  }
}

void Table::insert_or_assign(const int64_t* ids, const float* rows, size_t n) {
  std::lock_guard lock(writer_);
  if (capacity_ > 0) {
    std::unordered_set<int64_t> added;
    for (size_t i = 0; i < n; ++i) {
      if (current_->find(ids[i], current_->candidates(ids[i])) == kEmptySlot) added.insert(ids[i]);
    }
    if (size() + added.size() > capacity_) {
      throw CapacityExceeded("the table holds " + std::to_string(size()) + " of at most " + std::to_string(capacity_) + " rows; " +
                             std::to_string(added.size()) + " more do not fit");
    }
  } else {
    const uint64_t room = static_cast<uint64_t>(static_cast<double>(current_->lines() * kWays) * kLoad);
    if (size() + n > 2 * room) grow(lines_for(size() + n));  // one growth for a bulk load, not a ladder of doublings
  }
  for (size_t i = 0; i < n; ++i) {
    uint32_t slot = 0;
    if (!take_slot(slot)) throw CapacityExceeded("no row slot left: a table holds at most 2^32 - 1 rows or 1 TiB");
    const bool present = current_->find(ids[i], current_->candidates(ids[i])) != kEmptySlot;
    publish_row(ids[i], rows + i * row_floats(), slot, present);
  }
}

size_t Table::assign(const int64_t* ids, const float* rows, size_t n) {
  std::lock_guard lock(writer_);
  size_t assigned = 0;
  for (size_t i = 0; i < n; ++i) {
    if (current_->find(ids[i], current_->candidates(ids[i])) == kEmptySlot) continue;
    uint32_t slot = 0;
    if (!take_slot(slot)) throw CapacityExceeded("no row slot left");
    publish_row(ids[i], rows + i * row_floats(), slot, true);
    ++assigned;
  }
  return assigned;
}

size_t Table::erase(const int64_t* ids, size_t n) {
  std::lock_guard lock(writer_);
  size_t erased = 0;
  for (size_t i = 0; i < n; ++i) {
    const uint32_t old = current_->vacate(ids[i]);
    if (old == kEmptySlot) continue;
    retire_slot(old);
    size_.fetch_sub(1, std::memory_order_relaxed);
    ++erased;
  }
  return erased;
}

void Table::reserve(uint64_t rows) {
  std::lock_guard lock(writer_);
  if (lines_for(rows) > current_->lines()) grow(lines_for(rows));
}

// --- the cache -------------------------------------------------------------------------------------------------------------------------

void Table::age() {
  sketch_->age();
  for (uint64_t slot = 0; slot < next_slot_; ++slot) {
    auto counted = score(static_cast<uint32_t>(slot));
    counted.store(age_score(counted.load(std::memory_order_relaxed)), std::memory_order_relaxed);
  }
}

// Looks at the next lines in turn for the coldest row, and lets it go if the candidate is hotter.
bool Table::evict_for(int64_t id) {
  const uint8_t candidate = sketch_->touch(id, random_bits());
  int64_t victim = 0;
  int coldest = 256;
  for (uint64_t looked = 0, lines = current_->lines(); looked < lines && (looked < 2 || coldest == 256); ++looked) {
    const Line& line = current_->line(hand_++ % lines);
    for (int way = 0; way < kWays; ++way) {
      if (line.slots[way] == kEmptySlot) continue;
      const int heat = score(line.slots[way]).load(std::memory_order_relaxed);
      if (heat < coldest) {
        coldest = heat;
        victim = line.ids[way];
      }
    }
  }
  if (coldest == 256 || !displaces(candidate, static_cast<uint8_t>(coldest))) return false;
  retire_slot(current_->vacate(victim));
  size_.fetch_sub(1, std::memory_order_relaxed);
  return true;
}

size_t Table::insert_and_evict(const int64_t* ids, const float* rows, size_t n) {
  std::lock_guard lock(writer_);
  if (capacity_ == 0) throw std::logic_error("insert_and_evict needs a table with a capacity");
  size_t admitted = 0;
  for (size_t i = 0; i < n; ++i) {
    if (current_->find(ids[i], current_->candidates(ids[i])) != kEmptySlot) continue;
    if (size() >= capacity_ && !evict_for(ids[i])) continue;
    uint32_t slot = 0;
    if (!take_slot(slot)) continue;
    publish_row(ids[i], rows + i * row_floats(), slot, false);
    ++admitted;
  }
  touches_ += n + sampled_.exchange(0, std::memory_order_relaxed);
  if (touches_ > 10 * std::max<uint64_t>(capacity_, 64)) {
    touches_ = 0;
    age();
  }
  return admitted;
}

// --- export, training, integrity -------------------------------------------------------------------------------------------------------

int64_t Table::export_batch(int64_t cursor, size_t limit, std::vector<int64_t>& ids, std::vector<float>& rows,
                            std::vector<uint8_t>& scores) const {
  std::lock_guard lock(writer_);
  const uint64_t lines = current_->lines();
  uint64_t number = static_cast<uint64_t>(cursor);
  for (; number < lines && ids.size() < limit; ++number) {
    const Line& line = current_->line(number);
    for (int way = 0; way < kWays; ++way) {
      const uint32_t slot = line.slots[way];
      if (slot == kEmptySlot) continue;
      ids.push_back(line.ids[way]);
      rows.insert(rows.end(), rows_at(slot), rows_at(slot) + row_floats());
      scores.push_back(score(slot).load(std::memory_order_relaxed));
    }
  }
  return number < lines ? static_cast<int64_t>(number) : -1;
}

uint32_t Table::slot_of(int64_t id) const {
  const Index& lines = index();
  return lines.find(id, lines.candidates(id));
}

uint32_t Table::create(int64_t id) {
  std::lock_guard lock(writer_);
  uint32_t slot = 0;
  if (!take_slot(slot)) throw CapacityExceeded("no row slot left: a table holds at most 2^32 - 1 rows or 1 TiB");
  std::memset(rows_at(slot), 0, size_t{row_floats()} * sizeof(float));
  score(slot).store(0, std::memory_order_relaxed);
  place(id, slot);
  return slot;
}

void Table::check_integrity() const {
  std::lock_guard lock(writer_);
  std::vector<uint8_t> uses(next_slot_, 0);
  const auto use = [&](uint32_t slot, const char* where) {
    if (slot >= next_slot_) throw std::logic_error(std::string("slot beyond the slab in the ") + where);
    if (uses[slot]++) throw std::logic_error(std::string("slot used twice, seen again in the ") + where);
  };
  uint64_t entries = 0;
  for (uint64_t number = 0; number < current_->lines(); ++number) {
    const Line& line = current_->line(number);
    for (int way = 0; way < kWays; ++way) {
      if (line.slots[way] == kEmptySlot) continue;
      const Candidates at = current_->candidates(line.ids[way]);
      if (number != at.first && number != at.second) throw std::logic_error("an id stands in a line that is none of its two");
      use(line.slots[way], "index");
      ++entries;
    }
  }
  for (uint32_t slot : free_) use(slot, "free list");
  for (const auto& [stamp, slot] : limbo_) use(slot, "limbo");
  if (entries != size()) throw std::logic_error("the size differs from the number of entries");
  if (entries + free_.size() + limbo_.size() != next_slot_) throw std::logic_error("a slot is lost");
}

}  // namespace emberline
