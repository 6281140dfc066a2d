#include "table/overlay.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <string>

#include "table/id_map.h"
#include "table/pipeline.h"
#include "table/workers.h"

namespace emberline {
namespace {

constexpr std::uint32_t kHeadFloats = 4;  // a head takes the place of so many values
constexpr std::size_t kWindow = 1024;  // ids whose heads are found, and unlinked, in one go

}  // namespace

OverlayTable::OverlayTable(std::uint32_t dim, RowType type)
    : format_{type, dim},
      index_(kHeadFloats, 0, 0),
      links_(kHeadFloats * sizeof(float), grace_),
      rows_(std::max<std::size_t>(4, format_.bytes()), grace_) {
  if (dim < 1 || dim > 4096) throw std::invalid_argument("dim must be 1 to 4096, got " + std::to_string(dim));
}

std::uint32_t OverlayTable::checked(std::uint32_t overlay) {
  if (overlay < kMostOverlays) return overlay;
  throw std::invalid_argument("overlay: expected a number from 0 to 62, got " + std::to_string(overlay));
}

OverlayTable::Head OverlayTable::head_at(const char* row) {
  Head head;
  std::memcpy(&head, row, sizeof(head));
  return head;
}

std::size_t OverlayTable::memory_bytes() const {
  const std::lock_guard lock(mutex_);
  std::size_t bytes = index_.memory_bytes() + links_.bytes() + rows_.bytes();
  for (const Staged& staged : staged_) {
    bytes += staged.ids.capacity() * sizeof(staged.ids[0]) + staged.states.capacity() * sizeof(staged.states[0]);
  }
  return bytes;
}

void OverlayTable::stage(std::uint32_t overlay, const std::int64_t* ids, std::size_t n, RowInput rows,
                         CoverState state) {
  Staged& staged = staged_[checked(overlay)];
  const bool with_rows = state == CoverState::kRow;
  if (state == CoverState::kNone || (with_rows && rows.empty() && n > 0) || (!with_rows && !rows.empty())) {
    throw std::invalid_argument("rows: entries with rows need them, removed and spilled ones have none");
  }
  if (rows.floats != nullptr) check_encodable(format_, rows.floats, n);
  const std::lock_guard lock(mutex_);
  refuse_repeated(overlay, ids, n);
  const std::size_t before = staged.ids.size();
  std::vector<Head> heads;
  try {
    staged.ids.insert(staged.ids.end(), ids, ids + n);
    staged.states.insert(staged.states.end(), n, state);
    heads.reserve(n);
    const char* old[kWindow];
    for (std::size_t start = 0; start < n; start += kWindow) {
      const std::size_t count = std::min(kWindow, n - start);
      TablePipeline pipeline(index_, ids + start, count, old);  // no section: nobody else writes the index
      for (std::size_t i = 0; i < count; ++i) {
        pipeline.advance(i + 1);
        heads.push_back({0, 0, state, static_cast<std::uint8_t>(overlay), {}});
        Head& head = heads.back();
        if (with_rows) {
          head.row = rows_.take();
          char* to = rows_.row(head.row);
          if (rows.encoded != nullptr) {
            std::memcpy(to, rows.encoded + (start + i) * format_.bytes(), format_.bytes());
          } else {
            encode_rows(format_, rows.floats + (start + i) * format_.dim, 1, to);  // was checked: does not throw
          }
        }
        if (old[i] == nullptr) continue;
        const Head covered = head_at(old[i]);
        head.below = links_.take();
        Link& below = link(head.below);
        below.below.store(covered.below, std::memory_order_relaxed);
        below.row = covered.row;
        below.state = covered.state;
        below.overlay = covered.overlay;
      }
    }
    index_.insert_or_assign(ids, n, reinterpret_cast<const char*>(heads.data()), nullptr);
  } catch (...) {
    // No mask shows this overlay yet. What got in is unlinked, what did not is given back.
    for (std::size_t i = 0; i < heads.size(); ++i) {
      const std::uint32_t at = index_.locate(ids[i]);
      if (at != kEmptySlot && head_at(index_.address(at)).overlay == overlay) {
        unlink(overlay, ids + i, 1);
        continue;
      }
      if (heads[i].row != 0) rows_.put_back(heads[i].row);
      if (heads[i].below != 0) links_.put_back(heads[i].below);
    }
    staged.ids.resize(before);
    staged.states.resize(before);
    changed(staged);
    throw;
  }
  changed(staged);
}

// Throws for an id that is given twice, or that the overlay holds.
void OverlayTable::refuse_repeated(std::uint32_t overlay, const std::int64_t* ids, std::size_t n) const {
  const auto refuse = [&](std::int64_t id, const char* why) {
    throw std::invalid_argument("ids: overlay " + std::to_string(overlay) + " takes an id once, but " +
                                std::to_string(id) + why);
  };
  if (std::adjacent_find(ids, ids + n, std::greater_equal<>()) != ids + n) {
    IdMap seen;
    for (std::size_t i = 0; i < n; ++i) {
      if (seen[ids[i]]++ != 0) refuse(ids[i], " is given twice");
    }
  }
  if (staged_[overlay].ids.empty()) return;
  const char* old[kWindow];
  for (std::size_t start = 0; start < n; start += kWindow) {
    const std::size_t count = std::min(kWindow, n - start);
    TablePipeline pipeline(index_, ids + start, count, old);
    for (std::size_t i = 0; i < count; ++i) {
      pipeline.advance(i + 1);
      if (old[i] != nullptr && holds(head_at(old[i]), overlay)) refuse(ids[start + i], " is in it already");
    }
  }
}

bool OverlayTable::holds(const Head& head, std::uint32_t overlay) const {
  if (head.overlay == overlay) return true;
  for (std::uint32_t slot = head.below; slot != 0; slot = link(slot).below.load(std::memory_order_relaxed)) {
    if (link(slot).overlay == overlay) return true;
  }
  return false;
}

std::size_t OverlayTable::discard(std::uint32_t overlay, std::size_t limit) {
  Staged& staged = staged_[checked(overlay)];
  const std::lock_guard lock(mutex_);
  const std::size_t total = std::min(limit, staged.ids.size());
  for (std::size_t done = 0; done < total;) {
    const std::size_t count = std::min(kWindow, total - done);
    const std::size_t left = staged.ids.size() - count;
    unlink(overlay, staged.ids.data() + left, count);
    staged.ids.resize(left);
    staged.states.resize(left);
    done += count;
  }
  if (staged.ids.empty()) {
    staged.ids = {};
    staged.states = {};
  }
  changed(staged);
  return total;
}

// Takes the overlay's entries of these ids out of their chains.
void OverlayTable::unlink(std::uint32_t overlay, const std::int64_t* ids, std::size_t n) {
  Unlinked unlinked;
  const char* heads[kWindow];
  for (std::size_t start = 0; start < n; start += kWindow) {
    const std::size_t count = std::min(kWindow, n - start);
    TablePipeline pipeline(index_, ids + start, count, heads);
    for (std::size_t i = 0; i < count; ++i) {
      pipeline.advance(i + 1);
      if (heads[i] != nullptr) unlink_one(overlay, ids[start + i], head_at(heads[i]), unlinked);
    }
  }
  index_.assign(unlinked.replaced.data(), unlinked.replaced.size(),
                reinterpret_cast<const char*>(unlinked.heads.data()));
  index_.erase(unlinked.gone.data(), unlinked.gone.size());
  for (const std::uint32_t slot : unlinked.links) links_.retire(slot);
  for (const std::uint32_t slot : unlinked.rows) rows_.retire(slot);
}

void OverlayTable::unlink_one(std::uint32_t overlay, std::int64_t id, Head head, Unlinked& unlinked) {
  if (head.overlay == overlay) {
    if (head.row != 0) unlinked.rows.push_back(head.row);
    if (head.below == 0) {
      unlinked.gone.push_back(id);
      return;
    }
    const Link& next = link(head.below);  // its row goes up with it
    unlinked.replaced.push_back(id);
    unlinked.heads.push_back({next.below.load(std::memory_order_relaxed), next.row, next.state, next.overlay, {}});
    unlinked.links.push_back(head.below);
    return;
  }
  std::uint32_t above = 0;
  for (std::uint32_t slot = head.below; slot != 0; slot = link(slot).below.load(std::memory_order_relaxed)) {
    const Link& entry = link(slot);
    if (entry.overlay != overlay) {
      above = slot;
      continue;
    }
    const std::uint32_t below = entry.below.load(std::memory_order_relaxed);
    if (above != 0) {
      link(above).below.store(below, std::memory_order_release);
    } else {
      head.below = below;
      unlinked.replaced.push_back(id);
      unlinked.heads.push_back(head);
    }
    unlinked.links.push_back(slot);
    if (entry.row != 0) unlinked.rows.push_back(entry.row);
    return;
  }
}

void OverlayTable::changed(Staged& staged) {
  staged.count.store(staged.ids.size(), std::memory_order_relaxed);
  size_.store(index_.size(), std::memory_order_release);
}

StagedIds OverlayTable::staged(std::uint32_t overlay) const {
  const Staged& staged = staged_[checked(overlay)];
  const std::lock_guard lock(mutex_);
  return staged;
}

std::size_t OverlayTable::find_rows(std::uint64_t mask, const std::int64_t* ids, std::size_t n, Cover* covers) const {
  const char* heads[kWindow];
  std::size_t covered = 0;
  for (std::size_t start = 0; start < n; start += kWindow) {
    const std::size_t count = std::min(kWindow, n - start);
    TablePipeline pipeline(index_, ids + start, count, heads);
    for (std::size_t i = 0; i < count; ++i) {
      if (i % RowPipeline::kBlock == 0) pipeline.advance(std::min(count, i + RowPipeline::kBlock));
      Cover& cover = covers[start + i];
      cover = {nullptr, CoverState::kNone, kNoOverlay};
      if (heads[i] == nullptr) continue;
      const Head head = head_at(heads[i]);
      std::uint32_t row = head.row;
      if (visible(mask, head.overlay)) {
        cover.state = head.state;
        cover.overlay = head.overlay;
      } else {
        std::uint32_t slot = head.below;
        while (slot != 0 && !visible(mask, link(slot).overlay)) slot = link(slot).below.load(std::memory_order_acquire);
        if (slot == 0) continue;
        row = link(slot).row;
        cover.state = link(slot).state;
        cover.overlay = link(slot).overlay;
      }
      ++covered;
      if (cover.state != CoverState::kRow) continue;
      cover.row = rows_.row(row);
      __builtin_prefetch(cover.row, 0, 2);
    }
  }
  return covered;
}

std::size_t OverlayTable::find(std::uint64_t mask, const std::int64_t* ids, std::size_t n, float* out,
                               std::uint8_t* states, std::uint8_t* overlays) const {
  Cover covers[kWindow];
  std::size_t covered = 0;
  for (std::size_t start = 0; start < n; start += kWindow) {
    const std::size_t count = std::min(kWindow, n - start);
    const ReaderSection section;
    covered += find_rows(mask, ids + start, count, covers);
    for (std::size_t i = 0; i < count; ++i) {
      float* to = out + (start + i) * format_.dim;
      if (covers[i].row != nullptr) {
        decode_rows(format_, covers[i].row, 1, to);
      } else {
        std::memset(to, 0, format_.dim * sizeof(float));
      }
      states[start + i] = static_cast<std::uint8_t>(covers[i].state);
      overlays[start + i] = covers[i].overlay;
    }
  }
  return covered;
}

std::size_t OverlayTable::copy_rows(std::uint64_t mask, const std::int64_t* ids, std::size_t n, std::uint8_t* rows,
                                    std::size_t stride, std::int64_t* at, std::uint8_t* states,
                                    std::size_t threads) const {
  std::atomic<std::size_t> window{0}, taken{0};
  const std::size_t row_bytes = format_.bytes(), windows = (n + kWindow - 1) / kWindow;
  const auto work = [&](std::size_t) {
    Cover covers[kWindow];
    for (std::size_t number = window++; number < windows; number = window++) {
      const std::size_t start = number * kWindow, count = std::min(kWindow, n - start);
      const ReaderSection section;
      find_rows(mask, ids + start, count, covers);
      std::size_t here = 0;
      for (std::size_t i = 0; i < count; ++i) {
        states[start + i] = static_cast<std::uint8_t>(covers[i].state);
        here += covers[i].row != nullptr;
      }
      std::size_t to = taken.fetch_add(here);
      for (std::size_t i = 0; i < count; ++i) {
        if (covers[i].row == nullptr) continue;
        std::memcpy(rows + to * stride, covers[i].row, row_bytes);
        std::memset(rows + to * stride + row_bytes, 0, stride - row_bytes);
        at[to++] = static_cast<std::int64_t>(start + i);
      }
    }
  };
  const std::size_t parts = std::clamp<std::size_t>(windows, 1, std::clamp<std::size_t>(threads, 1, Workers::kMost));
  if (parts == 1) {
    work(0);
  } else {
    Workers::shared().run(parts, work);
  }
  return taken;
}

}  // namespace emberline
