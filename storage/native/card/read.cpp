// Reports of a GPU's cache: places of ids, the hottest of them, the content of the device, its integrity.
#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>
#include <unordered_set>

#include "card/card_cache.h"

namespace emberline {
namespace {

constexpr std::size_t kReadAhead = 16;  // lines prefetched ahead

}  // namespace

void CardCache::contains_any(std::uint32_t table, std::uint32_t base_tables, const std::int64_t* ids, std::size_t n,
                             bool* any) const {
  std::fill_n(any, n, false);
  for (std::uint64_t number = table % base_tables; number < tables(); number += base_tables) {
    const auto of = static_cast<std::uint32_t>(number);
    if (rows_of(of) == 0) continue;
    for (std::size_t i = 0; i < n; ++i) {
      if (i + kReadAhead < n) lines_.prefetch(mixed_of(ids[i + kReadAhead], of));
      any[i] = any[i] || lines_.find(ids[i], of, mixed_of(ids[i], of)).line != nullptr;
    }
  }
}

HotIds CardCache::hot_ids(std::size_t limit, std::uint32_t base_tables) const {
  return hottest(limit, [this, base_tables](auto&& visit) {
    for (std::uint64_t index = 0; index < lines_.count(); ++index) {
      const CardLine& line = lines_.line(index);
      for (int at = 0; at < kCacheLineIds; ++at) {
        const std::uint64_t held = line.words[at];
        if (word::slot(held) == 0 || word::slot(held) == kAskHost || word::table(held) >= base_tables) continue;
        visit(line.ids[at], held);
      }
    }
  });
}

std::vector<std::uint8_t> CardCache::published_lines() const {
  std::vector<std::uint8_t> bytes(lines_.count() * sizeof(CardLine));
  const auto put = [&bytes](std::uint64_t line, int number, std::uint64_t value) {
    std::memcpy(bytes.data() + line * sizeof(CardLine) + static_cast<std::size_t>(number) * 8, &value, 8);
  };
  for (std::uint64_t index = 0; index < lines_.count(); ++index) {
    const CardLine& line = lines_.line(index);
    for (int at = 0; at < kCacheLineIds; ++at) {
      put(index, at, static_cast<std::uint64_t>(line.ids[at]));
      put(index, kCacheLineIds + at, card_word::published(line.words[at]));
    }
  }
  for (const std::vector<Change>* changes : {&changes_, &taken_}) {
    for (const Change& before : *changes) {
      const int at = static_cast<int>(before.position % kCacheLineIds);
      put(before.position / kCacheLineIds, at, static_cast<std::uint64_t>(before.id));
      put(before.position / kCacheLineIds, kCacheLineIds + at, before.word);
    }
  }
  return bytes;
}

void CardCache::check_integrity() const {
  struct Owner {
    std::int64_t id;
    std::uint32_t table;
    bool operator==(const Owner&) const = default;
  };
  struct Hash {
    std::size_t operator()(const Owner& owner) const { return mixed_of(owner.id, owner.table); }
  };
  const auto broken = [](const std::string& what) { throw std::logic_error(what); };
  std::unordered_set<Owner, Hash> owners;
  std::vector<std::uint64_t> rows(tables(), 0);
  std::vector<std::uint32_t> holders(std::size_t{slots_.used()} + 1, 0);
  std::vector<bool> staged(holders.size(), false);
  for (std::uint32_t number = 0; number < staged_.size(); ++number) {
    if (staged[staged_.slot(number)]) broken("a slot has two rows in staging");
    staged[staged_.slot(number)] = true;
  }
  std::uint64_t touched = 0;
  for (std::uint64_t index = 0; index < lines_.count(); ++index) {
    const CardLine& line = lines_.line(index);
    for (int at = 0; at < kCacheLineIds; ++at) {
      const std::uint64_t held = line.words[at];
      const std::uint32_t slot = word::slot(held);
      touched += (held & card_word::kTouched) != 0;
      if (slot == 0) continue;
      const Owner owner{line.ids[at], word::table(held)};
      const std::string name = "id " + std::to_string(owner.id) + " of table " + std::to_string(owner.table);
      if (owner.table >= tables()) broken(name + ": there is no such table");
      if (!owners.insert(owner).second) broken(name + " stands in the index twice");
      const std::uint64_t mixed = mixed_of(owner.id, owner.table);
      if (&lines_.first(mixed) != &line) {
        if (&lines_.second(mixed) != &line) broken(name + " stands in a line that is not its own");
        if ((lines_.first(mixed).words[0] & word::kOverflow) == 0) {
          broken(name + " is in its second line, and the first does not say so");
        }
      }
      ++rows[owner.table];
      if (slot == kAskHost) {
        if ((held & card_word::kPinned) == 0) broken(name + " asks the host and is not pinned");
        continue;
      }
      if (slot > slots_.used()) broken(name + " has slot " + std::to_string(slot) + ", which was never taken");
      ++holders[slot];
      if (((held & card_word::kFresh) != 0) != staged[slot]) broken(name + " does not know whether its row is staged");
      if (staged[slot] && (held & card_word::kTouched) == 0) {
        broken(name + " came in this set, which does not know of it");
      }
    }
  }
  std::uint64_t held_slots = 0;
  for (std::uint32_t slot = 1; slot < holders.size(); ++slot) {
    if (holders[slot] != slots_.holders_of(slot)) {
      broken("slot " + std::to_string(slot) + " counts " + std::to_string(slots_.holders_of(slot)) +
             " holders, and has " + std::to_string(holders[slot]));
    }
    held_slots += holders[slot] != 0;
    if (staged[slot] && holders[slot] == 0) broken("a row is staged for a free slot, " + std::to_string(slot));
  }
  slots_.each_unheld([&](std::uint32_t slot) {
    if (slot == 0 || slot > slots_.used() || holders[slot] != 0) {
      broken("slot " + std::to_string(slot) + " is held and listed as free, or listed twice");
    }
    holders[slot] = 1;
  });
  for (std::uint32_t slot = 1; slot < holders.size(); ++slot) {
    if (holders[slot] == 0) broken("slot " + std::to_string(slot) + " is lost");
  }
  if (held_slots != slots_.held() || held_slots > capacity_) {
    broken(std::to_string(held_slots) + " slots are held, " + std::to_string(slots_.held()) + " counted, of " +
           std::to_string(capacity_));
  }
  if (!staged_.is_sound()) broken("staging: there are more or fewer bytes than rows, or a slot has another number");
  if (touched != changes_.size()) broken("the set lists other positions than those that are marked");
  for (std::uint32_t table = 0; table < tables(); ++table) {
    if (rows[table] != rows_of(table)) {
      broken("table " + std::to_string(table) + " counts " + std::to_string(rows_of(table)) +
             " entries, the index holds " + std::to_string(rows[table]));
    }
  }
  if (owners.size() != size()) {
    broken("size says " + std::to_string(size()) + ", the index holds " + std::to_string(owners.size()));
  }
}

}  // namespace emberline
