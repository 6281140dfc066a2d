// The publisher's side of the model of cuda/publish.cuh: an index on the host whose changes become launches, and the
// faults that a test can put into it.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "cache_bucket.cuh"
#include "publish.cuh"

namespace publish_model {

constexpr int kBuckets = 2;
constexpr int kPositions = kBuckets * emberline::kCacheBucketIds;
constexpr int kBucketLocations = kBuckets * emberline::kBucketWords;
constexpr std::uint32_t kSlots = 24;
constexpr int kLocations = kBucketLocations + 2 * (static_cast<int>(kSlots) + 1);
constexpr std::uint32_t kBaseTables = 2;
constexpr std::uint32_t kHostsRow = 0xFFFFFFFF;  // the slot that stands for: ask the host

constexpr int id_location(int position) { return position / 4 * emberline::kBucketWords + position % 4; }
constexpr int word_location(int position) { return id_location(position) + 4; }
constexpr int row_location(std::uint32_t slot, int half) {
  return kBucketLocations + 2 * static_cast<int>(slot) + half;
}

enum class Fault {
  kNone,
  // Of the protocol.
  kNoGrace,
  kGraceTooEarly,
  kIdsWithWords,
  kWordsBeforeIds,
  kRowsAfterWords,
  kSlotReusedInSet,
  kNoFlags,
  kNoGraceAfterRows,
  kNoGraceAfterIds,
  // Of the host that decides what is published.
  kBaseSwappedWithRemoval,
  kBaseSwappedUnderReaders,
  kDroppedUnderReaders,
  kOverlayMoved,
  kAdmittedWithOverlay,
  kSharedSlotFreed,
};

// An owner of positions. number: whose rows are right for it; an id under a virtual table has that of its base table.
struct Owner {
  std::int64_t id = 0;
  std::uint32_t table = 0;
  std::uint32_t number = 0;
};

// A row is {number of its owner, version}, in both of its halves; 0 is no row.
constexpr std::uint32_t make_row(std::uint32_t number, std::uint32_t version) { return number << 16 | version; }

// row: what a word's slot holds, for the properties only.
struct Store {
  int location;
  std::uint64_t value;
  std::uint32_t row;
};

struct Message {
  std::uint64_t value;
  std::uint32_t row;
  int launch;  // 0: before all
  int store;   // number in its launch
};

// launch: a list, its stores in any order. look: whoever is inside now is waited for. wait: until they have left
// once. phase: tells readers what they may enter for. Look and phase are under the lock that readers enter by, and
// say what is complete.
struct Step {
  enum Kind { kLaunch, kLook, kWait, kPhase };
  Kind kind;
  const char* name;
  std::vector<Store> stores;
  int before;  // launches that are complete
  int known;   // launches that readers who enter now know to be complete
  int phase;
};

class Program {
 public:
  void set(int location, std::uint64_t value, std::uint32_t row) { history_[location] = {{value, row, 0, 0}}; }
  void launch(const char* name, std::vector<Store> stores) {
    if (stores.empty()) return;
    for (std::size_t i = 0; i < stores.size(); ++i) {
      history_[stores[i].location].push_back({stores[i].value, stores[i].row, launches_ + 1, static_cast<int>(i)});
    }
    steps_.push_back({Step::kLaunch, name, std::move(stores), launches_, known_, phase_});
    ++launches_;
  }
  void look() {
    steps_.push_back({Step::kLook, "looks who is inside", {}, launches_, known_, phase_});
    known_ = launches_;
  }
  void wait() { steps_.push_back({Step::kWait, "has waited", {}, launches_, known_, phase_}); }
  void phase(int number) {
    steps_.push_back({Step::kPhase, "tells readers", {}, launches_, known_, phase_});
    known_ = launches_;
    phase_ = number;
  }
  void end() { steps_.push_back({Step::kWait, "end", {}, launches_, known_, phase_}); }

  int current_phase() const { return phase_; }
  const std::vector<Step>& steps() const { return steps_; }
  const std::vector<Message>& history(int location) const { return history_[static_cast<std::size_t>(location)]; }

 private:
  std::vector<Step> steps_;
  std::vector<std::vector<Message>> history_{static_cast<std::size_t>(kLocations), {Message{0, 0, 0, 0}}};
  int launches_ = 0, known_ = 0, phase_ = 0;
};

// What the host wants on the GPU; publish() makes it so.
class Host {
 public:
  explicit Host(Fault fault) : fault_(fault) {
    for (std::uint32_t slot = kSlots; slot > 0; --slot) free_.push_back(slot);
  }

  Fault fault() const { return fault_; }
  Program& program() { return program_; }

  // A new owner of a base table whose first bucket is `home`, and `virtual_home` under the first difference's number.
  Owner owner(int home, int virtual_home = 0, std::uint32_t table = 0) {
    for (;;) {
      ++last_id_;
      if (home_of({last_id_, table, 0}) != home) continue;
      if (home_of({last_id_, table + kBaseTables, 0}) == virtual_home) return {last_id_, table, ++numbers_};
    }
  }
  static Owner under(Owner base, std::uint32_t difference) {
    return {base.id, base.table + difference * kBaseTables, base.number};
  }

  // Each gives the version of the row.
  std::uint32_t put(Owner owner, int position) {
    entries_[position] = Entry{owner, 0, 0};
    if (position / 4 != home_of(owner)) flags_[home_of(owner)] = emberline::word::kOverflow;
    return stage(*entries_[position]);
  }
  std::uint32_t update(Owner owner) {
    Entry& entry = *entries_[where(owner)];
    const std::uint32_t old = entry.slot, version = stage(entry);
    release(old);
    return version;
  }
  void ask_host(Owner owner, int position) {
    put(owner, position);
    release(std::exchange(entries_[position]->slot, kHostsRow));
  }
  void erase(Owner owner) {
    const int position = where(owner);
    const std::uint32_t slot = entries_[position]->slot;
    entries_[position].reset();
    release(slot);
  }
  void move(Owner owner, int to) {
    const int from = where(owner);
    entries_[to] = std::exchange(entries_[from], std::nullopt);
    if (to / 4 != home_of(owner)) flags_[home_of(owner)] = emberline::word::kOverflow;
  }
  // `to` takes over the slot of `from`, or goes where that asks the host.
  void adopt(Owner from, Owner to) {
    const Entry source = *entries_[where(from)];
    if (source.slot == kHostsRow) return erase(to);
    Entry& target = *entries_[where(to)];
    const std::uint32_t old = target.slot;
    target.slot = source.slot;
    target.row = source.row;
    release(old);
  }
  int where(Owner owner) const {
    for (int position = 0; position < kPositions; ++position) {
      if (entries_[position] && same(entries_[position]->owner, owner)) return position;
    }
    return -1;
  }
  bool is_free(int position) const { return !entries_[position]; }

  // What is there before the first step.
  void start() {
    for (int position = 0; position < kPositions; ++position) {
      const std::optional<Entry>& entry = entries_[position];
      if (entry) program_.set(id_location(position), static_cast<std::uint64_t>(entry->owner.id), 0);
      program_.set(word_location(position), word_of(position), entry ? entry->row : 0);
    }
    for (const auto& [slot, row] : std::exchange(staged_, {})) {
      for (int half = 0; half < 2; ++half) program_.set(row_location(slot, half), row, row);
    }
    complete();
  }

  // A set of changes, by the protocol of publish.cuh, or with the fault. Readers are then told of the phase.
  void publish(int phase = -1) {
    std::vector<Store> rows, emptied, ids, words;
    for (const auto& [slot, row] : std::exchange(staged_, {})) {
      for (int half = 0; half < 2; ++half) rows.push_back({row_location(slot, half), row, row});
    }
    for (int position = 0; position < kPositions; ++position) changes(position, emptied, ids, words);
    const bool missed_rows = fault_ == Fault::kRowsAfterWords;
    if (fault_ == Fault::kIdsWithWords) {
      ids.insert(ids.end(), words.begin(), words.end());
      words.clear();
    }

    const bool names_rows = !rows.empty() && !emptied.empty() && fault_ != Fault::kNoGraceAfterRows;
    if (!missed_rows) program_.launch("rows", rows);
    if (names_rows && !missed_rows) grace();
    if (fault_ == Fault::kGraceTooEarly) program_.look();
    program_.launch("emptied", std::move(emptied));
    if (fault_ != Fault::kNoGrace && fault_ != Fault::kGraceTooEarly) program_.look();
    if (fault_ != Fault::kNoGrace) program_.wait();
    if (fault_ == Fault::kWordsBeforeIds) program_.launch("words", std::exchange(words, {}));
    const bool names_ids = !ids.empty() && fault_ != Fault::kNoGraceAfterIds;
    program_.launch("ids", std::move(ids));
    if (names_ids) grace();
    program_.launch("words", std::move(words));
    if (missed_rows) program_.launch("rows", std::move(rows));
    program_.phase(phase < 0 ? program_.current_phase() : phase);
    complete();
  }

  // Nobody enters for what ends with the phase before any more, and those who did have left.
  void bar(int phase, bool and_wait = true) {
    program_.phase(phase);
    if (!and_wait) return;
    program_.look();
    program_.wait();
  }

 private:
  struct Entry {
    Owner owner;
    std::uint32_t slot, row;
  };

  void grace() {
    program_.look();
    program_.wait();
  }
  struct Published {
    Owner owner;
    std::uint64_t word = 0;
  };

  static bool same(const Owner& a, const Owner& b) { return a.id == b.id && a.table == b.table; }
  static int home_of(const Owner& owner) {
    const std::uint64_t mixed = emberline::mix_owner(owner.id, emberline::table_salt(owner.table));
    return static_cast<int>(emberline::first_bucket(mixed, kBuckets));
  }

  std::uint64_t flags_of(int position) const {
    return position % 4 == 0 && fault_ != Fault::kNoFlags ? flags_[position / 4] : 0;
  }
  std::uint64_t word_of(int position) const {
    const std::optional<Entry>& entry = entries_[position];
    return (entry ? emberline::word::make(entry->slot, entry->owner.table, 3) : 0) | flags_of(position);
  }

  // The difference between what is on the GPU and what is to be there, as GpuCache::take_set.
  void changes(int position, std::vector<Store>& emptied, std::vector<Store>& ids, std::vector<Store>& words) const {
    const std::optional<Entry>& entry = entries_[position];
    const Published& before = published_[position];
    const bool was = emberline::word::slot(before.word) != 0;
    const std::uint64_t word = word_of(position);
    const Store whole{word_location(position), word, entry ? entry->row : 0};
    if (!entry || (was && same(before.owner, entry->owner))) {
      if (word != before.word) emptied.push_back(whole);
      return;
    }
    if (was) emptied.push_back({whole.location, flags_of(position), 0});
    ids.push_back({id_location(position), static_cast<std::uint64_t>(entry->owner.id), 0});
    words.push_back(whole);
  }

  void complete() {
    for (int position = 0; position < kPositions; ++position) {
      if (entries_[position]) published_[position].owner = entries_[position]->owner;
      published_[position].word = word_of(position);
    }
    free_.insert(free_.end(), leaving_.begin(), leaving_.end());
    leaving_.clear();
  }

  std::uint32_t stage(Entry& entry) {
    entry.slot = free_.back();
    free_.pop_back();
    entry.row = make_row(entry.owner.number, ++version_);
    staged_.emplace_back(entry.slot, entry.row);
    return version_;
  }
  // The one that was given up last is taken first: the hardest on readers.
  void release(std::uint32_t slot) {
    const auto is_in = [slot](const std::vector<std::uint32_t>& list) {
      return std::find(list.begin(), list.end(), slot) != list.end();
    };
    if (slot == kHostsRow || is_in(free_) || is_in(leaving_)) return;
    for (const std::optional<Entry>& entry : entries_) {
      if (entry && entry->slot == slot && fault_ != Fault::kSharedSlotFreed) return;
    }
    (fault_ == Fault::kSlotReusedInSet ? free_ : leaving_).push_back(slot);
  }

  Fault fault_;
  Program program_;
  std::array<std::optional<Entry>, kPositions> entries_;
  std::array<Published, kPositions> published_;
  std::array<std::uint64_t, kBuckets> flags_{};
  std::vector<std::uint32_t> free_, leaving_;
  std::vector<std::pair<std::uint32_t, std::uint32_t>> staged_;
  std::int64_t last_id_ = 0;
  std::uint32_t numbers_ = 0, version_ = 0;
};

}  // namespace publish_model
