// The verbs that change the content of a GPU's cache, and the counting of uses.
#include <algorithm>

#include "card/card_cache.h"

namespace emberline {
namespace {

constexpr std::size_t kWriteAhead = 16;        // lines prefetched ahead
constexpr std::uint64_t kSearch = 4096;        // lines looked at for a victim
constexpr std::uint64_t kTurnLines = 1 << 18;  // lines that one call ages or cuts

}  // namespace

void CardCache::insert(std::uint32_t table, const std::int64_t* ids, std::size_t n, const std::uint8_t* rows,
                       const std::uint8_t* freq, bool pinned, bool* in, std::size_t stride) {
  if (stride == 0) stride = row_bytes_;
  const std::uint64_t fresh_evicted = fresh_evicted_;
  for (std::size_t i = 0; i < n; ++i) {
    if (i + kWriteAhead < n) lines_.prefetch(mixed_of(ids[i + kWriteAhead], table));
    const std::uint64_t mixed = mixed_of(ids[i], table);
    const std::uint8_t* const row = rows + i * stride;
    if (const CardPlace where = lines_.find(ids[i], table, mixed); where.line != nullptr) {
      if (pinned) where.line->words[where.at] |= card_word::kPinned;
      in[i] = where.slot() == kAskHost ? give_row(where, row) : replace_row(where, row);
      stats_.assigned += in[i];
      continue;
    }
    const std::uint8_t code = policy_.from_uses(freq != nullptr ? freq[i] : kDeliberate);
    const std::uint64_t owner = word::make(0, table, code) | (pinned ? card_word::kPinned : 0);
    in[i] = make_room() && insert_new(ids[i], mixed, row, owner, true);
    stats_.inserted += in[i];
  }
  if (fresh_evicted != fresh_evicted_) check_in(table, ids, n, in);
}

// A row of this call went for another that had no other place.
void CardCache::check_in(std::uint32_t table, const std::int64_t* ids, std::size_t n, bool* in) const {
  for (std::size_t i = 0; i < n; ++i) {
    const CardPlace where = lines_.find(ids[i], table, mixed_of(ids[i], table));
    in[i] = in[i] && where.line != nullptr && where.slot() != kAskHost;
  }
}

std::size_t CardCache::offer(std::uint32_t table, const std::int64_t* ids, std::size_t n, const std::uint8_t* rows,
                             const std::uint8_t* freq, bool asked) {
  std::size_t admitted = 0;
  for (std::size_t i = 0; i < n; ++i) {
    if (i + kWriteAhead < n) {
      const std::uint64_t ahead = mixed_of(ids[i + kWriteAhead], table);
      lines_.prefetch(ahead);
      policy_.prefetch(ahead);
    }
    const std::uint64_t mixed = mixed_of(ids[i], table);
    if (lines_.find(ids[i], table, mixed).line != nullptr) continue;
    const std::uint8_t uses = freq != nullptr ? freq[i] : std::uint8_t{0};
    const std::uint32_t units = asked ? policy_.known(mixed, uses) : policy_.asked(mixed, uses);
    bool room = slots_.free() > 0;
    if (room && slots_.held() >= offered()) {
      const CardPlace victim = coldest();
      room = victim.line != nullptr && policy_.admits(units, word::count(victim.word()));
      if (room) evict(victim);
    }
    const std::uint64_t owner = word::make(0, table, policy_.code_of(units));
    if (!room || !insert_new(ids[i], mixed, rows + i * row_bytes_, owner, false)) {
      ++stats_.rejected;
      continue;
    }
    policy_.entered(mixed);
    ++admitted;
  }
  stats_.admitted += admitted;
  return admitted;
}

void CardCache::ask(std::uint32_t table, const std::int64_t* ids, std::size_t n, bool* admits) {
  std::uint64_t room = free(), slots = slots_.free();
  CardPlace victim;
  for (std::size_t i = 0; i < n; ++i) {
    if (i + kWriteAhead < n) {
      const std::uint64_t ahead = mixed_of(ids[i + kWriteAhead], table);
      lines_.prefetch(ahead);
      policy_.prefetch(ahead);
    }
    const std::uint64_t mixed = mixed_of(ids[i], table);
    admits[i] = false;
    if (lines_.find(ids[i], table, mixed).line != nullptr) continue;
    const std::uint32_t units = policy_.asked(mixed, 0);
    if (slots == 0) continue;
    if (room > 0) {
      --room;
    } else {
      if (victim.line == nullptr) victim = coldest();
      if (victim.line == nullptr || !policy_.admits(units, word::count(victim.word()))) continue;
      victim = {};  // the victim would be gone
    }
    --slots;
    admits[i] = true;
  }
}

void CardCache::insert_ask_host(std::uint32_t table, const std::int64_t* ids, std::size_t n, bool* in) {
  for (std::size_t i = 0; i < n; ++i) {
    if (i + kWriteAhead < n) lines_.prefetch(mixed_of(ids[i + kWriteAhead], table));
    const std::uint64_t mixed = mixed_of(ids[i], table);
    if (const CardPlace where = lines_.find(ids[i], table, mixed); where.line != nullptr) {
      const std::uint64_t held = where.word();
      if (word::slot(held) != kAskHost) release(word::slot(held), (held & card_word::kFresh) != 0);
      store(where, (card_word::with_slot(held, kAskHost) & ~card_word::kFresh) | card_word::kPinned);
      in[i] = true;
      continue;
    }
    in[i] = put(ids[i], mixed, word::make(kAskHost, table, 0) | card_word::kPinned, true);
    stats_.inserted += in[i];
  }
}

std::size_t CardCache::assign(std::uint32_t table, const std::int64_t* ids, std::size_t n, const std::uint8_t* rows) {
  std::size_t assigned = 0;
  for (std::size_t i = 0; i < n; ++i) {
    if (i + kWriteAhead < n) lines_.prefetch(mixed_of(ids[i + kWriteAhead], table));
    const CardPlace where = lines_.find(ids[i], table, mixed_of(ids[i], table));
    if (where.line == nullptr || where.slot() == kAskHost) continue;
    assigned += replace_row(where, rows + i * row_bytes_);
  }
  stats_.assigned += assigned;
  return assigned;
}

// The row's slot: there is a free one.
std::uint32_t CardCache::stage(const std::uint8_t* row) {
  const std::uint32_t slot = slots_.take();
  staged_.append(slot, row);
  return slot;
}

// Removes a holder of a slot. A row that has not been sent to the device is dropped.
void CardCache::release(std::uint32_t slot, bool fresh) {
  if (!slots_.drop(slot)) return;
  if (!fresh) return slots_.retire(slot);
  staged_.remove(slot);
  slots_.put_back(slot);
}

// False when there is no slot for the new row: the old one is gone, then.
bool CardCache::replace_row(CardPlace where, const std::uint8_t* row) {
  const std::uint64_t held = where.word();
  const std::uint32_t slot = word::slot(held);
  const bool fresh = (held & card_word::kFresh) != 0;
  if (fresh && slots_.holders_of(slot) == 1) {
    std::copy_n(row, row_bytes_, staged_.row(staged_.number_of(slot)));
    return true;
  }
  // The new row takes one slot more where the old one has another holder.
  if (slots_.holders_of(slot) == 1 ? slots_.free() > 0 : make_room()) {
    store(where, card_word::with_slot(held, stage(row)) | card_word::kFresh);
    release(slot, fresh);
    return true;
  }
  if ((held & card_word::kPinned) == 0) {
    remove(where);
    ++stats_.erased;
    return false;
  }
  release(slot, fresh);
  store(where, card_word::with_slot(held, kAskHost) & ~card_word::kFresh);
  return false;
}

// Gives a row to an entry that asks the host.
bool CardCache::give_row(CardPlace where, const std::uint8_t* row) {
  if (!make_room()) return false;
  store(where, card_word::with_slot(where.word(), stage(row)) | card_word::kFresh);
  return true;
}

bool CardCache::insert_new(std::int64_t id, std::uint64_t mixed, const std::uint8_t* row, std::uint64_t owner,
                           bool must) {
  const std::uint32_t slot = stage(row);
  if (put(id, mixed, card_word::with_slot(owner, slot) | card_word::kFresh, must)) return true;
  release(slot, true);
  return false;
}

void CardCache::remove(CardPlace where) {
  const std::uint64_t held = where.word();
  store(where, 0);
  --size_;
  --rows_of_[word::table(held)];
  if (word::slot(held) != kAskHost) release(word::slot(held), (held & card_word::kFresh) != 0);
}

void CardCache::evict(CardPlace where) {
  policy_.left(mixed_of(where.id(), word::table(where.word())), word::count(where.word()));
  remove(where);
  ++stats_.evicted;
}

// A free slot, within the capacity.
bool CardCache::make_room() {
  if (slots_.free() == 0) return false;
  while (slots_.held() >= capacity_) {
    const CardPlace victim = coldest();
    if (victim.line == nullptr) return false;
    evict(victim);
  }
  return true;
}

// Returns the least used entry that may be evicted, in the next few buckets that hold any, as Cache::coldest does. Once
// a whole round found none, there is none until the next set: a row that came in stays until it is on the device.
CardPlace CardCache::coldest() {
  CardPlace victim;
  int seen = 0;
  const std::uint64_t most = std::min(kSearch, lines_.count());
  for (std::uint64_t step = 0; step < most && seen < FrequencyPolicy::kVictimLines; ++step) {
    if (victim.line == nullptr && fruitless_ >= lines_.count()) break;
    CardLine& line = lines_.line(victim_hand_);
    if (++victim_hand_ >= lines_.count()) victim_hand_ = 0;
    bool any = false;
    for (int at = 0; at < kCacheLineIds; ++at) {
      const std::uint64_t held = line.words[at];
      if (word::slot(held) == 0 || (held & (card_word::kPinned | card_word::kFresh)) != 0) continue;
      if (victim.line != nullptr && word::count(held) >= word::count(victim.word())) {
        any = true;
        continue;
      }
      // Evicting one whose row has another holder would free nothing.
      if (slots_.holders_of(word::slot(held)) > 1) continue;
      any = true;
      victim = {&line, at};
    }
    seen += any;
    fruitless_ = any ? 0 : fruitless_ + 1;
  }
  return victim;
}

void CardCache::note_uses(const std::uint8_t* marks, std::uint32_t weight, CardPart own) {
  const std::uint32_t units = std::min(weight, kMaxCount / FrequencyPolicy::kUse) * FrequencyPolicy::kUse;
  const auto is_own = [&](std::int64_t id, std::uint32_t table) {
    return own.parts == 1 || part_of(mixed_of(id, table % own.base_tables), own.parts) == own.part;
  };
  for (std::uint64_t index = 0; index < lines_.count(); ++index) {
    CardLine& line = lines_.line(index);
    for (int at = 0; at < kCacheLineIds; ++at) {
      std::uint64_t& held = line.words[at];
      const std::uint32_t slot = word::slot(held);
      if (slot == 0 || slot == kAskHost || marks[slot] == 0) continue;
      if (!is_own(line.ids[at], word::table(held))) continue;
      held = card_word::with_count(held, policy_.code_of(count_value(word::count(held)) + units));
    }
  }
}

void CardCache::use(std::uint32_t table, const std::int64_t* ids, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) {
    if (i + kWriteAhead < n) lines_.prefetch(mixed_of(ids[i + kWriteAhead], table));
    const CardPlace where = lines_.find(ids[i], table, mixed_of(ids[i], table));
    if (where.line == nullptr) continue;
    std::uint64_t& held = where.line->words[where.at];
    held = card_word::with_count(held, policy_.code_of(count_value(word::count(held)) + FrequencyPolicy::kUse));
  }
}

void CardCache::parts_of_ids(std::uint32_t table, const std::int64_t* ids, std::size_t n, std::uint32_t parts,
                             std::uint8_t* out) {
  const std::uint64_t salt = table_salt(table);
  for (std::size_t i = 0; i < n; ++i) out[i] = static_cast<std::uint8_t>(part_of(mix_owner(ids[i], salt), parts));
}

void CardCache::pass_lookups(std::uint64_t lookups, std::uint64_t hits) {
  policy_.pass(lookups, hits, std::uint64_t{slots_.held()} * 16 >= offered() * 15);
  age_lines();
}

void CardCache::age_lines() {
  const auto each = [this](std::uint64_t count, auto&& change) {
    for (; count > 0; --count) {
      if (++age_hand_ >= lines_.count()) age_hand_ = 0;
      for (std::uint64_t& held : lines_.line(age_hand_).words) {
        if (word::slot(held) == 0 || word::count(held) == 0) continue;
        held = card_word::with_count(held, change(word::count(held)));
      }
    }
  };
  if (policy_.take_change()) cut_left_ = lines_.count();
  if (cut_left_ > 0) {
    const std::uint64_t count = std::min(cut_left_, kTurnLines);
    cut_left_ -= count;
    each(count, [this](std::uint8_t code) { return policy_.cut(code); });
    return;
  }
  each(policy_.due(lines_.count(), kTurnLines), [this](std::uint8_t code) { return policy_.aged(code); });
}

}  // namespace emberline
