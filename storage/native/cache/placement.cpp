// Places a new owner in the index: its first line, its second, or a place that another gives up for its own other line.
#include <vector>

#include "cache/cache.h"

namespace emberline {
namespace {

constexpr std::size_t kSearchLines = 64;  // lines looked at for a chain of moves
constexpr int kAttempts = 8;

void flag(CacheLine& line, std::uint64_t flags) { line.words[0].store(flags, std::memory_order_release); }

}  // namespace

std::uint64_t& Cache::changed(const CacheLine& line, int at) {
  const auto position = reinterpret_cast<std::uintptr_t>(&line) / sizeof(CacheLine) * kCacheLineIds;
  return changed_[mix(position + static_cast<std::uint64_t>(at)) & (changed_.size() - 1)];
}

// Returns whether all readers that saw the position's last change of owner have left (lines.h).
bool Cache::may_change_owner(const CacheLine& line, int at) {
  if (grace_.passed(changed(line, at))) return true;
  blocked_ = true;
  return false;
}

bool Cache::try_line(CacheLine& line, std::int64_t id, std::uint64_t mixed, std::uint64_t owner) {
  for (int at = 0; at < kCacheLineIds; ++at) {
    if (word::slot(line.words[at].load(std::memory_order_relaxed)) != 0 || !may_change_owner(line, at)) continue;
    if (CacheLine& head = fresh().first(mixed); &line != &head) {
      flag(head, head.words[0].load(std::memory_order_relaxed) | word::kOverflow);
    }
    line.ids[at].store(id, std::memory_order_release);
    store_word(line, at, owner);
    changed(line, at) = grace_.group();
    return true;
  }
  return false;
}

bool Cache::try_place(std::int64_t id, std::uint64_t mixed, std::uint64_t owner) {
  return try_line(fresh().first(mixed), id, mixed, owner) || try_line(fresh().second(mixed), id, mixed, owner) ||
         displace(id, mixed, owner);
}

// Breadth first over the lines that the owners in the way could move to. The chain of moves runs from its far end, so
// that every owner stands somewhere at every moment.
bool Cache::displace(std::int64_t id, std::uint64_t mixed, std::uint64_t owner) {
  struct Step {
    CacheLine* line;
    int parent;  // the step whose owner `at` would move into this line
    int at;
  };
  std::vector<Step> steps{{&fresh().first(mixed), -1, 0}, {&fresh().second(mixed), -1, 0}};
  for (std::size_t current = 0; current < steps.size(); ++current) {
    CacheLine* const line = steps[current].line;
    for (int at = 0; at < kCacheLineIds; ++at) {
      const std::uint64_t held = line->words[at].load(std::memory_order_relaxed);
      // An empty position here was changed too recently; one that is held must be free to change again.
      if (word::slot(held) == 0 || !may_change_owner(*line, at)) continue;
      const std::uint64_t other = mixed_of(line->ids[at].load(std::memory_order_relaxed), word::table(held));
      CacheLine& target = &fresh().first(other) == line ? fresh().second(other) : fresh().first(other);
      bool known = false;
      for (const Step& step : steps) known = known || step.line == &target;
      if (known) continue;

      CacheLine* to = &target;
      int from_step = static_cast<int>(current), from_at = at;
      bool moved_one = false;
      while (from_step >= 0) {
        const Step step = steps[static_cast<std::size_t>(from_step)];
        CacheLine& from = *step.line;
        const std::int64_t moved_id = from.ids[from_at].load(std::memory_order_relaxed);
        const std::uint64_t moved = from.words[from_at].load(std::memory_order_relaxed) & ~word::kFlags;
        const std::uint64_t moved_mixed = mixed_of(moved_id, word::table(moved));
        if (!try_line(*to, moved_id, moved_mixed, moved)) break;
        moved_one = true;
        if (CacheLine& head = fresh().first(moved_mixed); to == &head) {
          flag(head, head.words[0].load(std::memory_order_relaxed) + word::kMove);
        }
        store_word(from, from_at, 0);
        to = &from;
        from_at = step.at;
        from_step = step.parent;
      }
      if (moved_one) return from_step < 0 && try_line(*to, id, mixed, owner);
      if (steps.size() < kSearchLines) steps.push_back({&target, static_cast<int>(current), at});
    }
  }
  return false;
}

// False when the lines in question are full.
bool Cache::place(std::int64_t id, std::uint64_t mixed, std::uint64_t owner) {
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    blocked_ = false;
    if (try_place(id, mixed, owner)) return true;
    if (!blocked_) return false;
    // Something was free, or could have moved, but changed owner while readers are in: let them leave. More than once
    // only where a chain of moves came upon a change of its own, by the hash under which changes are remembered.
    grace_.wait(grace_.group());
  }
  return false;
}

Cache::Place Cache::coldest_of_two(std::uint64_t mixed) const {
  Place victim;
  for (CacheLine* line : {&fresh().first(mixed), &fresh().second(mixed)}) {
    for (int at = 0; at < kCacheLineIds; ++at) {
      const std::uint64_t held = line->words[at].load(std::memory_order_relaxed);
      if (word::slot(held) == 0) continue;
      if (victim.line == nullptr || word::count(held) < word::count(victim.word())) victim = {line, at};
    }
  }
  return victim;
}

}  // namespace emberline
