// Places a new id: in its first bucket, its second, a place that another id gives up for its own other bucket, a larger
// array.
#include <string>

#include "table/table.h"

namespace emberline {
namespace {

constexpr std::size_t kSearchLines = 256;  // lines looked at for a chain of moves
// Grown at 85% to 61%: 15 to 21 bytes of index a row.
constexpr std::uint64_t kLoadNum = 17, kLoadDen = 20;
constexpr std::uint64_t larger(std::uint64_t count) { return count * 7 / 5 + 1; }
// Below this load a failed placement means that the ids crowd the same lines, which a larger array would not help.
constexpr std::uint64_t kCrowdedLoad = 8;  // an eighth of the positions

}  // namespace

// Returns whether all readers that saw the last change of owner have left (lines.h). An array that no reader has yet
// may change freely.
bool Table::may_change_owner(const LineArray& array, const Line& line, int at, bool shared) {
  if (!shared) return true;
  const auto position = static_cast<std::uint64_t>(&line - &array.line(0)) * kLineIds + static_cast<std::uint64_t>(at);
  if (grace_.passed(changed_[mix(position) & (changed_.size() - 1)])) return true;
  blocked_ = true;
  return false;
}

void Table::set_owner(const LineArray& array, Line& line, int at, std::int64_t id, std::uint32_t slot, bool shared) {
  line.ids[at].store(id, std::memory_order_release);
  line.slots[at].store(slot, std::memory_order_release);
  if (!shared) return;
  const auto position = static_cast<std::uint64_t>(&line - &array.line(0)) * kLineIds + static_cast<std::uint64_t>(at);
  changed_[mix(position) & (changed_.size() - 1)] = grace_.group();
}

bool Table::try_line(LineArray& array, Line& line, std::int64_t id, std::uint32_t slot, bool shared) {
  for (int at = 0; at < kLineIds; ++at) {
    if (line.slots[at].load(std::memory_order_relaxed) != kEmptySlot) continue;
    if (!may_change_owner(array, line, at, shared)) continue;
    if (&line != &array.first(mix_id(id))) {
      Line& head = array.first(mix_id(id));
      head.version.store(head.version.load(std::memory_order_relaxed) | kOverflowBit, std::memory_order_release);
    }
    set_owner(array, line, at, id, slot, shared);
    return true;
  }
  return false;
}

bool Table::try_place(LineArray& array, std::int64_t id, std::uint32_t slot, bool shared) {
  const std::uint64_t mixed = mix_id(id);
  return try_line(array, array.first(mixed), id, slot, shared) ||
         try_line(array, array.second(mixed), id, slot, shared) || displace(array, id, slot, shared);
}

// Breadth first over the lines that the ids in the way could move to; the chain of moves runs from its far end, so that
// every id stands somewhere at every moment.
bool Table::displace(LineArray& array, std::int64_t id, std::uint32_t slot, bool shared) {
  struct Step {
    Line* line;
    int parent;  // step whose id `at` would move into this line
    int at;
  };
  const std::uint64_t mixed = mix_id(id);
  std::vector<Step> steps{{&array.first(mixed), -1, 0}, {&array.second(mixed), -1, 0}};
  const auto other_line = [&](const Line& line, std::int64_t moved) -> Line& {
    const std::uint64_t m = mix_id(moved);
    return &array.first(m) == &line ? array.second(m) : array.first(m);
  };
  for (std::size_t current = 0; current < steps.size(); ++current) {
    Line* line = steps[current].line;
    for (int at = 0; at < kLineIds; ++at) {
      const std::uint32_t held = line->slots[at].load(std::memory_order_relaxed);
      // An empty position here was changed too recently; one that is held must be free to change again.
      if (held == kEmptySlot || !may_change_owner(array, *line, at, shared)) continue;
      Line& target = other_line(*line, line->ids[at].load(std::memory_order_relaxed));
      bool known = false;
      for (const Step& step : steps) known = known || step.line == &target;
      if (known) continue;

      int from_step = static_cast<int>(current), from_at = at;
      Line* to = &target;
      bool moved_first = false;
      while (from_step >= 0) {
        Line& from = *steps[static_cast<std::size_t>(from_step)].line;
        const std::int64_t moved = from.ids[from_at].load(std::memory_order_relaxed);
        const std::uint32_t moved_slot = from.slots[from_at].load(std::memory_order_relaxed);
        if (!try_line(array, *to, moved, moved_slot, shared)) break;
        moved_first = true;
        Line& head = array.first(mix_id(moved));
        if (to == &head) {
          head.version.store(head.version.load(std::memory_order_relaxed) + kVersionStep, std::memory_order_release);
        }
        from.slots[from_at].store(kEmptySlot, std::memory_order_release);
        to = &from;
        const Step& step = steps[static_cast<std::size_t>(from_step)];
        from_at = step.at;
        from_step = step.parent;
      }
      if (moved_first) return from_step < 0 && try_line(array, *to, id, slot, shared);
      if (steps.size() < kSearchLines) steps.push_back({&target, static_cast<int>(current), at});
    }
  }
  return false;
}

// False when there is no place and the index may not grow.
bool Table::place(std::int64_t id, std::uint32_t slot, bool may_grow) {
  if (may_grow && size() * kLoadDen > lines().count() * kLineIds * kLoadNum) grow(larger(lines().count()));
  for (;;) {
    blocked_ = false;
    if (try_place(lines(), id, slot, true)) return true;
    // Something was free, or could have moved, but changed owner while readers are in: let them leave.
    if (blocked_) {
      grace_.wait(grace_.group());
      if (try_place(lines(), id, slot, true)) return true;
    }
    if (!may_grow) return false;
    if (size() * kCrowdedLoad < lines().count() * kLineIds) {
      throw CapacityExceeded("id " + std::to_string(id) + " has no place: too many ids choose the same lines");
    }
    grow(larger(lines().count()));
  }
}

// Builds a larger array beside the one in use and publishes it; readers that hold the old one finish on it.
void Table::grow(std::uint64_t count) {
  const LineArray& old = lines();
  for (;; count = larger(count)) {
    if (count > UINT32_MAX) throw CapacityExceeded("the index has no room: too many ids choose the same lines");
    auto fresh = std::make_unique<LineArray>(count);
    bool complete = true;
    for (std::uint64_t index = 0; index < old.count() && complete; ++index) {
      const Line& line = old.line(index);
      for (int at = 0; at < kLineIds && complete; ++at) {
        const std::uint32_t slot = line.slots[at].load(std::memory_order_relaxed);
        if (slot != kEmptySlot) complete = try_place(*fresh, line.ids[at].load(std::memory_order_relaxed), slot, false);
      }
    }
    if (!complete) continue;
    lines_.store(fresh.get(), std::memory_order_release);
    old_lines_.emplace_back(grace_.group(), std::move(owned_lines_));
    owned_lines_ = std::move(fresh);
    reclaim();
    return;
  }
}

}  // namespace emberline
