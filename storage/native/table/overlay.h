// Staged deltas over one table: up to 63 overlays that a mask makes visible, read without locks beside one writer at a
// time.
//
// Each id that a delta touches has a chain of entries, the one staged last first. The head of the chain is the id's row
// in an index Table, so a new head is published by the one store that publishes any row; the entries that it covers lie
// in a slab of links, the rows themselves in a third. A reader walks from the head to the first entry whose overlay is
// in its mask.
//
// How a chain changes, each within one id and with one release store:
//   staged      the old head is copied into a link; a new head that points to it replaces it
//   discarded   the head: the entry below is copied up and replaces it, or the id leaves the index
//               the entry right below the head: a head that points past it replaces the head
//               deeper: the `below` of the link above is stored anew, the only word that changes while readers may look
//               at it
// Entries that were replaced or unlinked stay whole until every reader that could stand on it has left (epoch.h). Such
// a reader sees the chain as it was: the entry that goes, too, whose row then is what the mask's snapshot shows anyway.
//
// A merge loses no row. The merger puts the row into the base, then discards the entry: release stores, in this order.
// A reader asks the overlay, then the base. If it still finds the entry, it has the row. If it does not, it has read a
// value that the discard or something after it stored: a slot, an owner or a version of the index, a `below`, the count
// of entries. All of these are acquire loads, so the stores into the base lie before the reader's loads from it. The
// other order would miss a row that moves between the two looks.
//
// The caller ensures that an overlay is merged only when every mask in use has it, and is the oldest in each: a reader
// without it in its mask would find it in the base. N ids, D dim. Rows are held encoded, as those of the table beneath.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include "table/epoch.h"
#include "table/slots.h"
#include "table/table.h"

namespace emberline {

constexpr std::uint32_t kMostOverlays = 63;
constexpr std::uint8_t kNoOverlay = 255;

inline bool visible(std::uint64_t mask, std::uint8_t overlay) { return ((mask >> overlay) & 1) != 0; }

// State of an id in an overlay. Spilled: it has a row, which lies elsewhere.
enum class CoverState : std::uint8_t { kNone = 0, kRow = 1, kRemoved = 2, kSpilled = 3 };

struct Cover {
  const char* row;  // set for kRow, else null
  CoverState state;
  std::uint8_t overlay;  // kNoOverlay for kNone
};

struct StagedIds {
  std::vector<std::int64_t> ids;  // in the order in which they were staged
  std::vector<CoverState> states;
};

class OverlayTable {
 public:
  explicit OverlayTable(std::uint32_t dim, RowType type = RowType::kFp32);  // throws std::invalid_argument

  std::uint32_t dim() const { return format_.dim; }
  RowFormat format() const { return format_; }
  // Ids that any overlay says something of.
  std::uint64_t size() const { return size_.load(std::memory_order_acquire); }
  std::size_t entries(std::uint32_t overlay) const {
    return staged_[checked(overlay)].count.load(std::memory_order_relaxed);
  }
  std::size_t memory_bytes() const;

  // Puts ids (n) on top of what is staged; rows (n, D) or (n, row_bytes) for kRow, else null. All of them or, when it
  // throws, none. Throws std::invalid_argument for an id that the overlay has already and for rows that cannot be
  // encoded, CapacityExceeded.
  void stage(std::uint32_t overlay, const std::int64_t* ids, std::size_t n, RowInput rows, CoverState state);
  // Unlinks the overlay's entries wherever they stand, at most `limit`, those staged last first. Returns how many. The
  // number may be staged anew when no mask in use has its bit: under an old mask the new entries would be visible.
  std::size_t discard(std::uint32_t overlay, std::size_t limit);
  StagedIds staged(std::uint32_t overlay) const;

  // Finds the newest entry in the mask for each id. Called within a ReaderSection; the rows are valid until it ends.
  // Returns how many ids are covered. covers: (n).
  std::size_t find_rows(std::uint64_t mask, const std::int64_t* ids, std::size_t n, Cover* covers) const;
  // The same, copied: out (n, D), zeros without a row; states and overlays (n).
  std::size_t find(std::uint64_t mask, const std::int64_t* ids, std::size_t n, float* out, std::uint8_t* states,
                   std::uint8_t* overlays) const;

  // Copies encoded rows, with at most `threads` threads: those of `kRow`s alone, one behind the other in `rows` (n,
  // stride) with zeros behind each. at (n): index of each row's id. states (n). Returns how many rows. More than one
  // thread gives them in any order.
  std::size_t copy_rows(std::uint64_t mask, const std::int64_t* ids, std::size_t n, std::uint8_t* rows,
                        std::size_t stride, std::int64_t* at, std::uint8_t* states, std::size_t threads) const;

  // Throws std::logic_error that says which rule is broken.
  void check_integrity() const;

 private:
  // Heads are rows of the index and never change in place.
  struct Head {
    std::uint32_t below;  // link, or 0
    std::uint32_t row;  // slot, or 0
    CoverState state;
    std::uint8_t overlay;
    std::uint16_t unused[3];
  };
  struct Link {
    std::atomic<std::uint32_t> below;
    std::uint32_t row;
    CoverState state;
    std::uint8_t overlay;
  };
  static_assert(sizeof(Head) == 16 && sizeof(Link) <= sizeof(Head));  // a head never straddles two cache lines

  struct Staged : StagedIds {
    std::atomic<std::size_t> count{0};
  };
  // Memory that a batch of unlinked entries still has to free.
  struct Unlinked {
    std::vector<std::int64_t> replaced, gone;  // ids
    std::vector<Head> heads;  // the replaced heads
    std::vector<std::uint32_t> links, rows;  // slots
  };

  static std::uint32_t checked(std::uint32_t overlay);
  static Head head_at(const char* row);
  Link& link(std::uint32_t slot) const { return *reinterpret_cast<Link*>(links_.row(slot)); }
  bool holds(const Head& head, std::uint32_t overlay) const;
  void refuse_repeated(std::uint32_t overlay, const std::int64_t* ids, std::size_t n) const;
  void unlink(std::uint32_t overlay, const std::int64_t* ids, std::size_t n);
  void unlink_one(std::uint32_t overlay, std::int64_t id, Head head, Unlinked& unlinked);
  void changed(Staged& staged);

  RowFormat format_;
  mutable std::mutex mutex_;
  Grace grace_;
  Table index_;
  RecycledSlots links_;
  RecycledSlots rows_;
  std::array<Staged, kMostOverlays> staged_;
  // Stored with release after the entries went: a reader that skips an empty overlay table must see the base as a
  // reader that looked into it would.
  std::atomic<std::uint64_t> size_{0};
};

}  // namespace emberline
