// Rows of a training table that come to DRAM when they are used, and leave it for a file when their memory is needed.
//
// A record carries all that a row is, so training is the same to the bit as with all rows in DRAM. A row that comes
// back keeps its record, which is written over when it leaves again. Who stays: the rows of the batch, then those that
// the most batches used.
#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>

#include "training/disk_waits.h"
#include "training/training_table.h"

namespace emberline {
namespace {

// Beside its values a row takes 14 to 28 bytes of index, 12 of counts, 16 of its tier, 4 when its slot is free again,
// and 8 to 12 for eviction.
constexpr std::size_t kRowOverhead = 80;
// An empty file takes so much; what it takes beyond counts against the budget.
constexpr std::size_t kFreeFileBytes = std::size_t{64} << 10;
// Rows leave in groups, so that not every batch looks for those that are used least: this part of the share at once.
constexpr std::size_t kLeavePart = 16;
// Heats are halved after so many uses a row, so that what was hot long ago does not stay.
constexpr std::uint64_t kUsesPerRow = 32;
constexpr std::size_t kHeats = 256;  // above, rows are equally hot: they are the last to leave
constexpr std::size_t kAhead = 8;

}  // namespace

void TrainingTable::attach(std::string name, std::shared_ptr<RowBudget> budget, const std::string& folder) {
  const std::lock_guard lock(mutex_);
  if (tier_ != nullptr || index_.size() > 0 || seen_.size() > 0 || removed_.size() > 0) {
    throw std::invalid_argument("attach: the table must be empty, and can be attached once");
  }
  tier_ = std::make_unique<RowTier>(std::move(name), std::move(budget), folder, record_bytes() - sizeof(RecordHead),
                                    options_.evicts, bloom_ == nullptr ? 0 : bloom_->bytes());
}

void TrainingTable::begin() {
  const std::lock_guard lock(mutex_);
  ++tier_->batch;
}

void TrainingTable::use_now(std::uint32_t slot) {
  RowTier::Slot& state = tier_->slots[slot];
  if (state.used == tier_->batch) return;
  state.used = tier_->batch;
  state.heat =
      static_cast<std::uint16_t>(std::min<std::uint32_t>(state.heat + 1u, std::numeric_limits<std::uint16_t>::max()));
  ++tier_->marks;
}

// Brings what the file has of ids that DRAM does not know. found: with slots, which it completes.
void TrainingTable::bring(FoundRows& found) {
  RowTier& tier = *tier_;
  tier.missing.clear();
  for (std::uint32_t i = 0; i < found.ids.size(); ++i) {
    if (found.slots[i] != 0) {
      use_now(found.slots[i]);
    } else {
      tier.missing.push_back(i);
    }
  }
  if (tier.missing.empty()) return;
  spill_bare_if_many();
  make_room(found, tier.missing.size());
  fetch(found);
}

void TrainingTable::fetch(FoundRows& found) {
  RowTier& tier = *tier_;
  if (tier.rows.size() == 0 && tier.bare.size() == 0) return;
  const DiskWaits waits(tier.figures.waits, *tier.budget);
  tier.missing_ids.clear();
  for (const std::uint32_t at : tier.missing) tier.missing_ids.push_back(found.ids[at]);
  tier.bare_ids.clear();
  const std::size_t body = record_bytes() - sizeof(RecordHead);
  tier.rows.find(tier.missing_ids.data(), tier.missing_ids.size(), [&](std::size_t i, const std::uint8_t* record) {
    const std::int64_t id = tier.missing_ids[i];
    if (record == nullptr) {
      if (seen_.get(id) == 0 && removed_.get(id) == 0) tier.bare_ids.push_back(id);
      return;
    }
    if (free_.size() > kAhead) {
      const char* coming = slab_.row(free_[free_.size() - 1 - kAhead]);
      for (std::size_t byte = 0; byte < body && byte < 512; byte += 64) __builtin_prefetch(coming + byte, 1, 3);
    }
    Use use;
    static_assert(sizeof(Use) == sizeof(RecordHead));
    std::memcpy(&use, record, sizeof(use));
    const std::uint32_t slot = create(id, use);
    std::memcpy(row(slot), record + sizeof(use), body);
    // Its heat is not kept outside; how often it was ever used says something of it.
    tier.slots[slot] = {id, tier.batch, static_cast<std::uint16_t>(std::bit_width(use.count)), true, false};
    ++tier.marks;
    --tier.rows_outside;
    ++tier.figures.fetched;
    found.slots[tier.missing[i]] = slot;
  });
  if (tier.bare.size() == 0) return;
  tier.missing_ids.clear();  // those that are in the file of ids without a row
  tier.bare.find(tier.bare_ids.data(), tier.bare_ids.size(), [&](std::size_t i, const std::uint8_t* record) {
    if (record != nullptr) tier.missing_ids.push_back(tier.bare_ids[i]);
  });
  for (const std::int64_t id : tier.missing_ids) bring_bare(id);
}

// Lets ids read what the file has of them, for a lookup that moves nothing. Returns whether any does.
bool TrainingTable::read_outside(FoundRows& found) const {
  std::vector<std::uint32_t> places;
  std::vector<std::int64_t> ids;
  for (std::uint32_t i = 0; i < found.ids.size(); ++i) {
    if (found.slots[i] != 0) continue;
    places.push_back(i);
    ids.push_back(found.ids[i]);
  }
  bool any = false;
  tier_->rows.find(ids.data(), ids.size(), [&](std::size_t i, const std::uint8_t* record) {
    if (record == nullptr) return;
    found.rows[places[i]] = reinterpret_cast<const float*>(record + sizeof(RecordHead));
    found.beside[places[i]] = 1;
    any = true;
  });
  return any;
}

bool TrainingTable::has_row(std::int64_t id) const {
  return index_.get(id) != 0 || (tier_ != nullptr && tier_->rows.find(id) != nullptr);
}

std::size_t TrainingTable::used_bytes(std::size_t more_rows) const {
  const std::size_t row_bytes = record_bytes() - sizeof(RecordHead) + kRowOverhead;
  const std::size_t files = tier_->rows.memory_bytes() + tier_->bare.memory_bytes();
  return (index_.size() + more_rows) * row_bytes + bare_bytes() + (files > kFreeFileBytes ? files - kFreeFileBytes : 0);
}

// Makes room for so many more rows, which may be brought or created. found: with the rows that must stay.
void TrainingTable::make_room(const FoundRows& found, std::size_t rowless) {
  RowTier& tier = *tier_;
  const std::size_t wanted = used_bytes(rowless);
  const std::size_t share = tier.budget->ask(tier.share, wanted);
  if (wanted <= share) return;
  leave(wanted - share);
  if (used_bytes(rowless) <= share) return;
  // Rows of earlier lookups may leave too: what needs them brings them again.
  ++tier.batch;
  for (const std::uint32_t slot : found.slots) {
    if (slot != 0) use_now(slot);
  }
  leave(used_bytes(rowless) - share);
  if (used_bytes(rowless) > share) spill_bare();
  if (used_bytes(rowless) <= share) return;
  const std::size_t row_bytes = record_bytes() - sizeof(RecordHead) + kRowOverhead;
  throw BudgetExceeded("dram_bytes: table '" + tier.name + "' may take " + std::to_string(share) + " of " +
                       std::to_string(tier.budget->dram_bytes()) + " bytes, and one batch has " +
                       std::to_string(found.ids.size()) + " ids of it, which take " +
                       std::to_string(found.ids.size() * row_bytes) +
                       "; give more dram_bytes, or lower training.batch_size");
}

void TrainingTable::leave(std::size_t surplus_bytes) {
  RowTier& tier = *tier_;
  const std::size_t body = record_bytes() - sizeof(RecordHead);
  const std::size_t row_bytes = body + kRowOverhead;
  const std::size_t rows =
      (surplus_bytes + row_bytes - 1) / row_bytes + tier.budget->share(tier.share) / kLeavePart / row_bytes;
  const std::vector<std::uint32_t> slots = coldest(rows);
  std::vector<std::uint32_t> pages(slots.size());
  for (std::size_t i = 0; i < slots.size(); ++i) pages[i] = tier.rows.page_of(tier.slots[slots[i]].id);
  if (tier.budget->reads_disk()) {
    std::vector<std::uint32_t> wanted = pages;
    tier.rows.will_need(wanted);
  }
  for (std::size_t i = 0; i < slots.size(); ++i) {
    if (i + 2 * kAhead < slots.size()) {
      const std::uint32_t coming = slots[i + 2 * kAhead];
      index_.prefetch(index_.hash(tier.slots[coming].id));
      for (std::size_t byte = 0; byte < body && byte < 512; byte += 64) __builtin_prefetch(slab_.row(coming) + byte);
      if (pages[i + 2 * kAhead] != RowFile::kNoPage) tier.rows.prefetch(pages[i + 2 * kAhead]);
    }
    if (i + kAhead < slots.size() && pages[i + kAhead] != RowFile::kNoPage) {
      tier.rows.prefetch_record(pages[i + kAhead], tier.slots[slots[i + kAhead]].id);
    }
    const std::uint32_t slot = slots[i];
    const std::int64_t id = tier.slots[slot].id;
    if (tier.slots[slot].dirty) {
      const Use& use = uses_[slot];
      tier.rows.put(id, {use.count, use.stamp, use.tick}, row(slot));
      ++tier.figures.written;
    }
    remove(id, slot);
    ++tier.rows_outside;
    ++tier.figures.left;
  }
}

// Slots of the rows that were used least, at most n; none that this batch uses. By heat, then by age: a first pass over
// the states finds the heat below which all leave, so that only rows at this heat are compared by age.
std::vector<std::uint32_t> TrainingTable::coldest(std::size_t n) {
  const std::uint32_t batch = tier_->batch;
  const auto heat_of = [](const RowTier::Slot& state) { return std::min<std::size_t>(state.heat, kHeats - 1); };
  const auto may_leave = [=](const RowTier::Slot& state) { return state.live && state.used != batch; };
  std::size_t counts[kHeats] = {};
  tier_->slots.each([&](std::size_t, const RowTier::Slot& state) { counts[heat_of(state)] += may_leave(state); });
  std::size_t bound = 0;
  std::size_t below = 0;
  while (bound < kHeats && below + counts[bound] <= n) below += counts[bound++];
  std::vector<std::uint32_t> slots;
  std::vector<std::uint64_t> at_bound;  // batch of the last use, slot
  slots.reserve(std::min(n, index_.size()));
  if (bound < kHeats && below < n) at_bound.reserve(counts[bound]);
  tier_->slots.each([&](std::size_t slot, const RowTier::Slot& state) {
    if (!may_leave(state) || heat_of(state) > bound) return;
    if (heat_of(state) < bound) {
      slots.push_back(static_cast<std::uint32_t>(slot));
    } else if (below < n) {
      at_bound.push_back(std::uint64_t{state.used} << 32 | slot);
    }
  });
  if (!at_bound.empty()) {
    const auto end = at_bound.begin() + static_cast<std::ptrdiff_t>(n - below);
    std::nth_element(at_bound.begin(), end, at_bound.end());
    for (auto each = at_bound.begin(); each != end; ++each) slots.push_back(static_cast<std::uint32_t>(*each));
  }
  age();
  return slots;
}

void TrainingTable::age() {
  if (tier_->marks < kUsesPerRow * index_.size()) return;
  tier_->marks = 0;
  for (std::size_t slot = 0; slot < tier_->slots.size(); ++slot) tier_->slots[slot].heat /= 2;
}

}  // namespace emberline
