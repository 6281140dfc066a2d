// Places a new owner in the index, as cache/placement.cpp does: in its first bucket, its second, or a place that
// another gives up for its own other bucket. Notes every change of a position for the set.
#include "card/card_cache.h"
#include "card/line_locks.h"

namespace emberline {
namespace {

constexpr int kSearchLines = 64;  // lines looked at for a chain of moves
constexpr int kMoves = 2;         // moves of a chain where other threads are at work

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

// Places an owner in one of its buckets that has a free position; its first line knows already if this is the second.
bool CardCache::fill_place(CardLine& line, std::int64_t id, std::uint64_t owner, std::vector<Change>& changes) {
  for (int at = 0; at < kCacheLineIds; ++at) {
    if (word::slot(line.words[at]) != 0) continue;
    touch({&line, at}, changes);
    write({&line, at}, owner);
    line.ids[at] = id;
    return true;
  }
  return false;
}

void CardCache::mark_overflow(CardLine& line, std::vector<Change>& changes) {
  if ((line.words[0] & word::kOverflow) != 0) return;
  touch({&line, 0}, changes);
  line.words[0] |= word::kOverflow;
}

// The other lines of a full line's owners, on their way; its own number for those that stay.
CardCache::Others CardCache::others_of(std::uint64_t index) const {
  Others others;
  const CardLine& line = lines_.line(index);
  for (int at = 0; at < kCacheLineIds; ++at) {
    others.line[at] = index;
    if ((line.words[at] & card_word::kPinned) != 0) continue;
    const std::uint64_t mixed = mixed_of(line.ids[at], word::table(line.words[at]));
    const std::uint64_t first = first_line(mixed, lines_.count());
    others.line[at] = first == index ? second_line(mixed, lines_.count()) : first;
    __builtin_prefetch(&lines_.line(others.line[at]), 1, 3);
  }
  return others;
}

// Places an owner in its second bucket. Where that is full, the buckets that `place_late` will read are prefetched.
bool CardCache::place_second(std::int64_t id, std::uint64_t mixed, std::uint64_t owner, LineLocks& locks,
                             std::vector<Change>& changes) {
  const std::uint64_t index = second_line(mixed, lines_.count());
  const LineLocks::Held here(locks, index);
  if (fill_place(lines_.line(index), id, owner, changes)) return true;
  for (const std::uint64_t other : others_of(index).line) locks.prefetch(other);
  return false;
}

// Places an owner whose first bucket was full and is marked so: in a free position of one of its buckets, or in that of
// another owner that has a free one in its own other bucket, or is given one there.
bool CardCache::place_late(std::int64_t id, std::uint64_t mixed, std::uint64_t owner, LineLocks& locks,
                           std::vector<Change>& changes) {
  for (int moves = 1; moves <= kMoves; ++moves) {
    for (const std::uint64_t index : {second_line(mixed, lines_.count()), first_line(mixed, lines_.count())}) {
      const LineLocks::Held here(locks, index);
      CardLine& line = lines_.line(index);
      if (fill_place(line, id, owner, changes)) return true;
      if (make_place(index, moves, locks, changes)) return fill_place(line, id, owner, changes);
    }
  }
  return false;
}

// Empties a position of a full bucket, whose lock the caller holds, by at most `moves` moves. A bucket that another
// thread holds, or the caller already, is left out.
bool CardCache::make_place(std::uint64_t index, int moves, LineLocks& locks, std::vector<Change>& changes) {
  CardLine& line = lines_.line(index);
  const Others others = others_of(index);
  for (int at = 0; at < kCacheLineIds; ++at) {
    if (others.line[at] == index) continue;
    const LineLocks::Held there(locks, others.line[at], std::try_to_lock);
    if (!there.is_held()) continue;
    const std::int64_t id = line.ids[at];
    const auto moves_there = [&] { return fill_place(lines_.line(others.line[at]), id, line.words[at], changes); };
    if (!moves_there() && !(moves > 1 && make_place(others.line[at], moves - 1, locks, changes) && moves_there()))
      continue;
    if (first_line(mixed_of(id, word::table(line.words[at])), lines_.count()) == index) mark_overflow(line, changes);
    touch({&line, at}, changes);
    write({&line, at}, 0);
    return true;
  }
  return false;
}

bool CardCache::try_line(CardLine& line, std::int64_t id, std::uint64_t mixed, std::uint64_t owner) {
  if (!fill_place(line, id, owner, changes_)) return false;
  if (CardLine& head = lines_.first(mixed); &line != &head) mark_overflow(head, changes_);
  return true;
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
    const auto index = static_cast<std::uint64_t>(line - &lines_.line(0));
    const Others others = others_of(index);
    for (int at = 0; at < kCacheLineIds; ++at) {
      if (others.line[at] == index) continue;
      CardLine& target = lines_.line(others.line[at]);
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

// Returns the entry to evict for another: the least used of the two buckets.
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

// False when there is none, nor can any be made by moves.
bool CardCache::find_place(std::int64_t id, std::uint64_t mixed, std::uint64_t owner) {
  if (!try_line(lines_.first(mixed), id, mixed, owner) && !try_line(lines_.second(mixed), id, mixed, owner) &&
      !displace(id, mixed, owner)) {
    return false;
  }
  ++size_;
  ++rows_of_[word::table(owner)];
  return true;
}

// False when all who stand in its two lines have to stay.
bool CardCache::put(std::int64_t id, std::uint64_t mixed, std::uint64_t owner, bool must) {
  while (!find_place(id, mixed, owner)) {
    CardPlace victim = coldest_of_two(mixed, false);
    if (victim.line == nullptr && (owner & card_word::kPinned) != 0) {
      victim = coldest_of_two(mixed, true);
      fresh_evicted_ += victim.line != nullptr;
    }
    if (victim.line == nullptr || (!must && word::count(victim.word()) >= word::count(owner))) return false;
    evict(victim);
  }
  return true;
}

}  // namespace emberline
