#include "training/training_table.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

#include "training/distinct_ids.h"

namespace emberline {
namespace {

constexpr std::uint32_t kMostDim = 4096;
// An id's place in the index is on its way while so many ids before it are looked up, its row while so many are used.
constexpr std::size_t kIndexAhead = 16;
constexpr std::size_t kLine = 64;
// Lines of a row that are fetched ahead; of longer rows, the processor guesses the rest.
constexpr std::size_t kLinesAhead = 8;

std::uint32_t checked_dim(std::uint32_t dim) {
  if (dim < 1 || dim > kMostDim) throw std::invalid_argument("dim must be 1 to 4096, got " + std::to_string(dim));
  return dim;
}

std::uint32_t saturated(std::uint32_t count, std::uint32_t more) {
  return count > std::numeric_limits<std::uint32_t>::max() - more ? std::numeric_limits<std::uint32_t>::max()
                                                                  : count + more;
}

}  // namespace

TrainingTable::TrainingTable(const TrainingOptions& options)
    : options_(options),
      slot_count_(slots_of(options.rule, checked_dim(options.dim))),
      slab_((std::size_t{options.dim} + slot_count_) * sizeof(float), std::numeric_limits<std::uint32_t>::max()) {
  if (options.evicts) parts_ = std::make_unique<RowParts>();
  if (options.bloom.expected_ids > 0) {
    const std::uint32_t most = std::max(options.admit_after, 2u) - 1;
    if (most > CountingBloom::kMostCount) {
      throw std::invalid_argument("admit_after: a filter counts to " + std::to_string(CountingBloom::kMostCount) +
                                  ", so it is 2 to " + std::to_string(CountingBloom::kMostCount + 1) + ", got " +
                                  std::to_string(options.admit_after));
    }
    bloom_ = std::make_unique<CountingBloom>(options.bloom, most, options.seed);
  }
  set_admit_after(options.admit_after);
}

std::uint64_t TrainingTable::size() const {
  const std::lock_guard lock(mutex_);
  return rows_of_all();
}

std::size_t TrainingTable::memory_bytes() const {
  const std::lock_guard lock(mutex_);
  return slab_.bytes() + free_.capacity() * sizeof(free_[0]) + index_.bytes() + uses_.bytes() +
         (tier_ == nullptr ? 0 : tier_->slots.bytes() + tier_->rows.memory_bytes() + tier_->bare.memory_bytes()) +
         seen_.bytes() + removed_.bytes() + changes_.bytes() + waiting_.bytes() + waiting_stamps_.bytes() +
         (parts_ == nullptr ? 0 : parts_->bytes()) + (bloom_ == nullptr ? 0 : bloom_->bytes());
}

void TrainingTable::set_admit_after(std::uint32_t admit_after) {
  if (admit_after < 1) throw std::invalid_argument("admit_after: must be 1 or more, got 0");
  if (bloom_ != nullptr && (admit_after < 2 || admit_after > bloom_->most() + 1)) {
    throw std::invalid_argument("admit_after: the filter of this table allows 2 to " +
                                std::to_string(bloom_->most() + 1) + ", got " + std::to_string(admit_after));
  }
  const std::lock_guard lock(mutex_);
  options_.admit_after = admit_after;
}

// Finds ids in found_, at places_, and writes their rows. counts: null for 1 each.
void TrainingTable::find_ids(const std::int64_t* ids, const std::uint32_t* counts, std::size_t n, float* out,
                             bool train) {
  places_.resize(n);
  DistinctIds distinct(found_);
  for (std::size_t i = 0; i < n; ++i) places_[i] = distinct.add(ids[i], counts == nullptr ? 1 : counts[i]);
  find(found_, train);
  const std::size_t bytes = dim() * sizeof(float);
  for (std::size_t i = 0; i < n; ++i, out += dim()) {
    const float* row = found_.rows[places_[i]];
    if (row == nullptr) {
      std::memset(out, 0, bytes);
    } else {
      std::memcpy(out, row, bytes);
    }
  }
}

std::size_t TrainingTable::lookup(const std::int64_t* ids, std::size_t n, float* out, bool train) {
  const std::lock_guard lock(mutex_);
  find_ids(ids, nullptr, n, out, train);
  std::size_t hits = 0;
  for (std::size_t at = 0; at < found_.ids.size(); ++at) hits += found_.has_row(at) ? found_.counts[at] : 0;
  return hits;
}

void TrainingTable::lookup_counted(const std::int64_t* ids, const std::uint32_t* counts, std::size_t n, float* out,
                                   std::uint8_t* has_row, bool train) {
  const std::lock_guard lock(mutex_);
  find_ids(ids, counts, n, out, train);
  for (std::size_t i = 0; i < n; ++i) has_row[i] = found_.has_row(places_[i]) ? 1 : 0;
}

void TrainingTable::find(FoundRows& found, bool train) {
  locate(found);
  found.created.assign(found.ids.size(), 0);
  if (train) {
    if (tier_ != nullptr) bring(found);
    admit(found);
  }
  const std::size_t n = found.ids.size();
  found.rows.resize(n);
  std::size_t missing = 0;
  for (std::size_t i = 0; i < n; ++i) {
    found.rows[i] = found.slots[i] == 0 ? nullptr : row(found.slots[i]);
    missing += found.slots[i] == 0;
  }
  if (missing > 0 && !options_.absent.is_zero()) {
    found.absent.resize(missing * dim());
    float* to = found.absent.data();
    for (std::size_t i = 0; i < n; ++i) {
      if (found.slots[i] != 0) continue;
      initial_row(options_.absent, options_.seed, found.ids[i], dim(), to);
      found.rows[i] = to;
      to += dim();
    }
  }
  found.beside.assign(n, 0);
  // Rows that were only read are brought before a step.
  const bool only_read = missing > 0 && tier_ != nullptr && !train && read_outside(found);
  found.layout = only_read ? 0 : layout_;
  found.stamp = train ? stamp_ : 0;
}

void TrainingTable::find_to_step(FoundRows& found) {
  locate(found);
  if (tier_ != nullptr) bring(found);
  found.beside.assign(found.ids.size(), 0);
  found.layout = layout_;
  found.stamp = 0;
}

void TrainingTable::find_again(FoundRows& found) {
  if (found.layout == layout_ && found.stamp == stamp_) return;
  if (found.layout != layout_) {
    // An id that had no row when it was read has no gradient, even if it has a row now.
    std::vector<std::uint32_t> before = std::move(found.slots);
    locate(found);
    if (tier_ != nullptr) bring(found);
    for (std::size_t i = 0; i < before.size(); ++i) {
      if (before[i] == 0 && found.beside[i] == 0) found.slots[i] = 0;
    }
  }
  for (std::size_t i = 0; i < found.ids.size(); ++i) {
    if (found.slots[i] != 0) touch(found.ids[i], found.slots[i]);
  }
  found.beside.assign(found.ids.size(), 0);
  found.layout = layout_;
  found.stamp = stamp_;
}

// Fills `slots`, and brings the rows into the caches.
void TrainingTable::locate(FoundRows& found) const {
  const std::size_t n = found.ids.size();
  found.slots.resize(n);
  std::uint64_t hashes[kIndexAhead];
  const std::size_t lines = std::min(kLinesAhead, (dim() * sizeof(float) + kLine - 1) / kLine);
  for (std::size_t i = 0; i < n + kIndexAhead; ++i) {
    if (i >= kIndexAhead) {
      const std::size_t at = i - kIndexAhead;
      const std::uint32_t slot = index_.get(found.ids[at], hashes[at % kIndexAhead]);
      found.slots[at] = slot;
      if (slot != 0) {
        const char* from = slab_.row(slot);
        for (std::size_t line = 0; line < lines; ++line) __builtin_prefetch(from + line * kLine, 0, 3);
        __builtin_prefetch(&uses_[slot], 1, 3);
        if (tier_ != nullptr) __builtin_prefetch(&tier_->slots[slot], 1, 3);
      }
    }
    if (i < n) {
      const std::uint64_t hash = index_.hash(found.ids[i]);
      hashes[i % kIndexAhead] = hash;
      index_.prefetch(hash);
    }
  }
}

// Counts the occurrences, and creates the rows of ids that are due.
void TrainingTable::admit(FoundRows& found) {
  const std::size_t n = found.ids.size();
  for (std::size_t i = 0; i < n; ++i) {
    if (bloom_ != nullptr && i + kIndexAhead < n && found.slots[i + kIndexAhead] == 0) {
      bloom_->prefetch(found.ids[i + kIndexAhead]);
    }
    const std::int64_t id = found.ids[i];
    if (const std::uint32_t slot = found.slots[i]; slot != 0) {
      touch(id, slot);
      uses_[slot].count = saturated(uses_[slot].count, found.counts[i]);
      continue;
    }
    if (options_.fixed || found.counts[i] == 0) continue;  // 0: it only stands for others
    std::uint32_t count = found.counts[i];
    // The count of an id that waited for a larger threshold must go when it gets its row.
    if (options_.admit_after > 1 || seen_.get(id) != 0) {
      count = bloom_ == nullptr ? count_seen(id, count) : bloom_->add(id, count, stamp_);
      if (count < options_.admit_after) continue;
    }
    const std::uint32_t slot = create(id, {count, stamp_, tick_});
    float* values = row(slot);
    initial_row(options_.rows, options_.seed, id, dim(), values);
    start_slots(options_.rule, dim(), options_.initial_accumulator, values + dim());
    found.slots[i] = slot;
    found.created[i] = 1;
  }
}

// Counts occurrences of an id without a row. Returns the count, which is kept unless the row is due.
std::uint32_t TrainingTable::count_seen(std::int64_t id, std::uint32_t more) {
  const std::uint32_t seen = seen_.get(id);
  const std::uint32_t count = saturated(seen, more);
  note_waiting(id);
  if (count < options_.admit_after) {
    seen_.set(id, count);
  } else if (seen != 0) {
    seen_.erase(id);
  }
  return count;
}

// Gives an id a row, which is not filled.
std::uint32_t TrainingTable::create(std::int64_t id, Use use) {
  std::uint32_t slot;
  if (free_.empty()) {
    slot = slab_.extend();
    if (slot == 0) throw std::invalid_argument("the table is full: it has 2^32 rows");
  } else {
    slot = free_.back();
    free_.pop_back();
  }
  index_.set(id, slot);
  uses_.reach(slot);
  if (tier_ != nullptr) tier_->slots.reach(slot);
  if (parts_ != nullptr) parts_->add(id, [this](std::int64_t other) { return index_.get(other) != 0; });
  set_use(id, slot, use);
  return slot;
}

// Takes an id's row away.
void TrainingTable::remove(std::int64_t id, std::uint32_t slot) {
  index_.erase(id);
  free_.push_back(slot);
  if (tier_ != nullptr) tier_->slots[slot] = {};
  ++layout_;
}

// Notes a row that is new, or whose count and stamps come from outside.
void TrainingTable::set_use(std::int64_t id, std::uint32_t slot, Use use) {
  uses_[slot] = use;
  if (removed_.size() > 0) removed_.erase(id);
  if (tier_ == nullptr) {
    changes_.note(id, use.stamp);
  } else {
    tier_->slots[slot] = {id, tier_->batch, 1, true, true};
  }
}

}  // namespace emberline
