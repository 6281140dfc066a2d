// The integrity check of OverlayTable.
#include <algorithm>
#include <array>
#include <stdexcept>
#include <string>
#include <vector>

#include "table/overlay.h"

namespace emberline {

void OverlayTable::check_integrity() const {
  const std::lock_guard lock(mutex_);
  index_.check_integrity();
  std::array<std::size_t, kMostOverlays> entries{};
  std::vector<bool> used_links(std::size_t{links_.used()} + 1), used_rows(std::size_t{rows_.used()} + 1);
  const auto claim = [](std::vector<bool>& used, std::uint32_t slot, const std::string& what) {
    if (slot == 0 || slot >= used.size() || used[slot]) {
      throw std::logic_error(what + " slot " + std::to_string(slot) + " is out of range or held twice");
    }
    used[slot] = true;
  };
  index_.each([&](std::int64_t id, std::uint32_t at) {
    const std::string name = "id " + std::to_string(id);
    std::uint64_t seen = 0;
    const auto enter = [&](std::uint8_t overlay, CoverState state, std::uint32_t row) {
      if (overlay >= kMostOverlays || state == CoverState::kNone || state > CoverState::kSpilled) {
        throw std::logic_error(name + " has an entry that is none");
      }
      if (visible(seen, overlay))
        throw std::logic_error(name + " has two entries of overlay " + std::to_string(overlay));
      seen |= std::uint64_t{1} << overlay;
      ++entries[overlay];
      if ((state == CoverState::kRow) != (row != 0))
        throw std::logic_error(name + " has a row and should not, or lacks it");
      if (row != 0) claim(used_rows, row, name + ", row");
    };
    const Head head = head_at(index_.address(at));
    enter(head.overlay, head.state, head.row);
    for (std::uint32_t slot = head.below; slot != 0; slot = link(slot).below.load(std::memory_order_relaxed)) {
      claim(used_links, slot, name + ", link");
      enter(link(slot).overlay, link(slot).state, link(slot).row);
    }
  });
  for (std::uint32_t overlay = 0; overlay < kMostOverlays; ++overlay) {
    const Staged& staged = staged_[overlay];
    const std::string name = "overlay " + std::to_string(overlay);
    // There are as many entries as staged ids, each in its chain, so no chain holds another entry.
    if (entries[overlay] != staged.ids.size() || staged.states.size() != staged.ids.size() ||
        staged.count.load(std::memory_order_relaxed) != staged.ids.size()) {
      throw std::logic_error(name + " has " + std::to_string(entries[overlay]) + " entries for " +
                             std::to_string(staged.ids.size()) + " staged ids");
    }
    for (const std::int64_t id : staged.ids) {
      const std::uint32_t at = index_.locate(id);
      if (at == kEmptySlot || !holds(head_at(index_.address(at)), overlay)) {
        throw std::logic_error(name + " staged id " + std::to_string(id) + ", whose chain lacks it");
      }
    }
  }
  links_.each_unused([&](std::uint32_t slot) { claim(used_links, slot, "free link"); });
  rows_.each_unused([&](std::uint32_t slot) { claim(used_rows, slot, "free row"); });
  if (std::count(used_links.begin() + 1, used_links.end(), false) > 0) throw std::logic_error("a link is lost");
  if (std::count(used_rows.begin() + 1, used_rows.end(), false) > 0) throw std::logic_error("a row is lost");
  if (index_.size() != size()) {
    throw std::logic_error("size says " + std::to_string(size()) + ", the index holds " +
                           std::to_string(index_.size()));
  }
}

}  // namespace emberline
