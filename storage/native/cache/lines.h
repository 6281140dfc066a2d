// The index of a cache: an array of 64-byte lines that many tables share, read without locks while one writer changes it.
//
// A line is four ids and four words. A word is {slot 32, table 16, use count 8, line flags 8}; slot 0 means that the position is
// empty. The owner of a position is (id, table): two tables may hold the same id. The flags of a line stand in its first word:
// bit 0 says that an owner of this line was ever put into its second line, the rest counts the moves into this line.
//
// How a position changes, and why a reader that accepts a slot has it from the owner it asked for, is as in table/lines.h:
//   emptied     word := no slot, the id stays
//   new owner   id := new, then word := new. Only when every reader that was in at the last change of owner has left.
//   new row     word := new slot
// A reader loads id, word, and id again. Table and slot come in one load, so they belong together. At most one change of owner
// of a position falls into one reader's section, so at most four moves into one line do: seven bits count them without doubt.
// A use count changes in the word too, by the writer alone, and means nothing to a reader that looks for a row.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "line.cuh"
#include "table/pages.h"

namespace emberline {

constexpr int kCacheLineIds = 4;

struct alignas(64) CacheLine {
  std::atomic<std::int64_t> ids[kCacheLineIds];
  std::atomic<std::uint64_t> words[kCacheLineIds];
};
static_assert(sizeof(CacheLine) == 64);

namespace word {

constexpr std::uint64_t kOverflow = 1ull << 56;
constexpr std::uint64_t kMove = 2ull << 56;
constexpr std::uint64_t kFlags = 0xFFull << 56;

constexpr std::uint64_t make(std::uint32_t slot, std::uint32_t table, std::uint8_t count) {
  return slot | (std::uint64_t{table & 0xFFFF} << 32) | (std::uint64_t{count} << 48);
}
constexpr std::uint32_t slot(std::uint64_t w) { return static_cast<std::uint32_t>(w); }
constexpr std::uint32_t table(std::uint64_t w) { return static_cast<std::uint32_t>(w >> 32) & 0xFFFF; }
constexpr std::uint8_t count(std::uint64_t w) { return static_cast<std::uint8_t>(w >> 48); }

}  // namespace word

// One mixing for all tables: a salt per table keeps equal ids of two tables apart.
inline std::uint64_t table_salt(std::uint32_t table) { return mix(table * 0xA0761D6478BD642Full); }
inline std::uint64_t mix_owner(std::int64_t id, std::uint64_t salt) {
  return mix_id(static_cast<std::int64_t>(static_cast<std::uint64_t>(id) ^ salt));
}

// What a search gives: the position in its line, or none.
struct Match {
  std::uint64_t word = 0;
  int at = -1;
};

inline Match probe(const CacheLine& line, std::int64_t id, std::uint32_t table) {
  for (int i = 0; i < kCacheLineIds; ++i) {
    if (line.ids[i].load(std::memory_order_acquire) != id) continue;
    const std::uint64_t w = line.words[i].load(std::memory_order_acquire);
    if (word::slot(w) == 0 || word::table(w) != table) continue;
    if (line.ids[i].load(std::memory_order_relaxed) == id) return {w, i};
    // The id has left: what the writer did before that must be seen by who finds nothing (table/lines.h).
    (void)line.ids[i].load(std::memory_order_acquire);
  }
  return {};
}

class CacheLines {
 public:
  explicit CacheLines(std::uint64_t count) : count_(count), pages_(count * sizeof(CacheLine)) {}

  std::uint64_t count() const { return count_; }
  std::size_t bytes() const { return pages_.bytes(); }
  CacheLine& line(std::uint64_t index) const { return reinterpret_cast<CacheLine*>(pages_.data())[index]; }
  CacheLine& first(std::uint64_t mixed) const { return line(first_line(mixed, count_)); }
  CacheLine& second(std::uint64_t mixed) const { return line(second_line(mixed, count_)); }
  std::uint32_t position(const CacheLine& of, int at) const {
    return static_cast<std::uint32_t>(&of - &line(0)) * kCacheLineIds + static_cast<std::uint32_t>(at);
  }

  // Ends a search whose first line, read after `flags`, did not hold the owner. `where` is set with a match.
  Match find_on(std::int64_t id, std::uint32_t table, std::uint64_t mixed, std::uint64_t flags, const CacheLine** where) const {
    const CacheLine& head = first(mixed);
    for (;;) {
      if ((flags & word::kOverflow) != 0) {
        *where = &second(mixed);
        if (const Match match = probe(**where, id, table); match.at >= 0) return match;
      }
      const std::uint64_t now = head.words[0].load(std::memory_order_acquire) & word::kFlags;
      if (now == flags) return {};
      flags = now;
      *where = &head;
      if (const Match match = probe(head, id, table); match.at >= 0) return match;
    }
  }

  Match find(std::int64_t id, std::uint32_t table, std::uint64_t mixed, const CacheLine** where) const {
    const CacheLine& head = first(mixed);
    const std::uint64_t flags = head.words[0].load(std::memory_order_acquire) & word::kFlags;
    *where = &head;
    const Match match = probe(head, id, table);
    return match.at >= 0 ? match : find_on(id, table, mixed, flags, where);
  }

 private:
  std::uint64_t count_;
  Pages pages_;
};

}  // namespace emberline
