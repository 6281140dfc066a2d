// The index of a cache: an array of 64-byte lines that many tables share, read without locks while one writer changes
// it.
//
// cache_line.cuh says what a line is, and how it is searched.
//
// How a position changes, and why a reader that accepts a slot has it from the owner it asked for, is as in
// table/lines.h:
//   emptied     word := no slot, the id stays
//   new owner   id := new, then word := new. Only when every reader that was in at the last change of owner has left.
//   new row     word := new slot
// A reader loads id, word, and id again. Table and slot come in one load, so they belong together. At most one change
// of owner of a position falls into one reader's section, so at most four moves into one line do: seven bits count them
// without doubt. A use count changes in the word too, by the writer alone, and means nothing to a reader that looks for
// a row.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "cache_line.cuh"
#include "table/pages.h"

namespace emberline {

struct alignas(64) CacheLine {
  std::atomic<std::int64_t> ids[kCacheLineIds];
  std::atomic<std::uint64_t> words[kCacheLineIds];
};
static_assert(sizeof(CacheLine) == 64);

// A line's loads while its writer is at work.
struct CacheLineLoads {
  const CacheLine& line;

  std::int64_t id(int at) const { return line.ids[at].load(std::memory_order_acquire); }
  std::uint64_t word(int at) const { return line.words[at].load(std::memory_order_acquire); }
  bool stays(int at, std::int64_t id) const {
    if (line.ids[at].load(std::memory_order_relaxed) == id) return true;
    // The id has left: what the writer did before that must be seen by who finds nothing (table/lines.h).
    (void)line.ids[at].load(std::memory_order_acquire);
    return false;
  }
};

inline Match probe(const CacheLine& line, std::int64_t id, std::uint32_t table) {
  return probe_line(CacheLineLoads{line}, id, table);
}

class CacheLines {
 public:
  explicit CacheLines(std::uint64_t count) : count_(count), pages_(count * sizeof(CacheLine)) {}

  std::uint64_t count() const { return count_; }
  std::size_t bytes() const { return pages_.bytes(); }
  CacheLine& line(std::uint64_t index) const { return reinterpret_cast<CacheLine*>(pages_.data())[index]; }
  CacheLineLoads loads(std::uint64_t index) const { return {line(index)}; }
  CacheLine& first(std::uint64_t mixed) const { return line(first_line(mixed, count_)); }
  CacheLine& second(std::uint64_t mixed) const { return line(second_line(mixed, count_)); }
  std::uint32_t position(const CacheLine& of, int at) const {
    return static_cast<std::uint32_t>(&of - &line(0)) * kCacheLineIds + static_cast<std::uint32_t>(at);
  }

  // Ends a search whose first line, read after `flags`, did not hold the owner. `where` is set with a match.
  Match find_on(std::int64_t id, std::uint32_t table, std::uint64_t mixed, std::uint64_t flags,
                const CacheLine** where) const {
    return told(emberline::find_on(*this, id, table, mixed, flags), where);
  }
  Match find(std::int64_t id, std::uint32_t table, std::uint64_t mixed, const CacheLine** where) const {
    return told(emberline::find(*this, id, table, mixed), where);
  }

 private:
  Match told(Found found, const CacheLine** where) const {
    if (found.match.at >= 0) *where = &line(found.line);
    return found.match;
  }

  std::uint64_t count_;
  Pages pages_;
};

}  // namespace emberline
