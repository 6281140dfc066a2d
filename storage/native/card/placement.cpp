// Where a new owner goes in the index, as in cache/placement.cpp: its first line, its second, or a place that another
// gives up for its own other line. And how every change of a position is noted for the set.
#include "card/card_cache.h"

namespace emberline {
namespace {

constexpr int kSearchLines = 64;  // lines looked at for a chain of moves

}  // namespace

void CardCache::touch(CardPlace where, std::vector<Change>& changes) {
  std::uint64_t& held = where.line->words[where.at];
  if ((held & card_word::kTouched) != 0) return;
  changes.push_back({where.line->ids[where.at], card_word::published(held), lines_.position(where)});
  held |= card_word::kTouched;
}

// Writes a word but for what belongs to the position.
void CardCache::write(CardPlace where, std::uint64_t owner) {
  std::uint64_t& held = where.line->words[where.at];
  held = (owner & ~card_word::kOfPosition) | (held & card_word::kOfPosition);
}

void CardCache::store(CardPlace where, std::uint64_t owner) {
  touch(where, changes_);
  write(where, owner);
}

bool CardCache::try_line(CardLine& line, std::int64_t id, std::uint64_t mixed, std::uint64_t owner) {
  for (int at = 0; at < kCacheLineIds; ++at) {
    if (word::slot(line.words[at]) != 0) continue;
    if (CardLine& head = lines_.first(mixed); &line != &head && (head.words[0] & word::kOverflow) == 0) {
      touch({&head, 0}, changes_);
      head.words[0] |= word::kOverflow;
    }
    store({&line, at}, owner);
    line.ids[at] = id;
    return true;
  }
  return false;
}

// Breadth first over the lines that the owners in the way could move to.
bool CardCache::displace(std::int64_t id, std::uint64_t mixed, std::uint64_t owner) {
  struct Step {
    CardLine* line;
    int parent;  // the step whose owner `at` would move into this line
    int at;
  };
  Step steps[kSearchLines] = {{&lines_.first(mixed), -1, 0}, {&lines_.second(mixed), -1, 0}};
  int known_steps = 2;
  for (int current = 0; current < known_steps; ++current) {
    CardLine* const line = steps[current].line;
    for (int at = 0; at < kCacheLineIds; ++at) {
      const std::uint64_t held = line->words[at];
      if ((held & card_word::kPinned) != 0) continue;
      const std::uint64_t other = mixed_of(line->ids[at], word::table(held));
      CardLine& target = &lines_.first(other) == line ? lines_.second(other) : lines_.first(other);
      bool known = false;
      for (int s = 0; s < known_steps; ++s) known = known || steps[s].line == &target;
      if (known) continue;
      bool room = false;
      for (int to = 0; to < kCacheLineIds; ++to) room = room || word::slot(target.words[to]) == 0;
      if (!room) {
        if (known_steps < kSearchLines) steps[known_steps++] = {&target, current, at};
        continue;
      }
      // The chain of moves runs from its far end.
      CardLine* to = &target;
      for (int step = current, from_at = at; step >= 0;) {
        CardLine& from = *steps[step].line;
        const std::uint64_t moved = from.words[from_at];
        try_line(*to, from.ids[from_at], mixed_of(from.ids[from_at], word::table(moved)), moved);
        store({&from, from_at}, 0);
        to = &from;
        from_at = steps[step].at;
        step = steps[step].parent;
      }
      return try_line(*to, id, mixed, owner);
    }
  }
  return false;
}

// Who may go for another: the least used of the two lines.
CardPlace CardCache::coldest_of_two(std::uint64_t mixed, bool fresh_too) const {
  CardPlace victim;
  const std::uint64_t never = card_word::kPinned | (fresh_too ? 0 : card_word::kFresh);
  for (CardLine* line : {&lines_.first(mixed), &lines_.second(mixed)}) {
    for (int at = 0; at < kCacheLineIds; ++at) {
      const std::uint64_t held = line->words[at];
      if (word::slot(held) == 0 || (held & never) != 0) continue;
      if (victim.line == nullptr || word::count(held) < word::count(victim.word())) victim = {line, at};
    }
  }
  return victim;
}

// False when all who stand in its two lines have to stay.
bool CardCache::put(std::int64_t id, std::uint64_t mixed, std::uint64_t owner, bool must) {
  while (!try_line(lines_.first(mixed), id, mixed, owner) && !try_line(lines_.second(mixed), id, mixed, owner) &&
         !displace(id, mixed, owner)) {
    CardPlace victim = coldest_of_two(mixed, false);
    if (victim.line == nullptr && (owner & card_word::kPinned) != 0) {
      victim = coldest_of_two(mixed, true);
      fresh_evicted_ += victim.line != nullptr;
    }
    if (victim.line == nullptr || (!must && word::count(victim.word()) >= word::count(owner))) return false;
    evict(victim);
  }
  ++size_;
  ++rows_of_[word::table(owner)];
  return true;
}

}  // namespace emberline
