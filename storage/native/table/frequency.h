// How often ids were asked for that are not in memory: a count-min sketch of 8-bit scores, aged together with the scores of the rows.
// Einziger, Friedman, Manes, "TinyLFU: a highly efficient cache admission policy", 2017; Cormode, Muthukrishnan, 2005.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <vector>

#include "line.cuh"

namespace emberline {

class Sketch {
 public:
  explicit Sketch(uint64_t capacity)
      : mask_(std::bit_ceil(std::max<uint64_t>(capacity, 64)) - 1), scores_((mask_ + 1) * kRows) {}

  // Counts one more and returns the estimate: never below the true score, above it when all rows collide.
  uint8_t touch(int64_t id, uint32_t random) {
    uint8_t lowest = 255;
    for (uint64_t row = 0; row < kRows; ++row) lowest = std::min(lowest, at(id, row));
    const uint8_t next = touch_score(lowest, random);
    for (uint64_t row = 0; row < kRows; ++row) at(id, row) = std::max(at(id, row), next);
    return next;
  }

  void age() {
    for (uint8_t& score : scores_) score = age_score(score);
  }

  size_t bytes() const { return scores_.size(); }

 private:
  static constexpr uint64_t kRows = 4;

  uint8_t& at(int64_t id, uint64_t row) {
    const uint64_t hash = mix64(static_cast<uint64_t>(id) + (row + 1) * 0xD1B54A32D192ED03ull);
    return scores_[row * (mask_ + 1) + (hash & mask_)];
  }

  uint64_t mask_;
  std::vector<uint8_t> scores_;
};

}  // namespace emberline
