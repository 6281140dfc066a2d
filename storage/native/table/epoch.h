// Epochs tell a writer when no reader can hold any more what it has taken away.
//
// A reader announces the global epoch before its first load and takes the announcement back after its last one. A
// writer takes something away (stores), then seals it by advancing the epoch, and may reuse it once every announced
// epoch is newer than the seal. The advance is a read-modify-write: a reader that announces a newer epoch has read it,
// or a later one, and so sees the stores before it. A plain load of the epoch as the tag would not give that.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <utility>

namespace emberline {

// Announcement of one reader. 0: not reading. Nodes live for ever and are passed from thread to thread.
struct alignas(64) ReaderNode {
  std::atomic<std::uint64_t> epoch{0};
  std::atomic<bool> taken{false};
  ReaderNode* next = nullptr;
};

// A section in which loaded slots and buckets stay valid. Keep it short, never wait in it for a writer, never nest it.
class ReaderSection {
 public:
  ReaderSection();
  ~ReaderSection();
  ReaderSection(const ReaderSection&) = delete;
  ReaderSection& operator=(const ReaderSection&) = delete;

 private:
  ReaderNode* node_;
};

// A writer's view: numbered groups of things taken away, and which of them no reader can hold any more.
// Used under the writer's mutex.
class Grace {
 public:
  // The number of the group that is being filled.
  std::uint64_t group() const { return group_; }
  bool passed(std::uint64_t group) const { return group <= passed_; }
  // Seals the group being filled and looks which groups have passed.
  void poll();
  // Polls until a group has passed. Readers never wait for writers, so this ends.
  void wait(std::uint64_t group);

 private:
  void seal();
  void look();

  std::uint64_t group_ = 1;
  std::uint64_t passed_ = 0;
  std::deque<std::pair<std::uint64_t, std::uint64_t>> sealed_;  // group, epoch
};

}  // namespace emberline
