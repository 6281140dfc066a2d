// Ids without a row, of a table with rows beyond DRAM: their counts and erasures go to a file of their own when they
// are many, and come back when the id is used. A count or an erasure is in DRAM or in the file, never in both.
#include <cstring>

#include "training/training_table.h"

namespace emberline {
namespace {

// An id without a row is in up to three open-addressing maps and a log.
constexpr std::size_t kBareBytes = 112;
// Ids without a row may take this part of a table's share.
constexpr std::size_t kBarePart = 4;
// With each move, so many pages of all are cleared of what nobody asks for any more.
constexpr std::size_t kSweptPart = 16;

}  // namespace

std::size_t TrainingTable::bare_bytes() const {
  return (std::max(seen_.size(), waiting_stamps_.size()) + removed_.size()) * kBareBytes;
}

void TrainingTable::spill_bare_if_many() {
  const std::size_t bytes = bare_bytes();
  if (bytes <= tier_->budget->share(tier_->share) / kBarePart) return;
  if (bytes > tier_->budget->ask(tier_->share, used_bytes(0) + bytes) / kBarePart) spill_bare();
}

void TrainingTable::spill_bare() {
  std::vector<std::int64_t> ids;
  ids.reserve(seen_.size() + removed_.size());
  const auto note = [&](std::int64_t id, std::uint32_t) { ids.push_back(id); };
  seen_.each(note);
  removed_.each([&](std::int64_t id, std::uint32_t) {
    if (seen_.get(id) == 0) ids.push_back(id);
  });
  waiting_stamps_.each([&](std::int64_t id, std::uint32_t stamp) {
    if (seen_.get(id) == 0 && removed_.get(id) == 0 && stamp + kWaitingStamps > stamp_) ids.push_back(id);
  });
  for (const std::int64_t id : ids) {
    RecordHead head{seen_.get(id), waiting_stamps_.get(id), removed_.get(id)};
    if (head.second == 0) {
      // The file may know when an id lost its count.
      if (const std::uint8_t* before = tier_->bare.find(id); before != nullptr) {
        RecordHead old;
        std::memcpy(&old, before, sizeof(old));
        head.second = old.second;
      }
    }
    tier_->bare.put(id, head, nullptr);
    tier_->waiting_outside += head.count > 0;
    seen_.erase(id);
    removed_.erase(id);
    waiting_stamps_.erase(id);
  }
  seen_.clear();
  removed_.clear();
  waiting_stamps_.clear();
  waiting_ = ChangeLog();
  sweep_bare();
}

// Ids that lost their count long ago need no record: no caller asks so far back.
void TrainingTable::sweep_bare() {
  RowFile& file = tier_->bare;
  std::vector<std::int64_t> old;
  for (std::size_t i = 0; i < file.pages() / kSweptPart + 1 && file.pages() > 0; ++i) {
    tier_->swept = (tier_->swept + 1) % file.pages();
    file.each(tier_->swept, [&](std::int64_t id, const std::uint8_t* record) {
      RecordHead head;
      std::memcpy(&head, record, sizeof(head));
      if (head.count == 0 && head.third == 0 && head.second + kWaitingStamps <= stamp_) old.push_back(id);
    });
  }
  for (const std::int64_t id : old) file.erase(id);
}

// Brings what the file has of an id without a row.
void TrainingTable::bring_bare(std::int64_t id) {
  if (tier_->bare.size() == 0) return;
  const std::uint8_t* record = tier_->bare.find(id);
  if (record == nullptr) return;
  RecordHead head;
  std::memcpy(&head, record, sizeof(head));
  if (head.count == 0 && head.third == 0) return;  // what it lost is asked for by stamp alone
  if (head.count > 0) {
    seen_.set(id, head.count);
    --tier_->waiting_outside;
  }
  if (head.second > 0 && waiting_stamps_.get(id) == 0) {
    waiting_stamps_.set(id, head.second);
    waiting_.note(id, head.second);
  }
  if (head.third > 0) removed_.set(id, head.third);
  tier_->bare.erase(id);
}

void TrainingTable::forget_removed_outside(std::uint32_t upto_stamp) {
  RowFile& file = tier_->bare;
  std::vector<std::pair<std::int64_t, RecordHead>> found;
  for (std::size_t page = 0; page < file.pages(); ++page) {
    if (!file.page(page).third.meet(0, upto_stamp)) continue;
    file.scan_ahead(page);
    found.clear();
    file.each(page, [&](std::int64_t id, const std::uint8_t* record) {
      RecordHead head;
      std::memcpy(&head, record, sizeof(head));
      if (head.third > 0 && head.third <= upto_stamp) found.emplace_back(id, RecordHead{head.count, head.second, 0});
    });
    for (const auto& [id, head] : found) {
      if (head.count == 0 && head.second == 0) {
        file.erase(id);
      } else {
        file.put(id, head, nullptr);
      }
    }
    file.each(page, [](std::int64_t, const std::uint8_t*) {});
  }
}

OutsideBare TrainingTable::outside_bare(std::size_t first, std::uint32_t waiting_after, std::uint32_t removed_after,
                                        bool all) const {
  constexpr std::uint32_t kLast = std::numeric_limits<std::uint32_t>::max();
  constexpr std::size_t kMost = std::size_t{1} << 18;
  const std::lock_guard lock(mutex_);
  RowFile& file = tier_->bare;
  OutsideBare found;
  std::size_t page = first;
  for (; page < file.pages() && found.ids.size() < kMost; ++page) {
    const RowFile::Page& facts = file.page(page);
    if (!all && !facts.second.meet(waiting_after, kLast) && !facts.third.meet(removed_after, kLast)) continue;
    file.scan_ahead(page);
    file.each(page, [&](std::int64_t id, const std::uint8_t* record) {
      RecordHead head;
      std::memcpy(&head, record, sizeof(head));
      found.ids.push_back(id);
      found.counts.push_back(head.count);
      found.waiting.push_back(head.second);
      found.removed.push_back(head.third);
    });
  }
  found.next = page < file.pages() ? page : 0;
  return found;
}

std::size_t TrainingTable::waiting_size() const {
  const std::lock_guard lock(mutex_);
  if (bloom_ == nullptr) return seen_.size() + (tier_ == nullptr ? 0 : tier_->waiting_outside);
  const auto seen = static_cast<std::size_t>(std::llround(bloom_->ids()));
  return seen - std::min<std::size_t>(seen, rows_of_all());
}

std::vector<std::uint8_t> TrainingTable::has_waited(const std::int64_t* ids, std::size_t n) const {
  const std::lock_guard lock(mutex_);
  std::vector<std::uint8_t> found(n);
  for (std::size_t i = 0; i < n; ++i) found[i] = waiting_stamps_.get(ids[i]) != 0;
  return found;
}

}  // namespace emberline
