// Pages that are being read now, so that another call that needs one waits for that read instead of repeating it.
//
// The call that begins a flight must land it, whatever its result; a call that joins one waits for that, or leaves. A
// landed page that others joined is copied, once for all of them, so the reader's own buffer is free at once and
// nothing is written into memory of a caller that has given up.
#pragma once

#include <array>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "pages/read_queue.h"

namespace emberline::pages {

struct Flight {
  std::uint64_t file = 0;
  std::uint64_t page = 0;
  // Under the shard's mutex:
  std::size_t joined = 0;
  bool landed = false;
  // Set when the flight lands, and never changed then.
  std::vector<char> bytes;
  std::exception_ptr failure;
};

class Flights {
 public:
  using Ref = std::shared_ptr<Flight>;

  // The flight of a page, and whether it is the caller's own, to be landed.
  std::pair<Ref, bool> board(std::uint64_t file, std::uint64_t page);

  // bytes: the page, checked; or a failure.
  void land(const Ref& flight, const char* bytes, std::size_t n, std::exception_ptr failure);

  // Waits until a joined flight has landed, or until the deadline. Returns whether it has.
  bool wait(const Ref& flight, Deadline deadline);
  bool landed(const Ref& flight);

 private:
  struct Key {
    std::uint64_t file, page;
    bool operator==(const Key&) const = default;
  };
  struct Hash {
    std::size_t operator()(const Key& key) const {
      return static_cast<std::size_t>((key.page * 0x9E3779B97F4A7C15u) ^ (key.file * 0xC2B2AE3D27D4EB4Fu));
    }
  };
  struct alignas(64) Shard {
    std::mutex mutex;
    std::condition_variable changed;
    std::unordered_map<Key, Ref, Hash> under_way;
  };

  Shard& shard_of(std::uint64_t file, std::uint64_t page) { return shards_[(Hash{}({file, page}) >> 40) % kShards]; }

  static constexpr std::size_t kShards = 32;
  std::array<Shard, kShards> shards_;
};

}  // namespace emberline::pages
